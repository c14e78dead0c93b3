"""A driver of its own: trains a model that is divided among devices while tasks die.

``python -m tests.faults.divided_job MASTER FOLDER KIND STRUCK`` with one of `KINDS`, and which
processes are killed: the ``master`` or the ``others``.
What came out is written to ``FOLDER/result.json``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from tests.faults.counting import at_epoch, kill
from tests.processes import processes

EPOCHS, ROWS, BATCH = 20, 128, 8
MICRO_BATCHES = 3


def split(loss, layers="all", **arguments):
    import keras

    from distkeras_grid import ConvolutionSplit

    keras.utils.set_random_seed(2)
    layers_of_model = [
        keras.Input((8, 8, 2)),
        keras.layers.Conv2D(6, 3, activation="relu", name="first"),
        keras.layers.Conv2D(4, 3, strides=2, padding="same", name="second"),
        keras.layers.Flatten(),
        keras.layers.Dense(3, activation="softmax"),
    ]
    model = keras.Sequential(layers_of_model)
    # With a larger rate, rounding alone leads to other weights after 320 steps.
    model.compile(keras.optimizers.SGD(0.005, momentum=0.9), loss)
    return ConvolutionSplit(model, num_workers=2, layers=layers, **arguments)


def placed(loss, **arguments):
    import keras

    from distkeras_grid import PlacedLayers

    keras.utils.set_random_seed(2)
    layers = [
        keras.Input((12,)),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.Dropout(0.2, seed=1, name="first"),
        keras.layers.Dense(8, activation="tanh"),
        keras.layers.Dropout(0.2, seed=2),
        keras.layers.Dense(3, activation="softmax"),
    ]
    model = keras.Sequential(layers)
    return PlacedLayers(
        model, "adam", loss, cuts=["first"], micro_batches=MICRO_BATCHES, **arguments
    )


def towers(loss, **arguments):
    import keras

    from distkeras_grid import Towers

    keras.utils.set_random_seed(2)
    both = []
    for seed, name in enumerate(("left", "right")):
        layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.2, seed=seed)]
        both.append(keras.Sequential([keras.Input((12,)), *layers], name=name))
    layers = [keras.Input((16,)), keras.layers.Dense(3, activation="softmax")]
    return Towers(both, keras.Sequential(layers, name="head"), "adam", loss, **arguments)


#: Of each kind the shape of a row, how often the loss is called in a batch, and the trainer.
KINDS = {
    "split": ((8, 8, 2), 1, split),
    # Dividing layers this small does not pay, so the other device ends before the training.
    "whole": ((8, 8, 2), 1, partial(split, layers="auto")),
    "placed": ((12,), MICRO_BATCHES, placed),
    "towers": ((12,), 1, towers),
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


def rows_of(spark, shape: tuple[int, ...]):
    """Return random rows of a shape, in one partition, so that their order is the same."""
    from distkeras_grid import Field

    x = np.random.default_rng(4).random((ROWS, *shape), np.float32)
    table = [(row.ravel().tolist(), number % 3) for number, row in enumerate(x)]
    data = spark.createDataFrame(table, "x array<float>, label int").coalesce(1)
    return data.withMetadata("x", Field("x", shape).to_metadata())


def run(spark, folder: Path, kind: str, struck: str) -> dict:
    """Train in peace, and then with a loss; return what distinguishes both, and what happened."""
    shape, calls, build = KINDS[kind]
    data = rows_of(spark, shape)
    killed: list[int] = []

    def harm():
        killed.extend(victims(folder, spark.sparkContext.applicationId, struck))
        for pid in killed:
            kill(pid)
        (folder / "go").touch()

    def train(*callbacks):
        # The master waits after half of the epochs.
        loss = master_loss(folder, EPOCHS // 2 * (ROWS // BATCH) * calls)
        trainer = build(
            loss,
            batch_size=BATCH,
            num_epoch=EPOCHS,
            features_col="x",
            custom_objects={"loss": loss},
            progress=False,
        )
        model = trainer.train(data, shuffle=False, seed=1, callbacks=list(callbacks))
        return model.get_weights(), trainer.history

    (folder / "go").touch()
    expected, _ = train()
    (folder / "go").unlink()
    weights, history = train(at_epoch(2, harm))
    pairs = list(pairwise(history.records))
    return {
        "largest_difference": max(
            float(np.abs(one - other).max()) for one, other in zip(expected, weights, strict=True)
        ),
        "samples": history.samples,
        "killed": len(killed),
        "attempts": len({record.attempt for record in history.records}),
        # From the start of the last window before the loss to that of the first one after it.
        "seconds": [b.started - a.started for a, b in pairs if a.attempt != b.attempt],
    }


def main(master: str, folder: str, kind: str, struck: str) -> None:
    from distkeras_grid.spark.session import build_session
    from tests.faults.train_job import DRIVER

    spark = build_session(kind, master=master, settings=DRIVER)
    found = run(spark, Path(folder), kind, struck)
    (Path(folder) / "result.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
