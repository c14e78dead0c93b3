"""What is said about callbacks before a run: no Spark, and no training."""

from __future__ import annotations

import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.trainers.callback_checks import check_callbacks
from tests.distkeras_grid.trainers.small import build

pytestmark = pytest.mark.tensorflow


def checked(*callbacks, optimizer="sgd"):
    return check_callbacks(callbacks, build(optimizer).optimizer)


def own(**methods):
    import keras

    return type("Mine", (keras.callbacks.Callback,), methods)()


def test_callbacks_for_epochs_are_taken_without_a_word(tmp_path):
    import keras

    of_keras = keras.callbacks
    assert not checked(
        of_keras.EarlyStopping("loss"),
        of_keras.ModelCheckpoint(tmp_path / "best.keras"),
        of_keras.TensorBoard(tmp_path),
        of_keras.CSVLogger(tmp_path / "log.csv"),
        of_keras.LearningRateScheduler(lambda _: 0.1),
        of_keras.ReduceLROnPlateau(),
        of_keras.TerminateOnNaN(),
        of_keras.LambdaCallback(on_epoch_end=print),
        own(on_epoch_end=lambda *_: None, on_test_batch_end=lambda *_: None),
    )


def test_what_is_not_called_is_named_in_one_line(tmp_path):
    import keras

    (line,) = checked(
        own(on_train_batch_end=lambda *_: None),
        keras.callbacks.ModelCheckpoint(tmp_path / "{batch}.keras", save_freq=10),
        keras.callbacks.TensorBoard(tmp_path, update_freq="batch"),
        keras.callbacks.LambdaCallback(on_train_batch_begin=print),
    )
    assert line == (
        "Not called, because workers train the batches: Mine.on_train_batch_end, "
        "ModelCheckpoint(save_freq=10), TensorBoard(update_freq=1), "
        "LambdaCallback.on_train_batch_begin. Callbacks act between epochs."
    )


def sets_rate(self, batch, logs=None):
    self.model.optimizer.learning_rate = 0.0


def assigns_rate(self, batch, logs=None):
    self.model.optimizer.learning_rate.assign(0.0)


def stops(self, batch, logs=None):
    self.model.stop_training = True


def calls_another(self, batch, logs=None):
    self.warm_up(batch)


def notes_rate(self, batch, logs=None):
    self.learning_rate = float(self.model.optimizer.learning_rate)


@pytest.mark.parametrize(
    ("methods", "change"),
    [
        ({"on_train_batch_begin": sets_rate}, "sets learning_rate"),
        ({"on_batch_end": assigns_rate}, "calls assign"),
        ({"on_train_batch_end": stops}, "sets stop_training"),
        ({"on_train_batch_begin": calls_another, "warm_up": sets_rate}, "sets learning_rate"),
    ],
)
def test_a_callback_that_changes_the_training_after_each_batch_is_refused(methods, change):
    with pytest.raises(ConfigurationError, match=rf"Mine\.on_\w+ changes the training \({change}"):
        checked(own(**methods))


def test_a_callback_that_only_notes_the_rate_is_named():
    assert len(checked(own(on_train_batch_end=notes_rate))) == 1


@pytest.mark.parametrize("name", ["LearningRateScheduler", "ReduceLROnPlateau"])
def test_a_rate_that_a_schedule_sets_is_not_set_by_a_callback(name):
    import keras

    arguments = [lambda _: 0.1] if name == "LearningRateScheduler" else []
    callback = getattr(keras.callbacks, name)(*arguments)
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    with pytest.raises(ConfigurationError, match=f"{name} sets the learning rate.* schedule"):
        checked(callback, optimizer=keras.optimizers.Adam(schedule))
    assert not checked(
        callback, optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    )


@pytest.mark.parametrize("scheme", ["hdfs", "webhdfs", "viewfs"])
def test_a_callback_that_writes_to_hadoop_is_refused_with_a_way_to_do_it(scheme):
    import keras

    path = f"{scheme}://master:8020/best.keras"
    with pytest.raises(ConfigurationError, match=rf"ModelCheckpoint .* filepath='{path}'.*upload"):
        checked(keras.callbacks.ModelCheckpoint(path))
    with pytest.raises(ConfigurationError, match="TensorBoard"):
        checked(keras.callbacks.TensorBoard(path))


def test_what_is_no_callback_is_refused():
    with pytest.raises(ConfigurationError, match="must be keras"):
        checked(print)
