"""Whether a JSON value has the type that a message's field declares."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, Union, get_args, get_origin


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_PLAIN: Mapping[Any, Callable[[Any], bool]] = {
    int: _is_integer,
    float: _is_number,
    str: lambda value: isinstance(value, str),
    bool: lambda value: isinstance(value, bool),
    types.NoneType: lambda value: value is None,
}


def check_for(annotation: Any) -> Callable[[Any], bool]:
    """Return the function that says whether a parsed JSON value fits an annotation.

    Parameters
    ----------
    annotation : type
        ``int`` (not negative, 63 bits), ``float``, ``str``, ``bool``, ``None``, a union of them,
        ``dict`` of numbers, or ``tuple`` of objects.

    Examples
    --------
    >>> fits = check_for(int | None)
    >>> fits(3), fits(None), fits(True), fits(-1)
    (True, True, False, False)
    """
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        checks = [check_for(part) for part in get_args(annotation)]
        return lambda value: any(check(value) for check in checks)
    if origin is dict:
        return lambda value: (
            isinstance(value, dict) and all(_is_number(number) for number in value.values())
        )
    if origin is tuple:
        return lambda value: (
            isinstance(value, list) and all(isinstance(part, dict) for part in value)
        )
    return _PLAIN[annotation]
