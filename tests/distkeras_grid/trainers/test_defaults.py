"""Defaults that depend on the run."""

from __future__ import annotations

import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.trainers.defaults import choose_alpha, choose_commit_scale, choose_window


def test_a_given_window_is_never_changed():
    assert choose_window(500, 5, seat_rows=10, batch_size=10).batches == 500


def test_a_default_window_leaves_twenty_exchanges_an_epoch():
    choice = choose_window(None, 32, seat_rows=3200, batch_size=32)
    assert choice.batches == 5
    assert "100 batches" in choice.reason


def test_tiny_data_still_have_a_window():
    assert choose_window(None, 32, seat_rows=1, batch_size=32).batches == 1


def test_once_an_epoch():
    assert choose_window("epoch", 16, seat_rows=10, batch_size=1).batches is None


@pytest.mark.parametrize("window", [0, -1, 2.5, True, "day"])
def test_windows_out_of_range(window):
    with pytest.raises(ConfigurationError, match="communication_window"):
        choose_window(window, 5, seat_rows=10, batch_size=1)


@pytest.mark.parametrize(
    ("given", "optimizer", "scale"),
    [("auto", "SGD", 1.0), ("auto", "Adam", 0.25), ("auto", "AdamW", 0.25), (0.5, "Adam", 0.5)],
)
def test_commit_scale(given, optimizer, scale):
    assert choose_commit_scale(given, optimizer, 4) == scale


def test_alpha():
    assert choose_alpha(None, None, None, 4) == pytest.approx(0.225)
    assert choose_alpha(0.5, None, None, 4) == 0.5
    assert choose_alpha(None, 5.0, 0.1, 4) == 0.5
    for wrong in ((0.5, 5.0, 0.1), (None, 5.0, None), (1.5, None, None), (0.0, None, None)):
        with pytest.raises(ConfigurationError):
            choose_alpha(*wrong, 4)
