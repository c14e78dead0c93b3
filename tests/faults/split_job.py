"""A driver of its own: trains with `ConvolutionSplit` while, if asked, the device is killed.

``python -m tests.faults.split_job MASTER FOLDER SETTINGS`` with the settings as JSON; what came out
is written to ``FOLDER/result.json``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from tests.faults.counting import at_epoch, kill
from tests.processes import processes

ROWS, BATCH = 128, 8


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


def network(folder: Path):
    import keras

    # Of the 20 epochs of 16 batches, half.
    loss = master_loss(folder, calls=160)
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
    model.compile(keras.optimizers.SGD(0.02, momentum=0.9), loss)
    return model, loss


def python_workers(folder: Path, application: str) -> list[int]:
    """Python processes that the executors of an application have beside the master's."""
    master = int((folder / "master").read_text())
    table = processes()
    children = {pid: parent for pid, parent, _ in table}
    executors = {pid for pid, _, command in table if f"--app-id {application}" in command}
    daemons = {pid for pid, parent in children.items() if parent in executors}
    return [pid for pid, parent in children.items() if parent in daemons and pid != master]


def run(spark, folder: Path, epochs: int, *, disturbed: bool) -> dict:
    from distkeras_grid import ConvolutionSplit, Field

    random = np.random.default_rng(4)
    x, y = random.random((ROWS, 8, 8, 2), np.float32), np.arange(ROWS) % 3
    expected, _ = network(folder)
    expected.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)
    table = [(row.ravel().tolist(), int(label)) for row, label in zip(x, y, strict=True)]
    data = spark.createDataFrame(table, "x array<float>, label int").coalesce(1)
    model, loss = network(folder)
    split = ConvolutionSplit(
        model,
        num_workers=2,
        layers="all",
        batch_size=BATCH,
        num_epoch=epochs,
        features_col="x",
        custom_objects={"loss": loss},
        progress=False,
    )
    killed: list[int] = []

    def harm():
        killed.extend(python_workers(folder, spark.sparkContext.applicationId))
        for pid in killed:
            kill(pid)
        (folder / "go").touch()

    if not disturbed:
        (folder / "go").touch()
    trained = split.train(
        data.withMetadata("x", Field("x", (8, 8, 2)).to_metadata()),
        shuffle=False,
        seed=1,
        callbacks=[at_epoch(2, harm)] if disturbed else [],
    )
    pairs = zip(expected.get_weights(), trained.get_weights(), strict=True)
    return {
        "largest_difference": max(float(np.abs(one - other).max()) for one, other in pairs),
        "samples": split.history.samples,
        "killed": len(killed),
        "told": split.run["devices"],
        "shares": split.run["shares"],
        "attempts": len({record.attempt for record in split.history.records}),
    }


def main(master: str, folder: str, text: str) -> None:
    from distkeras_grid.spark.session import build_session
    from tests.faults.train_job import DRIVER

    settings = json.loads(text)
    spark = build_session("split", master=master, settings=DRIVER)
    found = run(spark, Path(folder), settings["epochs"], disturbed=settings["disturbed"])
    (Path(folder) / "result.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
