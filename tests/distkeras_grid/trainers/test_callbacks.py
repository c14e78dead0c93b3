"""What the driver does beside the workers: validation and callbacks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.distkeras_grid.trainers.small import ROWS, build, trained, weights

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


@pytest.mark.full
def test_early_stopping_stops_the_workers_and_keeps_the_best_weights(frame):
    import keras

    class StopAfterTwo(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):  # noqa: ARG002
            self.kept = weights(self.model).copy()
            if epoch == 1:
                self.model.stop_training = True

    stop = StopAfterTwo()
    trainer = trained(
        "ADAG",
        build("adam"),
        frame,
        num_workers=2,
        batch_size=4,
        num_epoch=500,
        train={"callbacks": [stop]},
    )
    assert len(trainer.history.epoch_records) == 2
    # All that is told ends with the epoch in which the callback stopped.
    last = trainer.history.epoch_records[-1]
    assert trainer.history.samples == last.samples < ROWS * 500
    assert max(record.version for record in trainer.history.records) == last.version
    np.testing.assert_array_equal(weights(trainer.model), stop.kept)


@pytest.mark.full
@pytest.mark.parametrize("name", ["AveragingTrainer", "SynchronousSGD"])
def test_in_rounds_a_rate_rules_from_the_first_window_of_an_epoch_to_its_last(ordered, name):
    """The rate is almost 0 from the second epoch on, and the center does not move any more.

    That of EASGD does: workers pull it towards their own weights, whatever the rate is.
    """
    import keras

    seen = []

    class Watch(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):  # noqa: ARG002
            seen.append(weights(self.model).copy())

    rate = keras.callbacks.LearningRateScheduler(lambda epoch: 1e-30 if epoch else 0.1)
    trainer = trained(
        name,
        build("sgd"),
        ordered,
        num_workers=2,
        batch_size=50,
        num_epoch=3,
        communication_window=1,
        train={"callbacks": [rate, Watch()]},
    )
    assert trainer.history.epochs()["learning_rate"].tolist() == pytest.approx([0.1, 1e-30, 1e-30])
    np.testing.assert_allclose(seen[1], seen[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(seen[2], seen[0], rtol=0, atol=1e-6)
