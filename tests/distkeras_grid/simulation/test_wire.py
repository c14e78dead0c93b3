"""Bytes of vectors in simulated time."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.simulation.wire import SimulatedWire


def vector(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize(("compression", "size"), [(None, 24), ("bfloat16", 12), ("dgc", 8)])
def test_a_vector_takes_the_bytes_of_its_form(compression, size):
    assert SimulatedWire(compression, 6).carry(vector(0, 0, 1, 0, 0, 0)) == size


@pytest.mark.parametrize(("compression", "size"), [(None, 12), ("bfloat16", 6), ("dgc", 12)])
def test_a_vector_without_zeros_travels_whole(compression, size):
    sent = vector(1, 2, 3)
    assert SimulatedWire(compression, 3).carry(sent) == size
    np.testing.assert_array_equal(sent, [1, 2, 3])


@pytest.mark.parametrize(
    ("compression", "arrived"), [(None, 1.001), ("bfloat16", 1.0), ("dgc", 1.001)]
)
def test_only_rounding_changes_a_vector(compression, arrived):
    wire = SimulatedWire(compression, 3)
    for place in range(3):
        # What came before leaves no trace.
        sent = vector(0, 0, 0)
        sent[place] = 1.001
        expected = vector(0, 0, 0)
        expected[place] = arrived
        wire.carry(sent)
        np.testing.assert_array_equal(sent, expected)


def test_numbers_of_twice_the_length_pass_unchanged():
    """Some simulations compute exactly, in float64; their bytes count as float32's."""
    sent = np.array([1.001, 0.0])
    assert SimulatedWire(None, 2).carry(sent) == 8
    np.testing.assert_array_equal(sent, [1.001, 0.0])
