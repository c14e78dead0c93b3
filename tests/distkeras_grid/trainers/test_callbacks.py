"""What the driver does beside the workers: validation, callbacks, measured statistics."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid import ADAG
from distkeras_grid.spark.launch import Launch
from tests.distkeras_grid.trainers.small import CLASSES, ROWS, WIDTH, build, trained, weights

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


@pytest.mark.slow
def test_a_changed_learning_rate_reaches_the_workers(frame):
    import keras

    centers = []

    class Freeze(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):  # noqa: ARG002
            self.model.optimizer.learning_rate = 1e-30
            centers.append(weights(self.model).copy())

    trained(
        "DOWNPOUR",
        build("sgd"),
        frame,
        num_workers=2,
        batch_size=4,
        num_epoch=100,
        train={"callbacks": [Freeze()]},
    )
    # Two workers do not wait for the callback: it takes some of these short epochs to arrive.
    np.testing.assert_array_equal(centers[-1], centers[-2])
    assert not np.array_equal(centers[0], centers[-1])


def scheduled():
    import keras

    return [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate if epoch < 2 else rate / 2),
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=0.01),
        keras.callbacks.EarlyStopping("loss", patience=3, min_delta=0.02),
    ]


def listener(of):
    """Return a callback that notes how it is called, but for the batches."""
    import keras

    class Listener(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.calls = []

    def note(name):
        def called(self, *told, logs=None):
            *numbers, logs = [*told] if logs is None and told else [*told, logs]
            self.calls.append((name, *numbers, sorted(logs or {})))

        return called

    for name in (f"on_{what}_{when}" for what in of for when in ("begin", "end")):
        setattr(Listener, name, note(name))
    return Listener()


def test_callbacks_act_between_two_epochs_as_in_fit(ordered, arrays):
    """Each epoch is one window, which takes a worker less time than the driver's callbacks."""
    listeners = [listener(["train", "epoch", "test"]) for _ in range(2)]
    model, theirs = build("adam"), build("adam")
    trainer = trained(
        "SingleTrainer",
        model,
        ordered,
        batch_size=50,
        num_epoch=30,
        train={
            "callbacks": [*scheduled(), listeners[0]],
            "shuffle": False,
            "validation_data": ordered,
        },
    )
    theirs.fit(
        *arrays,
        batch_size=50,
        epochs=30,
        shuffle=False,
        verbose=0,
        callbacks=[*scheduled(), listeners[1]],
        validation_data=arrays,
    )
    assert listeners[0].calls == listeners[1].calls
    assert listeners[0].params == listeners[1].params
    fit = theirs.history.history
    history = trainer.history.epochs()
    assert history["learning_rate"].tolist() == pytest.approx(fit["learning_rate"])
    assert 4 < len(history) < 30
    np.testing.assert_allclose(weights(trainer.model), weights(theirs), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("AveragingTrainer", {}),
        ("SynchronousSGD", {}),
        pytest.param("EASGD", {}, marks=pytest.mark.full),
    ],
)
def test_in_rounds_a_rate_rules_from_the_first_window_of_an_epoch_to_its_last(
    ordered, name, arguments
):
    """The rate is almost 0 from the second epoch on, and the center does not move any more."""
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
        **arguments,
        train={"callbacks": [rate, Watch()]},
    )
    assert trainer.history.epochs()["learning_rate"].tolist() == pytest.approx([0.1, 1e-30, 1e-30])
    np.testing.assert_allclose(seen[1], seen[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(seen[2], seen[0], rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["DOWNPOUR", pytest.param("AveragingTrainer", marks=pytest.mark.full)]
)
def test_recalibrated_statistics_are_those_of_all_rows(ordered, arrays, name):
    """The second normalization sees what the trained weights make of the rows."""
    import keras

    normalized = keras.layers.BatchNormalization
    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            normalized(name="first"),
            keras.layers.Dense(8, "tanh"),
            normalized(name="second"),
            keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    trainer = trained(
        name,
        model,
        ordered,
        num_workers=2,
        batch_size=25,
        num_epoch=3,
        statistics="recalibrate",
        train={"shuffle": False},
    )
    found = trainer.model
    x, _ = arrays
    means, variances = [], []
    for batch in x.reshape(8, 25, WIDTH):
        scaled = found.get_layer("first")(batch, training=True)
        seen = np.asarray(found.layers[1](scaled), float)
        means.append(seen.mean(axis=0))
        variances.append(seen.var(axis=0))
    second = trainer.model.get_layer("second")
    np.testing.assert_allclose(second.moving_mean, np.mean(means, axis=0), rtol=0, atol=1e-5)
    np.testing.assert_allclose(second.moving_variance, np.mean(variances, axis=0), rtol=1e-4)
    assert trainer.run["statistics"] == "recalibrate"


@pytest.mark.slow
def test_a_training_is_not_lost_when_its_statistics_cannot_be_measured(spark, frame, tmp_path):
    import shutil

    import keras

    class Remove(keras.callbacks.Callback):
        def on_train_end(self, logs=None):  # noqa: ARG002
            shutil.rmtree(tmp_path / "rows")

    frame.write.parquet(str(tmp_path / "rows"))
    trainer = trained(
        "ADAG",
        normalized_model(),
        str(tmp_path / "rows"),
        num_workers=2,
        statistics="recalibrate",
        train={"callbacks": [Remove()]},
    )
    assert trainer.model is not None
    assert np.abs(trainer.model.layers[0].moving_mean).max() > 0
    assert trainer.run["statistics"] == trainer.history.params["statistics"] == "average"


def normalized_model():
    import keras

    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


@pytest.mark.slow
def test_a_training_is_not_lost_when_its_statistics_take_too_long(frame, monkeypatch):
    monkeypatch.setattr("distkeras_grid.trainers.preparation.MEASURING_EPOCHS", -1e9)
    # A job this small may end before a longer wait does.
    monkeypatch.setattr("distkeras_grid.trainers.recalibration.POLL_SECONDS", 0)
    trainer = trained("ADAG", normalized_model(), frame, num_workers=2, statistics="recalibrate")
    assert np.abs(trainer.model.layers[0].moving_mean).max() > 0
    assert trainer.run["statistics"] == trainer.history.params["statistics"] == "average"


@pytest.mark.slow
def test_a_training_is_not_lost_when_the_measuring_of_its_statistics_is_interrupted(
    frame, monkeypatch
):
    class Interrupted(Launch):
        interrupted = False

        def wait(self, timeout):
            # The job has begun. A signal from a timer may come after it, and end the tests.
            if not self.interrupted:
                self.interrupted = True
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr("distkeras_grid.trainers.recalibration.Launch", Interrupted)
    trainer = ADAG(normalized_model(), num_workers=2, statistics="recalibrate", progress=False)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(frame)
    assert np.abs(trainer.model.layers[0].moving_mean).max() > 0
    assert trainer.run["statistics"] == trainer.history.params["statistics"] == "average"
    assert frame.count() == ROWS


@pytest.mark.full
def test_averaged_states_come_with_the_steps_in_which_they_became_so(ordered):
    import keras

    class StopAtOnce(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):  # noqa: ARG002
            self.steps = int(self.model.optimizer.iterations.numpy())
            self.model.stop_training = True

    stop = StopAtOnce()
    model = build("adam")
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(7)  # As of an earlier training.
    trainer = trained(
        "AveragingTrainer",
        model,
        ordered,
        num_workers=2,
        batch_size=10,
        num_epoch=50,
        communication_window=5,
        optimizer_state="average",
        train={"callbacks": [stop]},
    )
    assert stop.steps == 7 + 10
    assert int(trainer.model.optimizer.iterations.numpy()) == 7 + 10
