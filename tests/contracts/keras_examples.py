# ruff: noqa: ARG002  (signatures are those of Keras)
"""Official Keras examples whose form no case of `like_fit` has, written anew and small.

Layers, losses and steps are as there, names those of the pages on keras.io. Rows are synthetic.
Besides a DataFrame and ``custom_objects`` nothing is added for a trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras import layers, ops

ROWS = 96
random = np.random.default_rng(3)

NUMBERS = random.random((ROWS, 8)).astype("float32")
TARGET = NUMBERS.sum(axis=1)
SENTIMENT = random.integers(0, 2, ROWS)


@dataclass(frozen=True)
class Example:
    """One example."""

    model: keras.Model  # Compiled
    columns: Mapping[str, Any]  # Columns of the DataFrame
    # Arguments of the constructor, and of `train`
    trainer: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """A line of the table: the example's name and its function."""

    name: str
    build: Callable[[], Example]


EXAMPLES: list[Entry] = []


def example(name: str) -> Callable[[Callable[[], Example]], Callable[[], Example]]:
    """Add a function to the table."""

    def add(build: Callable[[], Example]) -> Callable[[], Example]:
        EXAMPLES.append(Entry(name, build))
        return build

    return add


def through(kind: type[keras.Model], **compiled: Any) -> keras.Model:
    inputs = keras.Input(shape=(8,))
    model = kind(inputs, layers.Dense(1)(inputs))
    model.compile(**compiled)
    return model


class WeightedModel(keras.Model):
    def train_step(self, data: Any) -> Any:
        import tensorflow as tf

        if len(data) == 3:
            x, y, sample_weight = data
        else:
            sample_weight = None
            x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred, sample_weight=sample_weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {m.name: m.result() for m in self.metrics}


@example("guides/custom_train_step_in_tensorflow, sample weights")
def step_with_sample_weights() -> Example:
    model = through(WeightedModel, optimizer="adam", loss="mse", metrics=["mae"])
    columns = {"features": NUMBERS, "label": TARGET, "weight": NUMBERS[:, 0] + 0.1}
    trainer = {"custom_objects": {"WeightedModel": WeightedModel}}
    return Example(model, columns, trainer, {"sample_weight_col": "weight"})


class SupervisedContrastiveLoss(keras.losses.Loss):
    def __init__(self, temperature: float = 1, name: str | None = None) -> None:
        super().__init__(name=name)
        self.temperature = temperature

    def __call__(self, labels: Any, feature_vectors: Any, sample_weight: Any = None) -> Any:
        labels = ops.reshape(labels, (-1, 1))
        vectors = keras.utils.normalize(feature_vectors, axis=1, order=2)
        logits = ops.divide(ops.matmul(vectors, ops.transpose(vectors)), self.temperature)
        same = ops.cast(ops.equal(labels, ops.transpose(labels)), "float32")
        logs = ops.log_softmax(logits, axis=1)
        return -ops.mean(ops.sum(same * logs, axis=1) / ops.sum(same, axis=1))

    def get_config(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "name": self.name}


@example("vision/supervised-contrastive-learning")
def supervised_contrastive() -> Example:
    inputs = keras.Input((8,))
    features = layers.Dense(6, activation="relu")(layers.Dropout(0.1)(inputs))
    model = keras.Model(inputs, layers.Dense(4, activation="relu")(features))
    model.compile(optimizer=keras.optimizers.Adam(0.001), loss=SupervisedContrastiveLoss(0.05))
    trainer = {"custom_objects": {"SupervisedContrastiveLoss": SupervisedContrastiveLoss}}
    return Example(model, {"features": NUMBERS, "label": SENTIMENT}, trainer)
