"""The study of divided convolutions, on made-up runs of a machine whose speed is known."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from distkeras_grid.errors import EmptyDataError
from distkeras_grid.model_parallel.time_model import NetworkLink
from tests.benchmarks.studies.split_runs import SplitResult, SplitSetup, measure
from tests.benchmarks.studies.split_study import (
    LATENCY,
    NETWORKS,
    SIZES,
    Calibration,
    calibrate,
    errors,
    layers_of,
    operations,
    predict,
    speed_up,
    write_study,
)

LINK = NetworkLink(bandwidth=2e9, latency=1e-4)
KNOWN = Calibration((2e10, 5e10), 1e-9)


def result(kernels, slowdown=1.0, factor=1.0):
    """A run on a machine that does what the time model says, or takes `factor` times as long."""
    setup = SplitSetup(kernels, 4, (slowdown,))
    plan = predict(setup, KNOWN, LINK, always=True)
    return SplitResult(setup, plan.whole, plan.whole / 2, factor * plan.divided, plan, LINK)


def test_the_speed_of_the_machine_is_found_and_the_model_has_no_error_on_it():
    results = [result(kernels, s) for kernels in SIZES[:3] for s in (1.0, 2.0)]
    found = calibrate(results)
    assert found.rates == pytest.approx(KNOWN.rates)
    assert found.rest == pytest.approx(KNOWN.rest)
    assert errors(results) == pytest.approx([0.0] * 6, abs=1e-9)


def test_the_error_is_that_of_a_model_that_has_not_seen_the_net():
    results = [result(SIZES[0]), result(SIZES[1], factor=2.0)]
    assert errors(results) == pytest.approx([0.0, -0.5], abs=1e-9)
    assert errors(results[:1]) == []
    with pytest.raises(EmptyDataError):
        calibrate([])


def test_the_operations_are_those_of_two_convolutions():
    first, second = layers_of(SplitSetup((50, 500), 8))
    assert operations(first, 8) == (2 * 8 * 1024 * 75 * 50,) * 2
    assert operations(second, 8) == (2 * 8 * 256 * 1250 * 500, 4 * 8 * 256 * 1250 * 500)


def test_speed_ups_grow_with_devices_and_bandwidth_and_never_fall_below_one():
    setup = SplitSetup(SIZES[-1], 128)
    ups = []
    for count in range(8):
        wider = replace(setup, slowdowns=(1.0,) * count)
        ups.append(speed_up(predict(wider, KNOWN, LINK)))
        slower = speed_up(predict(wider, KNOWN, NetworkLink(bandwidth=1e7)))
        assert 1 <= slower <= ups[-1] * (1 + 1e-9)
    assert ups[0] == 1
    assert ups == sorted(ups)
    assert ups[3] < 4


def test_of_unequal_devices_the_fastest_alone_is_the_measure():
    setup = SplitSetup(SIZES[-1], 128, (0.25,) * 3)
    plan = predict(setup, KNOWN, LINK)
    assert speed_up(plan, fastest=4.0) == pytest.approx(speed_up(plan) / 4)


@pytest.mark.full
def test_the_page_has_the_runs_and_the_pictures(tmp_path):
    page = write_study(tmp_path, [result(SIZES[0]), result(SIZES[1])], "a machine", "numbers")
    text = page.read_text()
    assert "50:500" in text
    assert "3.28" in text
    assert {path.name for path in tmp_path.glob("*.png")} == {
        f"{name}.png" for name in ("devices", "bandwidth", "batch", "speed")
    }


def test_the_table_of_the_guide_is_what_the_time_model_says(project):
    """Four devices of 50 GFLOP/s, 25 in the first convolution, and a batch of 128."""
    guide = (project / "distkeras_grid/model_parallel/README.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"\| kernels (.*?)\n\n", guide, re.DOTALL)
    head, _, *rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert len(rows) == len(SIZES)
    calibration = Calibration((25e9, 50e9), 1e-9)
    for (name, *told), kernels in zip(rows, SIZES, strict=True):
        assert name == f"{kernels[0]}:{kernels[1]}"
        for network, figure in zip(head, told, strict=True):
            link = NetworkLink(bandwidth=NETWORKS[network], latency=LATENCY)
            plan = predict(SplitSetup(kernels, 128, (1.0,) * 3), calibration, link)
            assert figure == f"{speed_up(plan):.2f}"


@pytest.mark.tensorflow
@pytest.mark.full
def test_two_processes_measure_a_net():
    found = measure(SplitSetup((4, 8), 2, (1.0,), shape=(8, 8, 3)))
    assert min(found.one_core, found.all_cores, found.divided, found.plan.divided) > 0
    assert found.plan.shares
    assert found.link.bandwidth > 1e6
