"""A driver of its own: trains a model that is divided among devices while tasks die.

``python -m tests.faults.divided_job MASTER FOLDER SETTINGS`` with the settings as JSON: the kind
(one of `KINDS`), and which processes are killed: the ``"master"`` or the ``"others"``.
What came out is written to ``FOLDER/result.json``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.counting import at_epoch, kill
from tests.processes import processes

EPOCHS, ROWS, BATCH = 20, 128, 8
MICRO_BATCHES = 3


@dataclass(frozen=True)
class Kind:
    """A model and the trainer that divides it.

    Parameters
    ----------
    shape : tuple of int
        Shape of the features of a row.
    calls : int
        How often the loss is called in a batch.
    whole : callable
        Returns the model in one piece, compiled with a loss.
    divided : callable
        Returns the trainer, with a loss and the arguments that all trainers have.
    """

    shape: tuple[int, ...]
    calls: int
    whole: Callable[[Any], Any]
    divided: Callable[..., Any]


def convolutions(loss):
    import keras

    keras.utils.set_random_seed(2)
    layers = [
        keras.Input((8, 8, 2)),
        keras.layers.Conv2D(6, 3, activation="relu", name="first"),
        keras.layers.Conv2D(4, 3, strides=2, padding="same", name="second"),
        keras.layers.Flatten(),
        keras.layers.Dense(3, activation="softmax"),
    ]
    model = keras.Sequential(layers)
    # With a larger rate, rounding alone leads to other weights after 320 steps.
    model.compile(keras.optimizers.SGD(0.02), loss)
    return model


def split(loss, layers="all", **arguments):
    from distkeras_grid import ConvolutionSplit

    model = convolutions(loss)
    return ConvolutionSplit(model, num_workers=2, layers=layers, **arguments)


def dense_layers(loss):
    import keras

    keras.utils.set_random_seed(2)
    layers = [
        keras.Input((12,)),
        keras.layers.Dense(16, activation="relu", name="first"),
        keras.layers.Dense(8, activation="tanh", name="second"),
        keras.layers.Dense(3, activation="softmax", name="third"),
    ]
    model = keras.Sequential(layers)
    model.compile(plain_sgd(), loss)
    return model


def placed(loss, **arguments):
    from distkeras_grid import PlacedLayers

    model = dense_layers(loss)
    return PlacedLayers(model, cuts=["first"], micro_batches=MICRO_BATCHES, **arguments)


def two_towers():
    import keras

    keras.utils.set_random_seed(2)
    towers = [
        keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, "tanh")], name=name)
        for name in ("left", "right")
    ]
    head = [keras.Input((16,)), keras.layers.Dense(3, activation="softmax")]
    return towers, keras.Sequential(head, name="head")


def stacked_towers(loss):
    from distkeras_grid.model_parallel.tower_model import stack

    model = stack(*two_towers())
    model.compile(plain_sgd(), loss)
    return model


def towers(loss, **arguments):
    from distkeras_grid import Towers

    return Towers(*two_towers(), plain_sgd(), loss, **arguments)


def plain_sgd():
    """Without momentum, so that the weights are all there is to go on from."""
    import keras

    return keras.optimizers.SGD(0.05)


KINDS = {
    "split": Kind((8, 8, 2), 1, convolutions, split),
    # Dividing layers this small does not pay, so the other device ends before the training.
    "whole": Kind((8, 8, 2), 1, convolutions, partial(split, layers="auto")),
    "placed": Kind((12,), MICRO_BATCHES, dense_layers, placed),
    "towers": Kind((12,), 1, stacked_towers, towers),
}


def master_loss(folder: Path, calls: int):
    """Return a loss that notes its process, and waits for ``folder / "go"`` from that call on.

    Without the latch, two seconds of training may be over before the driver hears of an epoch.
    """

    def loss(y, predicted):
        import keras
        import tensorflow as tf
        from pyspark import TaskContext

        losses = keras.losses.sparse_categorical_crossentropy(y, predicted)
        if TaskContext.get() is None:
            return losses
        (folder / "master").write_text(str(os.getpid()))
        called: list[None] = []

        def hold():
            called.append(None)
            deadline = time.monotonic() + 60
            while len(called) > calls and not (folder / "go").exists():
                if time.monotonic() > deadline:
                    raise TimeoutError("the driver has not let the master go on")
                time.sleep(0.01)

        with tf.control_dependencies([tf.py_function(hold, [], [])]):
            return tf.identity(losses)

    return loss


def victims(folder: Path, application: str, struck: str) -> list[int]:
    """Python processes of an application's executors: the master's, or all others."""
    master = int((folder / "master").read_text())
    if struck == "master":
        return [master]
    table = processes()
    children = {pid: parent for pid, parent, _ in table}
    executors = {pid for pid, _, command in table if f"--app-id {application}" in command}
    daemons = {pid for pid, parent in children.items() if parent in executors}
    return [pid for pid, parent in children.items() if parent in daemons and pid != master]


def run(spark, folder: Path, kind: Kind, struck: str) -> dict:
    """Train by ``fit`` and by the trainer; return what distinguishes them, and what happened."""
    from distkeras_grid import Field

    random = np.random.default_rng(4)
    x, y = random.random((ROWS, *kind.shape), np.float32), np.arange(ROWS) % 3
    # The master waits after half of the epochs.
    loss = partial(master_loss, folder, EPOCHS // 2 * (ROWS // BATCH) * kind.calls)
    expected = kind.whole(loss())
    expected.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0)
    table = [(row.ravel().tolist(), int(label)) for row, label in zip(x, y, strict=True)]
    data = spark.createDataFrame(table, "x array<float>, label int").coalesce(1)
    own = loss()
    trainer = kind.divided(
        own,
        batch_size=BATCH,
        num_epoch=EPOCHS,
        features_col="x",
        custom_objects={"loss": own},
        progress=False,
    )
    killed: list[int] = []

    def harm():
        killed.extend(victims(folder, spark.sparkContext.applicationId, struck))
        for pid in killed:
            kill(pid)
        (folder / "go").touch()

    trained = trainer.train(
        data.withMetadata("x", Field("x", kind.shape).to_metadata()),
        shuffle=False,
        seed=1,
        callbacks=[at_epoch(2, harm)],
    )
    pairs = zip(expected.get_weights(), trained.get_weights(), strict=True)
    return {
        "largest_difference": max(float(np.abs(one - other).max()) for one, other in pairs),
        "samples": trainer.history.samples,
        "killed": len(killed),
        "attempts": len({record.attempt for record in trainer.history.records}),
    }


def main(master: str, folder: str, text: str) -> None:
    from distkeras_grid.spark.session import build_session
    from tests.faults.train_job import DRIVER

    settings = json.loads(text)
    kind = settings["kind"]
    spark = build_session(kind, master=master, settings=DRIVER)
    found = run(spark, Path(folder), KINDS[kind], settings["struck"])
    (Path(folder) / "result.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
