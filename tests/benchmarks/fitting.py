"""Keras' own ``fit``, timed as trainers are: without compiling and without evaluations."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.engine.keras_model import get_flat_weights
from distkeras_grid.weights import Vector

#: A point of a curve: samples trained, seconds of training, the flat weights.
Point = tuple[int, float, Vector]
# Batches by which Keras traces and compiles its step.
TRIAL_BATCHES = 20


def compile_ahead(model: Any, images: NDArray[Any], labels: NDArray[Any], batch: int) -> None:
    """Let ``fit`` trace its step for whole batches and for the last one, and undo the training."""
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    state = [np.asarray(variable).copy() for variable in variables]
    rows = TRIAL_BATCHES * batch + len(images) % batch
    model.fit(images[:rows], labels[:rows], batch, verbose=0)
    for variable, value in zip(variables, state, strict=True):
        variable.assign(value)


def timed_fit(
    model: Any,
    images: NDArray[Any],
    labels: NDArray[Any],
    *,
    batch: int,
    epochs: int,
    marks: int = 1,
) -> list[Point]:
    """Train by ``fit``; return a point for each of `marks` parts of each epoch.

    The clock stands still while weights are copied, and between an epoch's end and the next one's
    first batch: there TensorFlow drops the old iterator of the rows, and now and then waits for its
    tuning thread (tf.data), asleep for up to 17 s in epochs of 25 s (seen with 2.21 on two cores).
    That is neither training nor a thing that happens each time.
    """
    points: list[Point] = []
    steps = -(-len(images) // batch)
    inner = {steps * mark // marks for mark in range(1, marks)}
    keeper = _keeper(model, len(images), batch, inner, points)
    model.fit(images, labels, batch_size=batch, epochs=epochs, verbose=0, callbacks=[keeper])
    return points


def _keeper(model: Any, rows: int, batch: int, inner: set[int], points: list[Point]) -> Any:
    """Return a callback that adds a point before the steps `inner` and at each epoch's end.

    At a batch's begin, for Keras runs batch-end hooks in another thread where it can, and one of
    ours would keep it from that.
    """
    import keras

    class Keeper(keras.callbacks.Callback):  # type: ignore[misc]
        epoch = 0
        seconds = 0.0
        since = 0.0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            self.epoch = epoch

        def on_train_batch_begin(self, step: int, logs: Any = None) -> None:  # noqa: ARG002
            if step == 0:
                self.since = time.perf_counter()
            elif step in inner:
                self.keep(rows * self.epoch + step * batch)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            self.keep(rows * (epoch + 1))

        def keep(self, samples: int) -> None:
            self.seconds += time.perf_counter() - self.since
            points.append((samples, self.seconds, get_flat_weights(model)))
            self.since = time.perf_counter()

    return Keeper()
