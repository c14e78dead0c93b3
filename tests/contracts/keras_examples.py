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
    predicts: bool = True  # Whether the model's `call` gives predictions; a GAN's does not
    output_col: str | list[str] = "prediction"  # Columns of the predictions


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


class GAN(keras.Model):
    def __init__(self, discriminator: Any, generator: Any, latent_dim: int) -> None:
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.latent_dim = latent_dim
        self.d_loss_tracker = keras.metrics.Mean(name="d_loss")
        self.g_loss_tracker = keras.metrics.Mean(name="g_loss")
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.built = True

    @property
    def metrics(self) -> list[Any]:
        return [self.d_loss_tracker, self.g_loss_tracker]

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    def train_step(self, real: Any) -> Any:
        import tensorflow as tf

        if isinstance(real, tuple):
            real = real[0]
        size = ops.shape(real)[0]
        latent = keras.random.normal((size, self.latent_dim), seed=self.seed_generator)
        combined = ops.concatenate([self.generator(latent), real], axis=0)
        labels = ops.concatenate([ops.ones((size, 1)), ops.zeros((size, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(combined))
        gradients = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply(gradients, self.discriminator.trainable_weights)
        latent = keras.random.normal((size, self.latent_dim), seed=self.seed_generator)
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(ops.zeros((size, 1)), self.discriminator(self.generator(latent)))
        gradients = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply(gradients, self.generator.trainable_weights)
        self.d_loss_tracker.update_state(d_loss)
        self.g_loss_tracker.update_state(g_loss)
        return {"d_loss": self.d_loss_tracker.result(), "g_loss": self.g_loss_tracker.result()}


@example("guides/custom_train_step_in_tensorflow, GAN")
def gan() -> Example:
    discriminator = keras.Sequential([keras.Input((8,)), layers.Dense(6, "relu"), layers.Dense(1)])
    generator = keras.Sequential([keras.Input((4,)), layers.Dense(6, "relu"), layers.Dense(8)])
    model = GAN(discriminator=discriminator, generator=generator, latent_dim=4)
    model.compile(
        d_optimizer=keras.optimizers.Adam(learning_rate=0.0003),
        g_optimizer=keras.optimizers.Adam(learning_rate=0.0003),
        loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
    )
    trainer = {"label_col": None, "custom_objects": {"GAN": GAN}}
    return Example(model, {"features": NUMBERS}, trainer, predicts=False)


class DistanceLayer(layers.Layer):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def call(self, anchor: Any, positive: Any, negative: Any) -> Any:
        near = ops.sum(ops.square(anchor - positive), -1)
        far = ops.sum(ops.square(anchor - negative), -1)
        return near, far


class SiameseModel(keras.Model):
    def __init__(self, siamese_network: Any, margin: float = 0.5) -> None:
        super().__init__()
        self.siamese_network = siamese_network
        self.margin = margin
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs: Any) -> Any:
        return self.siamese_network(inputs)

    def train_step(self, data: Any) -> Any:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = self._compute_loss(data)
        gradients = tape.gradient(loss, self.siamese_network.trainable_weights)
        self.optimizer.apply_gradients(
            zip(gradients, self.siamese_network.trainable_weights, strict=True)
        )
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def _compute_loss(self, data: Any) -> Any:
        near, far = self.siamese_network(data)
        return ops.maximum(near - far + self.margin, 0.0)

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker]


@example("vision/siamese_network")
def siamese() -> Example:
    embedding = keras.Sequential([keras.Input((8,)), layers.Dense(4, "relu"), layers.Dense(4)])
    names = ("anchor", "positive", "negative")
    inputs = [layers.Input(name=name, shape=(8,)) for name in names]
    distances = DistanceLayer()(*map(embedding, inputs))
    model = SiameseModel(keras.Model(inputs=inputs, outputs=distances))
    model.compile(optimizer=keras.optimizers.Adam(0.0001))
    columns = {
        "anchor": NUMBERS,
        "positive": NUMBERS[::-1].copy(),
        "negative": NUMBERS[:, ::-1].copy(),
    }
    trainer = {
        "features_col": list(names),
        "label_col": None,
        "custom_objects": {"SiameseModel": SiameseModel, "DistanceLayer": DistanceLayer},
    }
    return Example(model, columns, trainer, output_col=["prediction_near", "prediction_far"])


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
