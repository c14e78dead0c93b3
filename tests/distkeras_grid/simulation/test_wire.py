"""Bytes of vectors in simulated time."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.parameter_server.compression import to_changes
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


def test_a_seat_makes_the_center_of_what_has_changed():
    wire = SimulatedWire(SPARSE, 6, DownpourRule())
    center = vector(1, 2, 3, 4, 5, 6)
    for seat in range(2):
        np.testing.assert_array_equal(wire.greet(seat, center), center)
    known = {seat: center.copy() for seat in range(2)}
    center[0] = 7
    for seat in (0, 1):
        told = center.copy()
        to_changes(told, known[seat])
        np.testing.assert_array_equal(wire.receive(seat, told, 8), center)


def test_a_rounded_reply_loses_digits_and_an_empty_one_is_left_alone():
    reply = vector(1.001, 0, 0)
    assert SimulatedWire("bfloat16", 3, DownpourRule()).receive(0, reply, 6)[0] == 1
    assert SimulatedWire(None, 3, SequentialRule()).receive(0, vector(1.001), 0)[0] != 1


def test_gradients_are_no_center_of_which_a_seat_knows_something():
    wire = SimulatedWire(SPARSE, 3, MeanGradientRule())
    assert wire.send(vector(0, 1, 0)) == 8
