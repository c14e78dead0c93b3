"""The demo's net, trained by two workers, by one, and by plain ``fit``."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from demo_progress import Doing, doing

from distkeras_grid import ADAG, AccuracyEvaluator, ModelPredictor, SingleTrainer, read_tiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from distkeras_grid.evaluation.levels import Evaluation
    from distkeras_grid.progress import Reporter
    from distkeras_grid.trainers.base import Trainer

BATCH = 32
SEED = 1


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
    accuracy : float
        On the tiles of split ``test``, looked at once, when training is over.
    by_seconds, by_samples : list of (float, float)
        Accuracy on split ``validation`` over training time [s] and over samples.
    """

    name: str
    seconds: float
    start_up: float
    accuracy: float
    by_seconds: list[tuple[float, float]]
    by_samples: list[tuple[float, float]]


@dataclass(frozen=True)
class Comparison:
    """What the report shows."""

    results: list[Result]
    distributed: Trainer
    evaluation: Evaluation
    tiles: DataFrame


def texture_net(shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Return a small convolutional net for textures: what matters is not where it lies."""
    keras.utils.set_random_seed(SEED)
    layers = keras.layers
    net = keras.Sequential([keras.Input(shape), layers.AveragePooling2D(2)])
    # One group without weights: each tile loses its brightness and contrast, which tell the
    # lamp of the microscope from another one and not the rock.
    net.add(layers.GroupNormalization(1, center=False, scale=False))
    for filters, width, stride in ((16, 5, 2), (32, 3, 2), (48, 3, 1)):
        net.add(layers.Conv2D(filters, width, strides=stride, use_bias=False))
        # Keras' momentum of 0.99 lags behind for the first thousand batches, most of this demo.
        net.add(layers.BatchNormalization(momentum=0.9))
        net.add(layers.ReLU())
    net.add(layers.GlobalAveragePooling2D())
    net.add(layers.Dense(classes, activation="softmax"))
    return net


def compare(tiles: str, epochs: int) -> Comparison:
    """Train the net three ways on the same tiles."""
    with doing("reading the tiles"):
        train, validation, test = read_tiles(tiles, splits=("train", "validation", "test"))
        rows = train.count()
    shape = train.schema["image"].metadata["distkeras_grid"]["shape"]
    net = texture_net(
        tuple(shape), len(train.schema["image"].metadata["distkeras_grid"]["classes"])
    )
    # Two workers with half of the batch take as many steps as one, so one schedule fits all.
    steps = epochs * math.ceil(rows / BATCH)
    net.compile(
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1e-3, steps)),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    common = {"features_col": "image", "label_col": "label", "num_epoch": epochs}
    print("\n1. Spark, two workers, batch 16 each (ADAG)")
    two = ADAG(net, num_workers=2, batch_size=BATCH // 2, **common)
    model_of_two = two.train(train, validation_data=validation, seed=SEED)
    print("\n2. Spark, one worker, batch 32 (SingleTrainer)")
    one = SingleTrainer(net, batch_size=BATCH, **common)
    model_of_one = one.train(train, validation_data=validation, seed=SEED)
    cores = os.cpu_count() or 1
    print(f"\n3. Keras' fit in this process, batch 32, {cores} cores")
    local = fit(net, (train, validation, test), epochs, cores)
    print("\nTest: tiles of source images that no run has seen, looked at once")
    with doing("predicting"):
        predicted = predict(model_of_two, test)
        results = [
            spark_result("ADAG, 2 workers, 2 cores", two, predicted),
            spark_result("SingleTrainer, 1 core", one, predict(model_of_one, test)),
            local,
        ]
        evaluation = AccuracyEvaluator().report(predicted)
    for result in results:
        print(f"{result.name}: accuracy {result.accuracy:.3f}")
    return Comparison(results, two, evaluation, train)


def predict(model: keras.Model, test: DataFrame) -> DataFrame:
    """Return labels and predictions, kept: each look would compute them again."""
    predicted = ModelPredictor(model, "image").predict(test)
    return predicted.select("source", "label", "prediction").cache()


def spark_result(name: str, trainer: Trainer, predicted: DataFrame) -> Result:
    """Read a trainer's figures from its history, and its accuracy from its predictions."""
    history = trainer.history
    return Result(
        name,
        trainer.get_training_time(),
        trainer.run["start_up_seconds"],
        AccuracyEvaluator().evaluate(predicted),
        history.points("val_accuracy", "seconds"),
        history.points("val_accuracy", "samples"),
    )


def fit(
    net: keras.Model, splits: tuple[DataFrame, DataFrame, DataFrame], epochs: int, cores: int
) -> Result:
    """Train by ``fit``; its clock stands still while the validation tiles are evaluated."""
    started = time.perf_counter()
    with doing("bringing the tiles to this process and compiling"):
        (x, y), validation, test = (arrays(tiles) for tiles in splits)
        compile_once(net, x[:BATCH], y[:BATCH])
    start_up = time.perf_counter() - started
    seconds, by_seconds, by_samples = 0.0, [], []
    for epoch in range(epochs):
        with doing(f"epoch {epoch + 1}/{epochs}") as progress:
            clock = time.perf_counter()
            net.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[Batches(progress)])
            seconds += time.perf_counter() - clock
            accuracy = net.evaluate(*validation, verbose=0, return_dict=True)["accuracy"]
        print(
            f"epoch {epoch + 1}/{epochs} ended after {seconds:.1f} s: val_accuracy {accuracy:.4g}"
        )
        by_seconds.append((seconds, accuracy))
        by_samples.append((len(x) * (epoch + 1.0), accuracy))
    with doing("evaluating"):
        accuracy = net.evaluate(*test, verbose=0, return_dict=True)["accuracy"]
    return Result(f"Keras fit, {cores} cores", seconds, start_up, accuracy, by_seconds, by_samples)


def compile_once(net: keras.Model, x: Any, y: Any) -> None:
    """Let Keras trace its functions before the clock runs, as workers do, and undo the training."""
    net.optimizer.build(net.trainable_variables)
    state = [(v, v.numpy()) for v in (*net.variables, *net.optimizer.variables)]
    net.fit(x, y, batch_size=BATCH, verbose=0)
    net.evaluate(x, y, verbose=0)
    for variable, value in state:
        variable.assign(value)


class Batches(keras.callbacks.Callback):
    """Tells a reporter where the epoch is."""

    def __init__(self, progress: Reporter[Doing]) -> None:
        super().__init__()
        self._progress = progress

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Tell batch and loss."""
        loss = (logs or {}).get("loss", float("nan"))
        steps = self.params["steps"]
        self._progress.update(told=f"batch {batch + 1} of {steps}  loss {loss:.4g}")


def arrays(tiles: DataFrame) -> tuple[Any, Any]:
    """Bring tiles to the driver as arrays, scaled to 0..1, mixed once."""
    table = tiles.select("image", "label").toArrow()
    shape = tiles.schema["image"].metadata["distkeras_grid"]["shape"]
    pixels = np.frombuffer(b"".join(table["image"].to_pylist()), np.uint8).reshape(-1, *shape)
    order = np.random.default_rng(SEED).permutation(len(pixels))
    return pixels[order].astype(np.float32) / 255, table["label"].to_numpy()[order]
