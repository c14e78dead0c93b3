"""What the driver does beside the workers: validation and callbacks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.distkeras_grid.trainers.small import build, trained, weights

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow]


def test_validation_and_callbacks_see_the_center_of_each_epoch(frame, tmp_path):
    import keras

    class Watch(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = []

        def on_epoch_end(self, epoch, logs=None):
            self.seen.append((epoch, logs, weights(self.model).copy()))

    watch = Watch()
    callbacks = [
        watch,
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="val_loss"),
        keras.callbacks.TensorBoard(tmp_path / "board"),
    ]
    trainer = trained(
        "ADAG",
        build("adam"),
        frame,
        num_workers=2,
        batch_size=8,
        num_epoch=3,
        train={"validation_data": frame, "callbacks": callbacks},
    )
    assert [epoch for epoch, _, _ in watch.seen] == [0, 1, 2]
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= set(watch.seen[0][1])
    assert not np.array_equal(watch.seen[0][2], watch.seen[2][2])
    np.testing.assert_array_equal(watch.seen[2][2], weights(trainer.model))
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 4
    assert (tmp_path / "best.keras").exists()
    assert list((tmp_path / "board").rglob("events*"))
