# ruff: noqa: ARG002  (signatures are those of Keras)
"""What `fit` takes and a trainer refuses, in one line that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import layers, ops, optimizers

from tests.contracts.like_fit import (
    CLASSES,
    MISSING,
    ROWS,
    TARGET,
    Run,
    X,
    classifier,
    net,
    of_optimizer,
    regressor,
)


@dataclass(frozen=True)
class Refusal:
    # What a user brings, and what to do instead
    text: str
    remedy: str
    error: str  # Regular expression of the message
    run: Callable[[], Run]


class WarmUp(keras.callbacks.Callback):
    """Sets the rate before each batch."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1 / (batch + 1)


@keras.saving.register_keras_serializable("unlike_fit")
class Largest(keras.metrics.Metric):
    """The largest prediction so far, without its sign: a state that does not add."""

    def __init__(self, name: str = "largest", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.value = self.add_weight(name="value", shape=(), initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign(ops.maximum(self.value, ops.max(ops.abs(y_pred))))

    def result(self) -> Any:
        return self.value


class Scaled(layers.Layer):
    """A layer with an array as argument, and without `get_config`."""

    def __init__(self, table: np.ndarray) -> None:
        super().__init__()
        self.scale = float(table.sum())

    def call(self, inputs: Any) -> Any:
        return inputs * self.scale


def with_callback(callback: keras.callbacks.Callback) -> Run:
    return Run(regressor(), X, TARGET, callbacks=lambda: [callback])


def large_integers() -> Run:
    inner = [layers.Embedding(3, 2), layers.Flatten(), layers.Dense(1)]
    return Run(net(*inner, inputs=(2,), dtype="int32"), np.full((ROWS, 2), 2**40), TARGET)


def stateful_layer() -> Run:
    inner = [layers.LSTM(2, stateful=True), layers.Dense(1)]
    model = keras.Sequential([keras.Input(batch_shape=(14, 2, 2)), *inner])
    model.compile("sgd", "mse")
    return Run(model, X.reshape(ROWS, 2, 2), TARGET)


REFUSALS = [
    Refusal(
        "a column of texts",
        "`StringIndexer`, or the layer applied to the column",
        "StringIndexer",
        lambda: Run(regressor(), columns={"features": ["a"] * ROWS, "label": TARGET}),
    ),
    Refusal(
        "labels such as 0.5 for a sparse loss, which `fit` cuts to 0",
        "round them, or choose another loss",
        "integer labels",
        lambda: Run(classifier(), X, CLASSES + 0.5),
    ),
    Refusal(
        "labels of another shape than the output, which `fit` broadcasts",
        "`Reshape` at the end of the model, or another column",
        "output",
        lambda: Run(regressor(), X, np.stack([TARGET] * 5, axis=1)),
    ),
    Refusal(
        "NaN among the labels of a loss of Keras",
        "a loss of your own that masks NaN",
        "NaN",
        lambda: Run(net(layers.Dense(2)), X, MISSING),
    ),
    Refusal(
        "integers beyond 32 bits for an input of `int32`",
        '`Input(dtype="int64")`',
        "int32",
        large_integers,
    ),
    Refusal(
        "stateful recurrent layers, inputs of a fixed batch",
        "`stateful=False`",
        "stateful|batch",
        stateful_layer,
    ),
    Refusal(
        "`LearningRateScheduler` or `ReduceLROnPlateau` beside a schedule of the optimizer",
        "one of both",
        "schedule",
        lambda: of_optimizer(
            optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)),
            callbacks=lambda: [keras.callbacks.LearningRateScheduler(lambda _: 0.1)],
        ),
    ),
    Refusal(
        "a callback that sets the rate, stops or assigns in a method for batches",
        "a schedule of the optimizer",
        "WarmUp",
        lambda: with_callback(WarmUp()),
    ),
    Refusal(
        "`SwapEMAWeights`",
        "leave it out: the returned model has the averages",
        "SwapEMAWeights",
        lambda: of_optimizer(
            optimizers.SGD(0.1, use_ema=True),
            callbacks=lambda: [keras.callbacks.SwapEMAWeights()],
        ),
    ),
    Refusal(
        '`ModelCheckpoint("hdfs://...")`, which `fit` cannot write either',
        "a local path, or `trainer.save(uri)` after the run",
        "hdfs",
        lambda: with_callback(keras.callbacks.ModelCheckpoint("hdfs:///models/best.keras")),
    ),
    Refusal(
        "a metric of your own whose state does not add, such as a maximum",
        "compute it after the training, by `ModelPredictor`",
        "largest|Largest",
        lambda: Run(regressor(Largest()), X, TARGET),
    ),
    Refusal(
        "a class of your own whose arguments Keras cannot save",
        "`get_config()`, which returns them",
        "Scaled",
        lambda: Run(
            *(net(Scaled(np.ones(3)), layers.Dense(1)), X, TARGET),
            trainer={"custom_objects": {"Scaled": Scaled}},
        ),
    ),
]
