"""A small net on a few rows, for tests of trainers on real Spark."""

from __future__ import annotations

import numpy as np

ROWS, WIDTH, CLASSES = 200, 6, 3


def build(optimizer="sgd", **compiled):
    import keras

    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    settings = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"], **compiled}
    model.compile(optimizer=optimizer, **settings)
    return model


def linear():
    """Build a net without a hidden layer that saturates, which would make large rows harmless."""
    import keras

    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((WIDTH,)), keras.layers.Dense(CLASSES, activation="softmax")]
    )
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def weights(model):
    return np.concatenate([w.ravel() for w in model.get_weights()])


def trained(name, model, data, /, *, train=None, **arguments):
    import distkeras_grid

    trainer = getattr(distkeras_grid, name)(model, progress=False, **arguments)
    trainer.train(data, **{"seed": 5, **(train or {})})
    return trainer
