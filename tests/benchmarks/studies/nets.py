"""The nets of a comparison: an MLP and a convolutional network."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from distkeras_grid.feeding.schema import Field


@dataclass(frozen=True)
class Net:
    """A net for images of any shape and number of classes."""

    title: str  # For tables and pictures
    flat: bool  # Whether it takes an image as one row of numbers
    layers: Callable[[int], list[Any]]  # Returns the layers for so many classes

    def field(self, field: Field) -> Field:
        """Return the image column in the shape that the net takes."""
        return replace(field, shape=(math.prod(field.shape),)) if self.flat else field

    def build(
        self,
        shape: tuple[int, ...],
        classes: int,
        seed: int,
        *,
        optimizer: Any = "adam",
        steps_per_execution: int = 1,
    ) -> Any:
        """Return the compiled model with the initial weights of a seed."""
        import keras

        keras.utils.set_random_seed(seed)
        model = keras.Sequential([keras.Input(shape), *self.layers(classes)])
        model.compile(
            optimizer=optimizer,
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
            steps_per_execution=steps_per_execution,
        )
        return model


def _dense_layers(classes: int) -> list[Any]:
    from keras import layers

    return [
        layers.Dense(512, activation="relu"),
        layers.Dense(256, activation="relu"),
        layers.Dense(classes, activation="softmax"),
    ]


def _convolutional_layers(classes: int) -> list[Any]:
    from keras import layers

    return [
        layers.Conv2D(32, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(64, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(128, activation="relu"),
        layers.Dense(classes, activation="softmax"),
    ]


NETS = {
    "mlp": Net("MLP 512-256", True, _dense_layers),
    "cnn": Net("CNN conv32-pool-conv64-pool-dense128", False, _convolutional_layers),
}
