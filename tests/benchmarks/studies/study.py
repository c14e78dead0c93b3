"""Runs the cells of a comparison one after the other, each with the machine to itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from distkeras_grid.engine.keras_model import get_flat_weights, set_flat_weights
from distkeras_grid.engine.registry import VARIABLE, current_backend
from distkeras_grid.errors import ConfigurationError, NonFiniteLossError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.feeding.source import ArraySource
from distkeras_grid.spec import RunSpec
from distkeras_grid.trainers.validation import evaluate
from distkeras_grid.weights import Vector
from tests.benchmarks.studies.cells import LOCAL, Cell, Outcome
from tests.benchmarks.studies.data import LABEL, Data, in_shape, scaled_arrays
from tests.benchmarks.studies.fitting import Point, compile_ahead, timed_fit
from tests.benchmarks.studies.nets import NETS
from tests.benchmarks.studies.processes import Side
from tests.benchmarks.studies.results import Results

# No run of `fit` in a comparison is expected to take as long.
FIT_SECONDS = 6 * 3600.0
# What the workers of a run have, and what keeps TensorFlow's start quiet.
ENVIRONMENT = {
    "TF_ENABLE_ONEDNN_OPTS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}

# They train several models, each with as many samples as the others train one.
WITHOUT_CENTER = ("EnsembleTrainer",)

Say = Callable[[str], object]


@dataclass(frozen=True)
class Regime:
    """How all sides train."""

    epochs: int
    optimizer: str = "adam"  # A name that Keras knows
    learning_rate: float | None = None  # Default: the optimizer's own

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ConfigurationError(f"epochs must be at least 1. Received: {self.epochs}.")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise ConfigurationError(
                f"learning_rate must be above 0. Received: {self.learning_rate}."
            )

    def build_optimizer(self) -> Any:
        """Return a new optimizer."""
        import keras

        try:
            optimizer = keras.optimizers.get(self.optimizer)
        except ValueError as error:
            raise ConfigurationError(
                f"Keras knows no such optimizer. Received: {self.optimizer!r}. Give a name such as "
                "adam, sgd or adagrad."
            ) from error
        if self.learning_rate is not None:
            optimizer.learning_rate = self.learning_rate
        return optimizer

    def build(self, cell: Cell, data_field: Field, classes: int) -> Any:
        """Return the compiled model of a cell, with the initial weights of its seed."""
        net = NETS[cell.model]
        shape = net.field(data_field).shape
        return net.build(shape, classes, cell.seed, optimizer=self.build_optimizer())


@dataclass(frozen=True)
class Measured:
    """Two points of a run, and what came before: see `Outcome`."""

    first: Point
    end: Point
    start_seconds: float
    window: int | None


def trainer_classes() -> dict[str, Any]:
    """Return every trainer that `distkeras_grid` exports and that trains one model, by name."""
    import distkeras_grid
    from distkeras_grid.trainers.base import Trainer

    found = {name: getattr(distkeras_grid, name) for name in distkeras_grid.__all__}
    return {
        name: thing
        for name, thing in found.items()
        if isinstance(thing, type) and issubclass(thing, Trainer) and name not in WITHOUT_CENTER
    }


def check_names(trainers: Sequence[str], models: Sequence[str]) -> list[str]:
    """Refuse unknown names; return the trainers with one worker."""
    from distkeras_grid.trainers.single import SingleTrainer

    known = {LOCAL: None, **trainer_classes()}
    for what, names, among in (("trainer", trainers, known), ("model", models, NETS)):
        unknown = [name for name in names if name not in among]
        if unknown or not names:
            told = repr(unknown[0]) if unknown else "an empty name"
            raise ConfigurationError(
                f"There is no such {what}. Received: {told}. Choose from: {', '.join(among)}."
            )
    return [
        name
        for name in trainers
        if name == LOCAL or issubclass(trainer_classes()[name], SingleTrainer)
    ]


def run_study(cells: Sequence[Cell], data: Data, results: Results, regime: Regime, say: Say) -> int:
    """Measure every cell that has no result yet.

    A training that diverges is a result, too: its cell keeps the error. Anything else (a process
    that died, too little memory) ends the study, and the next call goes on with that cell.
    """
    left = [cell for cell in cells if cell not in results]
    say(f"{len(cells)} cells, {len(cells) - len(left)} of them measured before")
    examiner = Examiner(data)
    began = time.monotonic()
    for number, cell in enumerate(left, 1):
        try:
            outcome = examiner.judge(cell, measure(cell, data, regime))
            told = (
                f"epoch 1 {outcome.first_accuracy:.4f} in {outcome.first_seconds:.2f} s, "
                f"end {outcome.end_accuracy:.4f} in {outcome.end_seconds:.2f} s"
            )
        except NonFiniteLossError as error:
            outcome = Outcome(cell, error=f"{type(error).__name__}: {error}")
            told = outcome.error
        results.add(outcome)
        minutes = (time.monotonic() - began) / number * (len(left) - number) / 60
        say(f"{number} of {len(left)}: {cell.describe()}: {told}; about {minutes:.0f} min left")
    return len(left)


def measure(cell: Cell, data: Data, regime: Regime) -> Measured:
    """Train one cell."""
    if cell.trainer == LOCAL:
        return _fit(cell, data, regime)
    return _train(cell, data, regime)


class Examiner:
    """Finds the accuracy of weights, apart from all clocks."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._models: dict[str, Any] = {}

    def judge(self, cell: Cell, measured: Measured) -> Outcome:
        """Return the result of a run; the test split is looked at once, with the last weights."""
        first, end, validation = measured.first, measured.end, self._data.validation
        first_accuracy = self.accuracy(cell.model, first[2], validation)
        end_accuracy = first_accuracy
        if end is not first:
            end_accuracy = self.accuracy(cell.model, end[2], validation)
        return Outcome(
            cell,
            window=measured.window,
            start_seconds=round(measured.start_seconds, 3),
            first_seconds=round(first[1], 4),
            first_accuracy=first_accuracy,
            end_seconds=round(end[1], 4),
            end_accuracy=end_accuracy,
            test_accuracy=self.accuracy(cell.model, end[2], self._data.test),
        )

    def accuracy(self, name: str, weights: Vector, rows: ArraySource) -> float:
        """Return the share of rows that a net with these weights gets right."""
        net, data = NETS[name], self._data
        field = net.field(data.field)
        if name not in self._models:
            self._models[name] = net.build(field.shape, data.classes, seed=0)
        set_flat_weights(self._models[name], weights)
        return evaluate(self._models[name], in_shape(rows, field))["val_accuracy"]


def _train(cell: Cell, data: Data, regime: Regime) -> Measured:
    """Train by one of our trainers; the center is evaluated at the end of each epoch."""
    import keras

    kept: list[Vector] = []

    class Keep(keras.callbacks.Callback):  # type: ignore[misc]
        """Keeps the center of the first epoch's end; workers do not wait for it."""

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            if epoch == 0:
                kept.append(get_flat_weights(self.model))

    trainer = trainer_classes()[cell.trainer](
        regime.build(cell, data.field, data.classes),
        num_workers=cell.workers,
        batch_size=cell.batch // cell.workers,
        num_epoch=regime.epochs,
        features_col=NETS[cell.model].field(data.field),
        label_col=LABEL,
        progress=False,
    )
    trained = trainer.train(data.train, callbacks=[Keep()], seed=cell.seed)
    history = trainer.history
    seconds = history.points("loss", "seconds")[0][0]
    first = (history.epoch_records[0].samples, seconds, kept[0])
    end = (history.samples, trainer.get_training_time(), get_flat_weights(trained))
    return Measured(
        first,
        end if regime.epochs > 1 else first,
        trainer.run["start_up_seconds"],
        RunSpec.from_json(trainer.run["spec"]).schedule.window,
    )


def _fit(cell: Cell, data: Data, regime: Regime) -> Measured:
    """Train by ``fit`` in a process of its own, on arrays in memory, with all cores."""
    build = partial(LocalFit, cell, data.folder, data.field, data.classes, regime)
    with Side(build, {**ENVIRONMENT, VARIABLE: current_backend()}) as side:
        side.ask("train")
        points: list[Point] = side.answer(FIT_SECONDS)
        return Measured(points[0], points[-1], side.start_seconds, None)


class LocalFit:
    """The model and the rows in the process of ``fit``."""

    def __init__(
        self, cell: Cell, folder: Path, data_field: Field, classes: int, regime: Regime
    ) -> None:
        self._batch, self._epochs = cell.batch, regime.epochs
        self._images, self._labels = scaled_arrays(folder, NETS[cell.model].field(data_field))
        self._model = regime.build(cell, data_field, classes)
        compile_ahead(self._model, self._images, self._labels, cell.batch)

    def train(self) -> list[Point]:
        """Train, and return a point for each epoch."""
        return timed_fit(
            self._model, self._images, self._labels, batch=self._batch, epochs=self._epochs
        )
