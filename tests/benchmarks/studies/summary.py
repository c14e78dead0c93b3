"""Summarise the seeds of each side, model and batch size in one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

from tests.benchmarks.studies.cells import LOCAL, Outcome, side_name

#: Figures of an `Outcome`, by what they are called on the page.
FIRST, END = "after epoch 1", "at the end"
PREFIXES = {FIRST: "first", END: "end"}


@dataclass(frozen=True)
class Spread:
    """Mean, lowest and highest value of several seeds."""

    mean: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of some values.

        Examples
        --------
        >>> Spread.of([1.0, 2.0, 6.0])
        Spread(mean=3.0, lowest=1.0, highest=6.0)
        """
        return cls(mean(values), min(values), max(values))

    @property
    def width(self) -> float:
        """Highest less lowest."""
        return self.highest - self.lowest


@dataclass(frozen=True)
class Line:
    """One side with one model and one batch size.

    Parameters
    ----------
    model, trainer : str
    workers, batch : int
    seeds, failed : int
        Runs that ended well, and others.
    window : int or None
    start : Spread
        Seconds before the first batch.
    seconds, accuracy : dict of str to Spread
        By `FIRST` and `END`; accuracy on the validation split.
    tested : Spread
        Accuracy at the end on the test split.
    """

    model: str
    trainer: str
    workers: int
    batch: int
    seeds: int
    failed: int
    window: int | None
    start: Spread
    seconds: dict[str, Spread]
    accuracy: dict[str, Spread]
    tested: Spread

    @property
    def side(self) -> str:
        """What trains, in words."""
        return side_name(self.trainer, self.workers)

    @property
    def is_local(self) -> bool:
        """Whether this is plain Keras."""
        return self.trainer == LOCAL


def summarise(outcomes: Iterable[Outcome]) -> list[Line]:
    """Return a line for each model, batch size and side of which a run ended well.

    Parameters
    ----------
    outcomes : iterable of Outcome

    Returns
    -------
    list of Line
        Sorted by model, batch, and side: ``local`` first, the others by their names.
    """
    groups: dict[tuple[str, int, bool, str, int], list[Outcome]] = {}
    for outcome in outcomes:
        cell = outcome.cell
        key = (cell.model, cell.batch, cell.trainer != LOCAL, cell.trainer, cell.workers)
        groups.setdefault(key, []).append(outcome)
    lines = []
    for (model, batch, _, trainer, workers), group in sorted(groups.items()):
        good = [outcome for outcome in group if not outcome.error]
        if not good:
            continue
        lines.append(
            Line(
                *(model, trainer, workers, batch, len(good), len(group) - len(good)),
                window=good[0].window,
                start=Spread.of([outcome.start_seconds for outcome in good]),
                seconds=_spreads(good, "seconds"),
                accuracy=_spreads(good, "accuracy"),
                tested=Spread.of([outcome.test_accuracy for outcome in good]),
            )
        )
    return lines


def _spreads(outcomes: Sequence[Outcome], what: str) -> dict[str, Spread]:
    return {
        when: Spread.of([getattr(outcome, f"{prefix}_{what}") for outcome in outcomes])
        for when, prefix in PREFIXES.items()
    }
