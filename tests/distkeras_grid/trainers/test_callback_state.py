import msgspec
import numpy as np
import pytest

from distkeras_grid.array_tree import pack, unpack
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rules import SequentialRule
from distkeras_grid.trainers.callback_state import callback_states, restore_callbacks


class Stop:
    def __init__(self):
        self.on_train_begin()
        self.monitor_op, self.file, self.params = max, open, {"epochs": 3}

    def on_train_begin(self):
        self.wait, self.best, self.kept, self.cell = 0, None, None, None


class Other(Stop):
    pass


def saved(*callbacks):
    states = unpack(pack({"callbacks": callback_states(callbacks)}))["callbacks"]
    return [(state["kind"], state["attributes"]) for state in states]


def test_what_a_callback_remembers_comes_back_after_it_has_begun():
    stop = Stop()
    stop.wait, stop.best = np.int64(3), np.float32(0.5)
    stop.kept, stop.cell = [np.ones(2), np.zeros((1, 2))], {"a": [1.5, float("inf")]}
    states = saved(stop)
    assert "monitor_op" not in states[0][1]
    assert "params" not in states[0][1]
    again = Stop()
    again.on_train_begin()
    restore_callbacks([again], states)
    assert (again.wait, again.best, again.cell) == (3, 0.5, stop.cell)
    np.testing.assert_array_equal(again.kept[1], stop.kept[1])
    assert again.monitor_op is max
    # What it changes is its own.
    again.kept[0][:] = 5
    np.testing.assert_array_equal(states[0][1]["kept"][0], 1)


def test_what_is_no_plain_value_is_left_as_it_is():
    stop = Stop()
    stop.kept, stop.cell = [np.ones(2), object()], {1: 2}
    attributes = callback_states([stop])[0]["attributes"]
    assert sorted(attributes) == ["best", "wait"]


@pytest.mark.parametrize("given", [[], [Other()], [Stop(), Stop()]])
def test_other_callbacks_are_refused(given):
    with pytest.raises(ConfigurationError):
        restore_callbacks(given, saved(Stop()))


LOSSES = [1.0, 0.5, 0.6, 0.7, 0.55, 0.8, 0.9, 0.95, 0.9, 1.0]


class Driver:
    """An observer of epochs with Keras' own callbacks, as a driver has it."""

    def __init__(self, history=None, observer=None, callbacks=None):
        import keras

        from distkeras_grid.engine.keras_model import get_flat_weights, weight_layout
        from distkeras_grid.history import History
        from distkeras_grid.trainers.callbacks import CallbackRunner
        from tests.distkeras_grid.trainers.small import build

        self.model, self.history = build(keras.optimizers.SGD(0.5)), history or History()
        early = keras.callbacks.EarlyStopping("loss", patience=4, restore_best_weights=True)
        reduce = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=2)
        layout = weight_layout(self.model)
        self.weights = get_flat_weights(self.model)
        self.observer = CallbackRunner(
            *(self.model, self.history, callbacks or [early, reduce], None, len(LOSSES), 1),
            *(layout, SequentialRule()),
        )
        self.told = [self.observer.begin(observer)]

    def epochs(self, *numbers):
        from distkeras_grid.records import EpochEnded
        from tests.distkeras_grid.trainers.test_run import window

        for number in numbers:
            rate = float(self.model.optimizer.learning_rate)
            told = {"loss": LOSSES[number - 1], "learning_rate": rate}
            self.history.add(msgspec.structs.replace(window(number, samples=10), **told))
            ended = EpochEnded(number, number, 10 * number, float(number))
            _, steering = self.observer(ended, self.weights + number)
            self.told.append(steering)
            if steering.stop:
                return number
        return None

    def saved(self):
        from distkeras_grid.trainers.checkpoint_writer import SavedDriver

        tree = {"observer": self.observer.to_saved(), "resumed": []}
        return SavedDriver.from_bytes(pack(tree).tobytes()).observer


@pytest.mark.tensorflow
@pytest.mark.parametrize("at", [1, 3, 5])
def test_keras_callbacks_decide_after_a_checkpoint_as_they_would_have(at):
    whole = Driver()
    stopped = whole.epochs(*range(1, 11))
    assert stopped is not None
    first = Driver()
    first.epochs(*range(1, at + 1))
    second = Driver(first.history, first.saved())
    assert second.epochs(*range(at + 1, 11)) == stopped
    assert second.told[1:] == whole.told[1 + at :]
    # A server of a checkpoint may not have been told of the rate.
    assert second.told[0].learning_rate == second.history.epoch_records[at].learning_rate
    rates = [record.learning_rate for record in whole.history.epoch_records]
    assert len(set(rates)) > 1
    assert [record.learning_rate for record in second.history.epoch_records] == rates
    for mine, theirs in zip(second.model.get_weights(), whole.model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def halving():
    import keras

    return keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2 if epoch else rate)


class Interrupts:
    """Made a callback below: is interrupted at the end of an epoch."""

    def on_epoch_end(self, epoch, logs=None):  # noqa: ARG002
        if epoch == self.at:
            self.at = None
            raise KeyboardInterrupt


@pytest.mark.tensorflow
@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("at", [1, 3])
def test_an_epoch_that_begins_again_has_the_rate_that_it_began_with(at, interrupted):
    """Also if the run was saved between two epochs, because a callback was interrupted there."""
    import keras

    class Interrupting(Interrupts, keras.callbacks.Callback):
        pass

    def callbacks(at=None):
        found = [halving(), Interrupting()]
        found[1].at = at
        return found

    first = Driver(callbacks=callbacks(at - 1 if interrupted else None))
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            first.epochs(*range(1, at + 1))
    else:
        first.epochs(*range(1, at + 1))
    second = Driver(first.history, first.saved(), callbacks())
    second.epochs(*range(at + 1, 6))
    rates = [record.learning_rate for record in second.history.epoch_records]
    assert rates == [0.5 / 2**epoch for epoch in range(5)]
