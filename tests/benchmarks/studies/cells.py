"""The grid of a comparison: its runs, and the result of each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from distkeras_grid.errors import ConfigurationError

#: Keras' own ``fit``, with all cores of the driver's machine.
LOCAL = "local"


@dataclass(frozen=True)
class Cell:
    """One run; `batch` is that of ``fit``, which the workers share."""

    model: str
    trainer: str
    batch: int
    workers: int
    seed: int

    @property
    def side(self) -> str:
        """What trains, in words."""
        if self.trainer == LOCAL:
            return "local, all cores"
        return f"{self.trainer}, {self.workers} worker{'s' * (self.workers != 1)}"

    def describe(self) -> str:
        """Return the cell in words."""
        return f"{self.model}, batch {self.batch}, seed {self.seed}: {self.side}"


@dataclass(frozen=True)
class Outcome:
    """The result of a cell: seconds without start-up, accuracies on the validation split.

    `error` says why there are no figures. The test split is looked at once, at the end.
    """

    cell: Cell
    window: int | None = None
    start_seconds: float = 0.0
    first_seconds: float = 0.0
    first_accuracy: float = 0.0
    end_seconds: float = 0.0
    end_accuracy: float = 0.0
    test_accuracy: float = 0.0
    error: str = ""


def grid(
    trainers: Sequence[str],
    models: Sequence[str],
    batches: Sequence[int],
    workers: Sequence[int],
    seeds: int,
    alone: Collection[str],
) -> list[Cell]:
    """Return all cells, seed by seed; the trainers of `alone` have one worker."""
    for what, numbers in (("batches", batches), ("workers", workers), ("seeds", [seeds])):
        if not numbers or min(numbers) < 1:
            raise ConfigurationError(
                f"{what} must be whole numbers of at least 1. Received: {numbers}."
            )
    cells = [
        Cell(model, trainer, batch, count, seed)
        for seed in range(1, seeds + 1)
        for model in models
        for batch in batches
        for trainer in trainers
        for count in ([1] if trainer in alone else workers)
    ]
    for cell in cells:
        if cell.batch % cell.workers:
            raise ConfigurationError(
                f"A batch cannot be divided by the workers. Received: a batch of {cell.batch} and "
                f"{cell.workers} workers. Take batches that can: all sides train with the same."
            )
    return list(dict.fromkeys(cells))
