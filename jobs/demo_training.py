"""The demo's net: by two workers, by Keras' `fit`, and once more while a worker is killed."""

from __future__ import annotations

import math
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import psutil
from demo_progress import LINES, spinner

from distkeras_grid import AccuracyEvaluator, AveragingTrainer, ModelPredictor, read_tiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from distkeras_grid.cli.spinner import Spinner
    from distkeras_grid.evaluation.classification import Evaluation
    from distkeras_grid.history import History
    from distkeras_grid.progress import Reporter

BATCH = 32
SEED = 1
#: Passes over the tiles of the run whose worker is killed, and the one after which it happens.
KILLED_EPOCHS, KILLED_AFTER = 3, 1


@dataclass(frozen=True)
class Result:
    """One way of training.

    Parameters
    ----------
    name : str
        With the cores it ran on.
    seconds : float
        From the first batch to the last update; for ``fit`` without its evaluations.
    start_up : float
        Before the first batch [s].
    curve : list of (float, float)
        Accuracy on split ``validation`` over training time [s], a point an epoch.
    """

    name: str
    seconds: float
    start_up: float
    curve: list[tuple[float, float]]


@dataclass(frozen=True)
class Killed:
    """The run whose worker was killed.

    Parameters
    ----------
    history : History
    rows : int
        Rows that all windows in the center have trained.
    expected : int
        Passes times tiles.
    accuracy : float
        On split ``validation``, at the end.
    """

    history: History
    rows: int
    expected: int
    accuracy: float


@dataclass(frozen=True)
class Findings:
    """What the report shows."""

    results: list[Result]
    killed: Killed
    evaluation: Evaluation
    model: keras.Model
    tiles: DataFrame


def focus_net(shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Return a small convolutional net for textures: what matters is not where it lies."""
    keras.utils.set_random_seed(SEED)
    layers = keras.layers
    # One group without weights: each tile loses its brightness and contrast, which tell one lamp
    # from another and not whether the image is sharp.
    net = keras.Sequential(
        [keras.Input(shape), layers.GroupNormalization(1, center=False, scale=False)]
    )
    for filters, width in ((12, 5), (16, 3), (24, 3)):
        net.add(layers.Conv2D(filters, width, strides=2, use_bias=False))
        # Keras' momentum of 0.99 lags behind for the first thousand batches, all of this demo.
        net.add(layers.BatchNormalization(momentum=0.9))
        net.add(layers.ReLU())
    net.add(layers.GlobalAveragePooling2D())
    net.add(layers.Dense(classes, activation="softmax"))
    return net


def train_all(tiles: str, epochs: int) -> Findings:
    """Train three times on the same tiles, and look once at those of split ``test``."""
    with spinner("reading the tiles"):
        train, validation, test = read_tiles(tiles, splits=("train", "validation", "test"))
        rows = train.count()
    metadata = train.schema["image"].metadata["distkeras_grid"]

    def compiled(passes: int) -> keras.Model:
        net = focus_net(tuple(metadata["shape"]), len(metadata["classes"]))
        # Two workers with half of the batch take as many steps as one, so one schedule fits all.
        steps = passes * math.ceil(rows / BATCH)
        net.compile(
            keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(3e-3, steps)),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        return net

    def workers(passes: int) -> AveragingTrainer:
        return AveragingTrainer(
            compiled(passes),
            num_workers=2,
            batch_size=BATCH // 2,
            num_epoch=passes,
            features_col="image",
        )

    print("\n1. Two Spark workers with one core each, batch 16 (AveragingTrainer)")
    two = workers(epochs)
    model = two.train(train, validation_data=validation, seed=SEED)
    cores = os.cpu_count() or 1
    print(f"\n2. Keras' fit in this process, batch 32, {cores} cores")
    local = fit(compiled(epochs), train, validation, epochs, cores)
    print("\n3. Two Spark workers again; one of them is killed on the way")
    killed = train_and_kill(workers(KILLED_EPOCHS), train, validation, KILLED_EPOCHS * rows)
    print("\nTest: micrographs that no run has seen, looked at once")
    with spinner("predicting"):
        predicted = ModelPredictor(model, "image").predict(test)
        evaluation = AccuracyEvaluator().report(predicted)
    distributed = Result(
        "two workers, 1 core each",
        two.get_training_time(),
        two.run["start_up_seconds"],
        two.history.points("val_accuracy", "seconds"),
    )
    return Findings([distributed, local], killed, evaluation, model, train)


def train_and_kill(
    trainer: AveragingTrainer, train: DataFrame, validation: DataFrame, expected: int
) -> Killed:
    """Train, and kill a worker's process with SIGKILL after an epoch."""

    def kill(epoch: int, _: Any) -> None:
        if epoch + 1 == KILLED_AFTER:
            worker = process_of_a_worker()
            LINES.note(f"kill -9 {worker.pid}: the process of one of the two workers is gone")
            worker.send_signal(signal.SIGKILL)

    callback = keras.callbacks.LambdaCallback(on_epoch_end=kill)
    trainer.train(train, validation_data=validation, callbacks=[callback], seed=SEED)
    history = trainer.history
    rows = sum(window.samples for window in history.records)
    print(f"rows trained: {rows:,} of {expected:,}; each tile once in each epoch")
    return Killed(history, rows, expected, history.history["val_accuracy"][-1])


def process_of_a_worker() -> psutil.Process:
    """Return the Python process of a training task: the largest child of Spark's daemons."""
    sizes: dict[psutil.Process, int] = {}
    for process in psutil.Process().children(recursive=True):
        # A process may end meanwhile.
        with suppress(psutil.NoSuchProcess):
            if "pyspark.daemon" in process.cmdline():
                sizes[process] = process.memory_info().rss
    return max(sizes, key=sizes.__getitem__)


def fit(
    net: keras.Model, train: DataFrame, validation: DataFrame, epochs: int, cores: int
) -> Result:
    """Train by ``fit``; its clock stands still while the validation tiles are evaluated."""
    started = time.perf_counter()
    with spinner("bringing the tiles to this process and compiling"):
        (x, y), validation_data = arrays(train), arrays(validation)
        compile_once(net, x[:BATCH], y[:BATCH])
    start_up = time.perf_counter() - started
    seconds, curve = 0.0, []
    for epoch in range(epochs):
        with spinner(f"epoch {epoch + 1}/{epochs}") as progress:
            clock = time.perf_counter()
            net.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[Batches(progress)])
            seconds += time.perf_counter() - clock
            accuracy = net.evaluate(*validation_data, verbose=0, return_dict=True)["accuracy"]
        print(
            f"epoch {epoch + 1}/{epochs} ended after {seconds:.1f} s: val_accuracy {accuracy:.4g}"
        )
        curve.append((seconds, accuracy))
    return Result(f"Keras fit, {cores} cores", seconds, start_up, curve)


def compile_once(net: keras.Model, x: Any, y: Any) -> None:
    """Let Keras trace its functions before the clock runs, as workers do, and undo the training."""
    net.optimizer.build(net.trainable_variables)
    state = [(v, v.numpy()) for v in (*net.variables, *net.optimizer.variables)]
    net.fit(x, y, batch_size=BATCH, verbose=0)
    net.evaluate(x, y, verbose=0)
    for variable, value in state:
        variable.assign(value)


class Batches(keras.callbacks.Callback):  # type: ignore[misc]
    """Tells a reporter where the epoch is."""

    def __init__(self, progress: Reporter[Spinner]) -> None:
        super().__init__()
        self._progress = progress

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Tell batch and loss."""
        loss = (logs or {}).get("loss", float("nan"))
        steps = self.params["steps"]
        self._progress.update(detail=f"batch {batch + 1} of {steps}  loss {loss:.4g}")


def arrays(tiles: DataFrame) -> tuple[Any, Any]:
    """Bring tiles to the driver as arrays, scaled to 0..1, mixed once."""
    table = tiles.select("image", "label").toArrow()
    shape = tiles.schema["image"].metadata["distkeras_grid"]["shape"]
    pixels = np.frombuffer(b"".join(table["image"].to_pylist()), np.uint8).reshape(-1, *shape)
    order = np.random.default_rng(SEED).permutation(len(pixels))
    return pixels[order].astype(np.float32) / 255, table["label"].to_numpy()[order]
