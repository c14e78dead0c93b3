"""A device that dies in the middle of a run of `ConvolutionSplit`."""

from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest

from tests.faults.counting import at_epoch, kill, parent_pid

pytestmark = [pytest.mark.full, pytest.mark.faults, pytest.mark.spark, pytest.mark.tensorflow]

ROWS, EPOCHS = 128, 20


def network(folder):
    import keras

    def loss(y, predicted):
        from pyspark import TaskContext

        if TaskContext.get() is not None:
            (folder / "master").write_text(str(os.getpid()))
        return keras.losses.sparse_categorical_crossentropy(y, predicted)

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


def kill_devices(folder):
    """Kill the Python workers that Spark's daemon has beside the master's."""
    master = int((folder / "master").read_text())
    table = subprocess.check_output(["ps", "-eo", "pid=,ppid="], text=True)
    pairs = [tuple(map(int, line.split())) for line in table.splitlines()]
    others = [pid for pid, parent in pairs if parent == parent_pid(master) and pid != master]
    assert others
    for pid in others:
        kill(pid)


def test_a_killed_device_costs_nothing_but_its_help(spark, tmp_path):
    from distkeras_grid import ConvolutionSplit, Field

    random = np.random.default_rng(4)
    x, y = random.random((ROWS, 8, 8, 2), np.float32), np.arange(ROWS) % 3
    expected, _ = network(tmp_path)
    expected.fit(x, y, batch_size=8, epochs=EPOCHS, shuffle=False, verbose=0)
    table = [(row.ravel().tolist(), int(label)) for row, label in zip(x, y, strict=True)]
    data = spark.createDataFrame(table, "x array<float>, label int").coalesce(1)
    model, loss = network(tmp_path)
    split = ConvolutionSplit(
        model,
        num_workers=2,
        layers="all",
        batch_size=8,
        num_epoch=EPOCHS,
        features_col="x",
        custom_objects={"loss": loss},
        progress=False,
    )
    trained = split.train(
        data.withMetadata("x", Field("x", (8, 8, 2)).to_metadata()),
        shuffle=False,
        seed=1,
        callbacks=[at_epoch(2, lambda: kill_devices(tmp_path))],
    )
    for one, other in zip(expected.get_weights(), trained.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    assert split.history.samples == ROWS * EPOCHS
    assert any("Device 1 is lost" in line for line in split.run["devices"])
    # One attempt of the master trained all of it.
    assert {record.attempt for record in split.history.records} == {
        split.history.records[0].attempt
    }
