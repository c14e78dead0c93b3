"""Bytes of vectors in simulated time."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.simulation.worker import SimulatedWire


def vector(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("compression", "sizes", "arrived"),
    [(None, (24, 12), 1.001), ("bfloat16", (12, 6), 1.0), ("dgc", (8, 12), 1.001)],
)
def test_a_vector_takes_the_bytes_of_its_form_and_only_rounding_changes_it(
    compression, sizes, arrived
):
    sparse = vector(0, 0, 1.001, 0, 0, 0)
    wire = SimulatedWire(compression, 6)
    # What came before leaves no trace.
    for _ in range(2):
        assert wire.carry(sparse) == sizes[0]
        np.testing.assert_array_equal(sparse, vector(0, 0, arrived, 0, 0, 0))
    whole = vector(1, 2, 3)
    assert SimulatedWire(compression, 3).carry(whole) == sizes[1]
    np.testing.assert_array_equal(whole, [1, 2, 3])


def test_numbers_of_twice_the_length_pass_unchanged():
    """Some simulations compute exactly, in float64; their bytes count as float32's."""
    sent = np.array([1.001, 0.0])
    assert SimulatedWire(None, 2).carry(sent) == 8
    np.testing.assert_array_equal(sent, [1.001, 0.0])
