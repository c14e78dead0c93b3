"""The bytes of a batch, against what tables of the guide and the time model say."""

from __future__ import annotations

import pytest

from distkeras_grid.model_parallel.geometry import Convolution
from distkeras_grid.model_parallel.time_model import moved_bytes
from distkeras_grid.model_parallel.traffic import Traffic


@pytest.mark.parametrize(
    ("kind", "tasks", "moved"),
    [
        # Input once; the last cut once and the others twice, each forward and backward.
        ("stages", 2, 4 * 8 * 100 + 8 * 8 * 10),
        ("stages", 4, 4 * 8 * 100 + 5 * 8 * 8 * 10),
        ("towers", 3, 2 * 4 * 8 * (100 + 2 * 10)),
        *((kind, 1, 0) for kind in ("stages", "towers", "devices")),
    ],
)
def test_the_bytes_of_the_guides_tables(kind, tasks, moved):
    assert Traffic(kind, tasks, 1000, batch=8, inputs=100, outputs=10).batch_bytes == moved


@pytest.mark.parametrize("tasks", [2, 4])
def test_devices_move_what_the_time_model_says(tasks):
    layer = Convolution(
        name="c",
        kind="convolution",
        input_shape=(6, 6, 5),
        kernel_size=(3, 3),
        channels=8,
        strides=(1, 1),
        dilation=(1, 1),
        padding="valid",
    )
    weights = 3 * 3 * 5 * layer.units
    size = {"inputs": 6 * 6 * 5, "outputs": 4 * 4 * layer.units}
    traffic = Traffic("devices", tasks, weights, batch=8, **size)
    shares = [layer.units // tasks] * tasks
    assert traffic.batch_bytes == sum(moved_bytes(layer, 8, shares))
