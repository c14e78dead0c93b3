"""Which tiles are kept, by measured values of their pixels: pure."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from data_prep.geometry.tile_quality import OF_PIXELS
from distkeras_grid.errors import ConfigurationError

#: Measured columns of a tile that a filter can name.
MEASURED = (*OF_PIXELS, "outside")
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
CONDITION = re.compile(
    r"\s*(?P<column>\w+)\s*(?P<operator><=|>=|<|>)\s*"
    r"(?P<threshold>\d+\.?\d*([eE][-+]?\d+)?|\.\d+)\s*\Z"
)


@dataclass(frozen=True)
class Condition:
    """A condition that a measured value of a tile must meet."""

    column: str  # One of `MEASURED`
    operator: str
    threshold: float


def parse_filter(text: str | None) -> tuple[Condition, ...]:
    """Read the conditions that tiles must meet; a tile must meet all of them.

    Examples
    --------
    >>> parse_filter("bg_fraction < 0.9")
    (Condition(column='bg_fraction', operator='<', threshold=0.9),)
    >>> parse_filter(None)
    ()
    """
    if text is None:
        return ()
    conditions = []
    for part in text.split(","):
        match = CONDITION.match(part)
        if match is None or match["column"] not in MEASURED:
            raise ConfigurationError(
                f"keep takes conditions such as bg_fraction<0.9,focus>=0.01, of the columns "
                f"{', '.join(MEASURED)}. Received: {part.strip()!r}."
            )
        conditions.append(Condition(match["column"], match["operator"], float(match["threshold"])))
    return tuple(conditions)


def passes_filter(conditions: tuple[Condition, ...], measured: Mapping[str, float]) -> bool:
    """Tell whether a tile meets all conditions.

    Examples
    --------
    >>> passes_filter(parse_filter("focus>0.1,std>=3"), {"focus": 0.2, "std": 3.0})
    True
    """
    return all(
        OPERATORS[each.operator](measured[each.column], each.threshold) for each in conditions
    )
