"""What the training benchmark is made of: processes for its sides, and a clock for `fit`."""

from __future__ import annotations

import os
from functools import partial

import numpy as np
import pytest

from tests.benchmarks.fitting import compile_ahead, timed_fit
from tests.benchmarks.nets import NETS
from tests.benchmarks.processes import Side


def test_calls_are_answered_in_another_process_with_its_own_environment():
    with Side(partial(os.getenv, "DKG_TEST"), {"DKG_TEST": "there"}) as side:
        side.ask("upper")
        assert side.answer(30) == "THERE"
        side.ask("index", "x")
        with pytest.raises(ValueError, match="substring"):
            side.answer(30)
    assert "DKG_TEST" not in os.environ


@pytest.mark.tensorflow
@pytest.mark.full
def test_timed_fit_keeps_each_mark_and_the_trial_leaves_no_trace():
    rng = np.random.default_rng(0)
    images = rng.random((50, 784), dtype=np.float32)
    labels = rng.integers(0, 10, 50)
    model = NETS["mlp"].build(seed=4)
    compile_ahead(model, images, labels, 8)
    untouched = NETS["mlp"].build(seed=4)
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
