from __future__ import annotations

import os
import time
from functools import partial

import numpy as np
import pytest

from distkeras_grid.errors import TrainingError
from distkeras_grid.feeding.schema import Field
from tests.benchmarks.studies.cells import LOCAL, Cell
from tests.benchmarks.studies.data import IMAGES_FILE, LABELS_FILE, scaled_arrays
from tests.benchmarks.studies.fitting import compile_ahead, timed_fit
from tests.benchmarks.studies.nets import NETS
from tests.benchmarks.studies.processes import Side


def test_calls_are_answered_in_another_process():
    with Side(partial(dict, a=1), {"DKG_TEST": "seen"}) as side:
        side.ask("get", "a")
        assert side.answer(30) == 1
        side.ask("get", "b", 2)
        assert side.answer(30) == 2
        assert 0 < side.start_seconds < 60
    assert "DKG_TEST" not in os.environ


def test_the_environment_is_set_before_the_object_is_built():
    with Side(partial(os.getenv, "DKG_TEST"), {"DKG_TEST": "seen"}) as side:
        side.ask("upper")
        assert side.answer(30) == "SEEN"


def test_an_error_there_is_an_error_here():
    with (
        pytest.raises(TrainingError, match=r"failed with FileNotFoundError: .*nowhere"),
        Side(partial(open, "/nowhere"), {}),
    ):
        pass
    with Side(dict, {}) as side:
        side.ask("pop", "x")
        with pytest.raises(TrainingError, match="failed with KeyError: 'x'"):
            side.answer(30)


def test_a_process_that_dies_is_told_with_its_exit_code():
    with (
        pytest.raises(TrainingError, match="died with exit code 7"),
        Side(partial(os._exit, 7), {}),
    ):
        pass


def test_nobody_waits_for_ever():
    with Side(dict, {}) as side, pytest.raises(TrainingError, match="not answered for 0 s"):
        side.answer(0.2)
    assert not side._process.is_alive()


def test_fit_gets_what_the_workers_see(tmp_path):
    images = np.arange(2 * 4, dtype=np.uint8).reshape(2, 2, 2, 1)
    np.save(tmp_path / IMAGES_FILE, images)
    np.save(tmp_path / LABELS_FILE, np.array([1, 0]))
    scaled, labels = scaled_arrays(tmp_path, Field("image", (4,), scale=0.5, offset=-1.0))
    assert (scaled.dtype, scaled.shape) == (np.float32, (2, 4))
    assert scaled[0].tolist() == [-1.0, -0.5, 0.0, 0.5]
    assert labels.tolist() == [1, 0]


@pytest.mark.tensorflow
def test_timed_fit_keeps_each_mark_and_the_trial_leaves_no_trace():
    rng = np.random.default_rng(0)
    images = rng.random((50, 12), dtype=np.float32)
    labels = rng.integers(0, 3, 50)
    model = NETS["mlp"].build((12,), 3, seed=4)
    compile_ahead(model, images, labels, 8)
    untouched = NETS["mlp"].build((12,), 3, seed=4)
    for left, right in zip(model.get_weights(), untouched.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)
    assert int(model.optimizer.iterations.numpy()) == 0
    points = timed_fit(model, images, labels, batch=8, epochs=2, marks=2)
    assert [samples for samples, _, _ in points] == [24, 50, 74, 100]
    seconds = [seconds for _, seconds, _ in points]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0
    np.testing.assert_array_equal(
        points[-1][2], np.concatenate([w.ravel() for w in model.get_weights()])
    )
    assert np.abs(points[0][2] - points[-1][2]).max() > 0


@pytest.mark.tensorflow
def test_the_wait_between_two_epochs_is_not_training():
    import keras

    class Waits(keras.Sequential):  # As TensorFlow now and then does when it drops an iterator.
        waits = 0.0

        def reset_metrics(self):
            super().reset_metrics()
            time.sleep(self.waits)

    model = Waits([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    x, y = np.ones((16, 3), np.float32), np.ones((16, 2), np.float32)
    compile_ahead(model, x, y, 8)
    model.waits = 0.7
    assert timed_fit(model, x, y, batch=8, epochs=2)[-1][1] < 0.7


@pytest.mark.tensorflow
def test_nets_fit_any_images_and_depend_on_the_seed_alone():
    field = Field("image", (10, 12, 3), scale=1 / 255)
    assert NETS["mlp"].field(field).shape == (360,)
    assert NETS["cnn"].field(field) == field
    for net in NETS.values():
        shape = net.field(field).shape
        one, same, other = (net.build(shape, 7, seed) for seed in (1, 1, 2))
        assert one.output_shape == (None, 7)
        np.testing.assert_array_equal(one.get_weights()[0], same.get_weights()[0])
        assert (one.get_weights()[0] != other.get_weights()[0]).any()


def test_cells_of_fit_travel_to_their_process():
    with Side(partial(Cell, "mlp", LOCAL, 32, 1, 3), {}) as side:
        side.ask("describe")
        assert side.answer(30) == "mlp, batch 32, seed 3: local, all cores"
