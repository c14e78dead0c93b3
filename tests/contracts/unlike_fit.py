# ruff: noqa: ARG002  (signatures are those of Keras)
"""What `fit` takes and a trainer refuses, in one line that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from tests.contracts.like_fit import (
    CLASSES,
    MISSING,
    ROWS,
    TARGET,
    Run,
    X,
    classifier,
    net,
    regressor,
)


@dataclass(frozen=True)
class Refusal:
    """A row of the guide's table."""

    text: str  # What a user brings, and what to do instead
    remedy: str  # What a user brings, and what to do instead
    run: Callable[[], Run]  # Returns the `Run`
    error: str  # Regular expression of the message


REFUSALS: list[Refusal] = []


def refused(text: str, error: str, remedy: str) -> Callable[[Callable[[], Run]], Callable[[], Run]]:
    """Add a function that returns a `Run` to the table."""

    def add(run: Callable[[], Run]) -> Callable[[], Run]:
        REFUSALS.append(Refusal(text, remedy, run, error))
        return run

    return add


@refused(
    "a column of texts", "StringIndexer", "`StringIndexer`, or the layer applied to the column"
)
def texts() -> Run:
    return Run(regressor(), columns={"features": ["a"] * ROWS, "label": TARGET})


@refused(
    "labels such as 0.5 for a sparse loss, which `fit` cuts to 0",
    "integer labels",
    "round them, or choose another loss",
)
def fractions_as_classes() -> Run:
    return Run(classifier(), X, CLASSES + 0.5)


@refused(
    "labels of another shape than the output, which `fit` broadcasts",
    r"output",
    "`Reshape` at the end of the model, or another column",
)
def labels_of_another_shape() -> Run:
    return Run(regressor(), X, np.stack([TARGET] * 5, axis=1))


@refused("NaN among the labels of a loss of Keras", "NaN", "a loss of your own that masks NaN")
def missing_labels_of_a_loss_of_keras() -> Run:
    return Run(net(layers.Dense(2)), X, MISSING)


@refused(
    "integers beyond 32 bits for an input of `int32`",
    "int32",
    '`Input(dtype="int64")`',
)
def large_integers_for_a_small_input() -> Run:
    inputs = [layers.Embedding(3, 2), layers.Flatten(), layers.Dense(1)]
    large = np.full((ROWS, 2), 2**40)
    return Run(net(*inputs, inputs=(2,), dtype="int32"), large, TARGET)


@refused(
    "stateful recurrent layers, inputs of a fixed batch",
    "stateful|batch",
    "`stateful=False`",
)
def stateful_layer() -> Run:
    model = keras.Sequential(
        [keras.Input(batch_shape=(14, 2, 2)), layers.LSTM(2, stateful=True), layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    return Run(model, X.reshape(ROWS, 2, 2), TARGET)


@refused(
    "`LearningRateScheduler` or `ReduceLROnPlateau` beside a schedule of the optimizer",
    "schedule",
    "one of both",
)
def scheduler_beside_a_schedule() -> Run:
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    model = regressor(optimizer=keras.optimizers.SGD(rate))
    scheduler = keras.callbacks.LearningRateScheduler(lambda _: 0.1)
    return Run(model, X, TARGET, callbacks=lambda: [scheduler])


class WarmUp(keras.callbacks.Callback):
    """Sets the rate before each batch."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate."""
        self.model.optimizer.learning_rate = 0.1 / (batch + 1)


@refused(
    "a callback that sets the rate, stops or assigns in a method for batches",
    "WarmUp",
    "a schedule of the optimizer",
)
def rate_of_each_batch() -> Run:
    return Run(regressor(), X, TARGET, callbacks=lambda: [WarmUp()])


@refused("`SwapEMAWeights`", "SwapEMAWeights", "leave it out: the returned model has the averages")
def swapped_averages() -> Run:
    model = regressor(optimizer=keras.optimizers.SGD(0.1, use_ema=True))
    return Run(model, X, TARGET, callbacks=lambda: [keras.callbacks.SwapEMAWeights()])


@refused(
    '`ModelCheckpoint("hdfs://...")`, which `fit` cannot write either',
    "hdfs",
    "a local path, or `trainer.save(uri)` after the run",
)
def checkpoint_on_hdfs() -> Run:
    checkpoint = keras.callbacks.ModelCheckpoint("hdfs:///models/best.keras")
    return Run(regressor(), X, TARGET, callbacks=lambda: [checkpoint])


@keras.saving.register_keras_serializable("unlike_fit")
class Largest(keras.metrics.Metric):
    """The largest prediction so far, without its sign: a state that does not add."""

    def __init__(self, name: str = "largest", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.value = self.add_weight(name="value", shape=(), initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Take a batch."""
        self.value.assign(ops.maximum(self.value, ops.max(ops.abs(y_pred))))

    def result(self) -> Any:
        """Return the largest."""
        return self.value


@refused(
    "a metric of your own whose state does not add, such as a maximum",
    "largest|Largest",
    "compute it after the training, by `ModelPredictor`",
)
def metric_that_does_not_add() -> Run:
    return Run(regressor(Largest()), X, TARGET)


class Scaled(layers.Layer):
    """A layer with an array as argument, and without `get_config`."""

    def __init__(self, table: np.ndarray) -> None:
        super().__init__()
        self.scale = float(table.sum())

    def call(self, inputs: Any) -> Any:
        """Return the scaled inputs."""
        return inputs * self.scale


@refused(
    "a class of your own whose arguments Keras cannot save",
    "Scaled",
    "`get_config()`, which returns them",
)
def layer_without_config() -> Run:
    model = net(Scaled(np.ones(3)), layers.Dense(1))
    return Run(model, X, TARGET, trainer={"custom_objects": {"Scaled": Scaled}})
