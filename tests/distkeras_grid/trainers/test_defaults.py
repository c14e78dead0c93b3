"""Defaults that depend on the run."""

from __future__ import annotations

import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.trainers.defaults import (
    ADAPTIVE_OPTIMIZERS,
    choose_alpha,
    choose_commit_scale,
    choose_window,
)


def test_a_default_window_leaves_twenty_exchanges_an_epoch():
    choice = choose_window(None, 32, seat_rows=3200, batch_size=32)
    assert choice.batches == 5
    assert "100 batches" in choice.reason


def test_a_given_commit_scale_is_that_of_any_optimizer():
    assert choose_commit_scale(0.5, "Adam", 4) == 0.5


@pytest.mark.tensorflow
def test_all_optimizers_of_keras_but_sgd_are_adaptive():
    import keras

    base = keras.optimizers.Optimizer
    known = {
        name.lower()
        for name, kind in vars(keras.optimizers).items()
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base
    }
    # The one around another is seen through.
    assert known - {"sgd", "lossscaleoptimizer"} == ADAPTIVE_OPTIMIZERS


def test_alpha():
    assert choose_alpha(None, None, None, 4) == pytest.approx(0.225)
    assert choose_alpha(0.5, None, None, 4) == 0.5
    assert choose_alpha(None, 5.0, 0.1, 4) == 0.5
    for wrong in ((0.5, 5.0, 0.1), (None, 5.0, None), (1.5, None, None)):
        with pytest.raises(ConfigurationError):
            choose_alpha(*wrong, 4)
