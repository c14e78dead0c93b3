"""Runs that are interrupted and go on from their checkpoints, on real Spark."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid import AveragingTrainer, SingleTrainer
from distkeras_grid.errors import ConfigurationError, OutputExistsError
from tests.distkeras_grid.trainers.small import CLASSES, WIDTH, weights

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow]

EPOCHS = 20


def build(seed=2):
    """A net with everything that a center does not have: moments, generators, statistics.

    Without a seed of its own, dropout is another one in each run: Keras does not save it.
    """
    import keras

    keras.utils.set_random_seed(seed)
    layers = [
        keras.Input((WIDTH,)),
        keras.layers.Dense(8, activation="tanh"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3, seed=4),
        keras.layers.Dense(CLASSES, activation="softmax"),
    ]
    model = keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def failing(epoch):
    import keras

    def fail(number, _):
        if number == epoch:
            raise KeyboardInterrupt

    return keras.callbacks.LambdaCallback(on_epoch_end=fail)


def trainer_of(kind, folder=None, model=None, **arguments):
    saving = {} if folder is None else {"checkpoint_dir": str(folder), "resume": "auto"}
    settings = {"batch_size": 8, "num_epoch": EPOCHS, "progress": False, **saving, **arguments}
    return kind(model or build(), **settings)


def resumed(trainer):
    return [record for record in trainer.history.workers if record.status == "continued"]


@pytest.mark.parametrize(
    ("kind", "workers"),
    [(SingleTrainer, 1), pytest.param(AveragingTrainer, 2, marks=pytest.mark.full)],
)
def test_an_interrupted_run_goes_on_bit_for_bit(frame, tmp_path, kind, workers):
    options = {"num_workers": workers, "communication_window": 1}
    undisturbed = trainer_of(kind, **options)
    undisturbed.train(frame, seed=1, callbacks=[failing(99)])
    first = trainer_of(kind, tmp_path / "checkpoints", **options)
    with pytest.raises(KeyboardInterrupt) as interrupt:
        first.train(frame, seed=1, callbacks=[failing(1)])
    assert not hasattr(interrupt.value, "__notes__"), interrupt.value.__notes__
    assert list((tmp_path / "checkpoints").glob("checkpoint-*"))
    # The model of the moment, and the history up to it.
    assert first.model is not None
    assert len(first.history.epoch_records) >= 2
    # Another process would draw other initial weights, and other seeds of its layers.
    second = trainer_of(kind, tmp_path / "checkpoints", build(seed=77), **options)
    second.train(frame, callbacks=[failing(99)])
    np.testing.assert_array_equal(weights(second.model), weights(undisturbed.model))
    assert second.history.samples == undisturbed.history.samples
    assert second.history.history["loss"] == undisturbed.history.history["loss"]
    continued = resumed(second)
    assert {record.worker for record in continued} == set(range(workers))
    assert all(record.windows == record.state_windows for record in continued)
    assert 0 < second.run["resumed"][0]["samples"] <= first.history.samples
    # The run is complete, so that going on changes nothing.
    third = trainer_of(kind, tmp_path / "checkpoints", **options)
    third.train(frame, callbacks=[failing(99)])
    np.testing.assert_array_equal(weights(third.model), weights(undisturbed.model))
    refuse_others(frame, tmp_path / "checkpoints", kind, options)


def refuse_others(frame, folder, kind, options):
    """A folder of checkpoints is for one run only."""
    with pytest.raises(OutputExistsError):
        trainer_of(kind, folder, resume=None, **options).train(frame)
    with pytest.raises(ConfigurationError):
        trainer_of(kind, folder, **{**options, "batch_size": 4}).train(frame)
    with pytest.raises(ConfigurationError):
        trainer_of(kind, folder, **options).train(frame, seed=2)
    with pytest.raises(ConfigurationError):
        trainer_of(kind, folder, **options).train(frame, callbacks=[])
