"""The bytes of a batch, against what tables of the guide and the time model say."""

from __future__ import annotations

import pytest

from distkeras_grid.model_parallel.communication_cost import Traffic
from distkeras_grid.model_parallel.geometry import Convolution
from distkeras_grid.model_parallel.time_model import moved_bytes


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


@pytest.mark.parametrize(
    ("kind", "tasks", "moved"),
    [
        # What the other tasks hold of the weights, and all of them to the server.
        ("stages", 2, 4 * 500 + 4 * 1000),
        ("stages", 4, 4 * 750 + 4 * 1000),
        ("towers", 4, 4 * 750 + 4 * 1000),
        # The master has them all, and they travel in each batch.
        ("devices", 4, 4 * 1000),
        *((kind, 1, 4 * 1000) for kind in ("stages", "towers", "devices")),
    ],
)
def test_the_weights_travel_once_a_window(kind, tasks, moved):
    traffic = Traffic(kind, tasks, 1000, batch=8, inputs=100, outputs=10, window=5)
    assert traffic.window_bytes == moved
    assert traffic.mean_bytes == traffic.batch_bytes + moved / 5
    sentence = traffic.sentence(1.25e9, seconds=0.5)
    assert f"{traffic.mean_bytes / 0.5 / 1e6:.3g} MB/s" in sentence
    assert traffic.fits(1.25e9, 0.5)
    assert not traffic.fits(traffic.mean_bytes, 0.5)


def test_benchmarked_towers_moved_what_is_predicted():
    """Two towers, 32 windows of one batch in each of three epochs (BENCHMARKS.md)."""
    traffic = Traffic("towers", 2, 2_411_882, batch=128, inputs=784, outputs=16, window=1)
    batches = 3 * 32
    # Printed were the bytes at the server, 926 MB, and between the workers, 514 MB.
    assert batches * traffic.mean_bytes == pytest.approx(926e6 + 514e6, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "tasks", "numbers"),
    [
        # Input, output, and both gradients.
        ("devices", 4, 2 * 100 + 2 * 10),
        # The master's: the outputs of all towers, with gradients; the input is not trained.
        ("towers", 3, 100 + 2 * 3 * 10),
        # The model's input, or what comes from the stage before, and what goes to the next one.
        ("stages", 4, 100 + 4 * 10),
    ],
)
def test_a_task_holds_the_arrays_that_it_receives_and_sends(kind, tasks, numbers):
    traffic = Traffic(kind, tasks, 1000, batch=8, inputs=100, outputs=10)
    assert traffic.task_bytes == 4 * 8 * numbers


def test_the_divided_layers_of_a_wide_net_need_gigabytes():
    """The input of 16x16x500 and 1,500 kernels, with a batch of 512: half of it the gradients."""
    size = {"inputs": 16 * 16 * 500, "outputs": 16 * 16 * 1500}
    weights = 1500 * 500 * 25
    traffic = Traffic("devices", 2, weights, batch=512, **size, divided=weights)
    assert traffic.task_bytes // 10**6 == 2 * 262 + 2 * 786 + 1


def test_a_longer_window_is_advised_only_where_it_helps():
    """Batches that fill the link by themselves were told to take a longer window, too."""
    available, seconds = 1e9, 0.25
    often = Traffic("stages", 4, 100_000_000, 64, 3072, 4096, window=1)
    assert often.sentence(available, seconds).endswith(
        "and wait for the link: take a longer window, or fewer stages"
    )
    wide = Traffic("stages", 4, 1000, 64, 3072, 1_000_000, window=1)
    assert not wide.fits(available, seconds)
    assert "window, or" not in wide.sentence(available, seconds)
    assert wide.sentence(available, seconds).endswith(
        "and wait for the link: take fewer stages; a longer window is not enough"
    )


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
    traffic = Traffic("devices", tasks, 10 * weights, batch=8, **size, divided=weights)
    shares = [layer.units // tasks] * tasks
    assert traffic.batch_bytes == sum(moved_bytes(layer, 8, shares))
