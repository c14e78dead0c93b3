"""The two nets of the benchmarks on Fashion-MNIST, and how each is best run on one core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CLASSES = 10


@dataclass(frozen=True)
class Net:
    """A net and what belongs to it."""

    title: str  # For the tables
    shape: tuple[int, ...]  # Shape of one image
    # XLA does well with dense layers, and on a CPU very badly with convolutions in a loop.
    jit: bool
    layers: Callable[[], list[Any]]

    def build(self, seed: int, steps_per_execution: int = 1) -> Any:
        """Return the compiled model with the initial weights of a seed."""
        import keras

        keras.utils.set_random_seed(seed)
        model = keras.Sequential([keras.Input(self.shape), *self.layers()])
        model.compile(
            optimizer="adam",
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
            steps_per_execution=steps_per_execution,
        )
        return model


def _dense_layers() -> list[Any]:
    from keras import layers

    return [
        layers.Dense(512, activation="relu"),
        layers.Dense(256, activation="relu"),
        layers.Dense(CLASSES, activation="softmax"),
    ]


def _convolutional_layers() -> list[Any]:
    from keras import layers

    return [
        layers.Conv2D(32, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(64, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(128, activation="relu"),
        layers.Dense(CLASSES, activation="softmax"),
    ]


NETS = {
    "mlp": Net("MLP 784-512-256-10", (784,), True, _dense_layers),
    "cnn": Net(
        "CNN conv32-pool-conv64-pool-dense128-10", (28, 28, 1), False, _convolutional_layers
    ),
}
