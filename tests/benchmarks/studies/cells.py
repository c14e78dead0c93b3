"""The grid of a comparison: its runs, and the file name of each result."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from distkeras_grid.errors import ConfigurationError, DataError

#: Keras' own ``fit``, with all cores of the driver's machine.
LOCAL = "local"


@dataclass(frozen=True)
class Cell:
    """One run.

    Parameters
    ----------
    model : str
        Key of `tests.benchmarks.studies.nets.NETS`.
    trainer : str
        Name of a trainer's class, or "local".
    batch : int
        Rows in a batch of ``fit``; each worker has it divided by the workers.
    workers, seed : int
    """

    model: str
    trainer: str
    batch: int
    workers: int
    seed: int

    @property
    def worker_batch(self) -> int:
        """Rows in a batch of one worker."""
        return self.batch // self.workers

    @property
    def file_name(self) -> str:
        """Name of the file that keeps the cell's result.

        Examples
        --------
        >>> Cell("mlp", "ADAG", 32, 2, 1).file_name
        'mlp-ADAG-batch32-workers2-seed1.json'
        """
        return (
            f"{self.model}-{self.trainer}-batch{self.batch}-workers{self.workers}"
            f"-seed{self.seed}.json"
        )

    def describe(self) -> str:
        """Return the cell in words.

        Examples
        --------
        >>> Cell("mlp", "local", 32, 1, 1).describe()
        'mlp, batch 32, seed 1: local, all cores'
        """
        side = side_name(self.trainer, self.workers)
        return f"{self.model}, batch {self.batch}, seed {self.seed}: {side}"


def side_name(trainer: str, workers: int) -> str:
    """Return the name of a side, in words.

    Examples
    --------
    >>> side_name("ADAG", 2), side_name("SingleTrainer", 1), side_name("local", 1)
    ('ADAG, 2 workers', 'SingleTrainer, 1 worker', 'local, all cores')
    """
    if trainer == LOCAL:
        return "local, all cores"
    return f"{trainer}, {workers} worker{'s' * (workers != 1)}"


def grid(
    trainers: Sequence[str],
    models: Sequence[str],
    batches: Sequence[int],
    workers: Sequence[int],
    seeds: int,
    alone: Collection[str],
) -> list[Cell]:
    """Return all cells, table by table and seed by seed.

    Parameters
    ----------
    trainers, models : sequence of str
    batches, workers : sequence of int
    seeds : int
        How many; they are 1, 2, ...
    alone : collection of str
        Trainers that have one worker, whatever `workers` says.

    Raises
    ------
    ConfigurationError
        If a batch cannot be divided by the workers, or a number is below 1.

    Examples
    --------
    >>> len(grid(["ADAG", "local"], ["mlp", "cnn"], [32, 128], [2, 4], 3, ["local"]))
    36
    """
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


@dataclass(frozen=True)
class Outcome:
    """The result of one cell; times in seconds, without start-up.

    Parameters
    ----------
    cell : Cell
    window : int or None
        Batches between two exchanges; None for ``local``.
    start_seconds : float
        Before the first batch.
    first_seconds, first_accuracy : float
        What the first epoch took, and the accuracy after it on the validation split.
    end_seconds, end_accuracy : float
        The same for all epochs.
    test_accuracy : float
        Accuracy at the end on the test split.
    error : str
        Why there are no figures: the training failed.
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

    def to_json(self) -> dict[str, Any]:
        """Return all values in one level, the cell's first."""
        values = asdict(self)
        return {**values.pop("cell"), **values}

    @classmethod
    def from_json(cls, content: dict[str, Any], name: str) -> Self:
        """Read what `to_json` returned.

        Raises
        ------
        DataError
            If a value is missing.
        """
        try:
            cell = Cell(**{each.name: content[each.name] for each in fields(Cell)})
            names = [each.name for each in fields(cls) if each.name != "cell"]
            return cls(cell, **{each: content[each] for each in names})
        except (KeyError, TypeError) as error:
            raise DataError(
                f"{name} is not a result of a comparison ({error!r}). Delete it, and its cell is "
                "measured again."
            ) from error
