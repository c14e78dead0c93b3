"""Shapes and bytes of a convolution and its parts."""

import pytest

from distkeras_grid.model_parallel.geometry import Convolution


def layer(**changes):
    settings = {
        "name": "c",
        "input_shape": (16, 16, 8),
        "kernel_size": (3, 3),
        "channels": 12,
        "strides": (1, 1),
        "padding": "same",
    }
    return Convolution(**{**settings, **changes})


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, (16, 16)),
        ({"strides": (2, 3)}, (8, 6)),
        ({"padding": "valid"}, (14, 14)),
        ({"padding": "valid", "strides": (2, 2)}, (7, 7)),
    ],
)
def test_the_output_has_the_shape_that_keras_gives_it(changes, sizes):
    assert layer(**changes).output_shape == (*sizes, 12)


def test_the_bytes_of_the_equation():
    """4*B*H*W*Ci down, 4*kh*kw*Ci*k, 4*B*H'*W'*k up."""
    whole = layer(strides=(2, 2))
    assert whole.input_bytes(2) == 4 * 2 * 256 * 8
    assert whole.weight_bytes(5) == 4 * 9 * 8 * 5
    assert whole.output_bytes(2, 5) == 4 * 2 * 64 * 5
