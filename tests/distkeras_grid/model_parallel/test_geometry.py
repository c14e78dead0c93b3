"""What a convolution can be divided into, and the bytes of it."""

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.geometry import Convolution


def layer(**changes):
    settings = {
        "name": "c",
        "kind": "convolution",
        "input_shape": (16, 16, 8),
        "kernel_size": (3, 3),
        "channels": 12,
        "strides": (1, 1),
        "dilation": (1, 1),
        "padding": "same",
    }
    return Convolution(**{**settings, **changes})


def test_without_groups_a_unit_is_a_channel_and_needs_the_whole_input():
    whole = layer()
    assert (whole.units, whole.unit_weights, whole.weights) == (12, 72, 864)
    assert whole.input_part(range(3, 5)) == slice(0, 8)
    assert whole.output_part(range(3, 5)) == slice(3, 5)
    kernel = np.zeros(whole.kernel_shape(12))
    assert kernel[whole.kernel_part(range(3, 5))].shape == (3, 3, 8, 2)


def test_with_groups_a_unit_is_a_group_and_needs_its_own_input():
    grouped = layer(groups=4)
    assert (grouped.units, grouped.unit_channels, grouped.unit_weights) == (4, 3, 54)
    assert grouped.input_part(range(1, 3)) == slice(2, 6)
    assert grouped.output_part(range(1, 3)) == slice(3, 9)
    kernel = np.zeros(grouped.kernel_shape(4))
    assert kernel[grouped.kernel_part(range(1, 3))].shape == (3, 3, 2, 6)


def test_a_depthwise_convolution_is_divided_by_its_input_channels():
    depthwise = layer(kind="depthwise", groups=8, channels=16)
    assert (depthwise.units, depthwise.unit_channels) == (8, 2)
    assert depthwise.input_part(range(5, 8)) == slice(5, 8)
    assert depthwise.output_part(range(5, 8)) == slice(10, 16)
    kernel = np.zeros(depthwise.kernel_shape(8))
    assert kernel.shape == (3, 3, 8, 2)
    assert kernel[depthwise.kernel_part(range(5, 8))].shape == (3, 3, 3, 2)


def test_a_depthwise_convolution_of_one_channel_cannot_be_divided():
    single = layer(kind="depthwise", input_shape=(16, 16, 1), groups=1, channels=4)
    assert single.units == 1
    assert single.kernel_shape(1) == (3, 3, 1, 4)


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, (16, 16)),
        ({"strides": (2, 3)}, (8, 6)),
        ({"padding": "valid"}, (14, 14)),
        ({"padding": "valid", "strides": (2, 2)}, (7, 7)),
        ({"padding": "valid", "dilation": (2, 2)}, (12, 12)),
    ],
)
def test_the_output_has_the_shape_that_keras_gives_it(changes, sizes):
    assert layer(**changes).output_shape == (*sizes, 12)


def test_the_bytes_of_the_equation():
    """4*B*H*W*Ci down, 4*kh*kw*Ci*k, 4*B*H'*W'*k up; of groups the input in proportion."""
    whole, grouped = layer(), layer(groups=4)
    assert whole.input_bytes(2, 5) == 4 * 2 * 256 * 8
    assert whole.weight_bytes(5) == 4 * 9 * 8 * 5
    assert whole.output_bytes(2, 5) == 4 * 2 * 256 * 5
    assert grouped.input_bytes(2, 1) == 4 * 2 * 256 * 2
    assert whole.input_bytes(2, 0) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"groups": 5},
        {"kind": "depthwise"},
        {"padding": "causal"},
        {"strides": (1,)},
        {"padding": "valid", "kernel_size": (17, 3)},
        {"channels": 0},
    ],
)
def test_numbers_that_are_no_convolution_are_refused(changes):
    with pytest.raises(ConfigurationError):
        layer(**changes)
