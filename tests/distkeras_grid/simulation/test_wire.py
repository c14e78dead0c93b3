"""Bytes of vectors in simulated time."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.rules import (
    DeepGradientCompression,
    DownpourRule,
    MeanGradientRule,
    SequentialRule,
)
from distkeras_grid.simulation.wire import SimulatedWire

SPARSE = DeepGradientCompression()


def vector(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize(("compression", "size"), [(None, 24), ("bfloat16", 12), (SPARSE, 8)])
def test_a_vector_takes_the_bytes_of_its_form(compression, size):
    wire = SimulatedWire(compression, 6, DownpourRule())
    assert wire.send(vector(0, 0, 1, 0, 0, 0)) == size


def test_only_rounding_changes_a_vector():
    for compression, arrived in ((None, 1.001), ("bfloat16", 1.0), (SPARSE, 1.001)):
        sent = vector(1.001, 0, 0)
        SimulatedWire(compression, 3, DownpourRule()).send(sent)
        np.testing.assert_array_equal(sent, vector(arrived, 0, 0))


def test_replies_tell_each_seat_what_it_does_not_know():
    wire = SimulatedWire(SPARSE, 6, DownpourRule())
    center = vector(1, 2, 3, 4, 5, 6)
    assert [wire.greet(seat, center) for seat in range(2)] == [24, 24]
    center[0] = 7
    assert wire.reply(0, center) == 8
    center[1] = 7
    assert wire.reply(0, center) == 8
    assert wire.reply(1, center) == 16
    assert wire.greet(0, center) == 24
    assert wire.reply(0, center) == 8, "nothing new is told in one pair"
    np.testing.assert_array_equal(center, vector(7, 7, 3, 4, 5, 6))


def test_a_rule_without_replies_sends_none():
    assert SimulatedWire(None, 6, SequentialRule()).reply(0, vector(1, 2, 3, 4, 5, 6)) == 0


def test_gradients_are_no_center_of_which_a_seat_knows_something():
    wire = SimulatedWire(SPARSE, 3, MeanGradientRule())
    assert wire.reply(0, vector(0, 1, 0)) == 8
