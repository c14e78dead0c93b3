"""What a run asks of the network."""

from __future__ import annotations

import pytest

from distkeras_grid.trainers.bandwidth_estimate import BandwidthEstimate, link_speed


def test_the_need_is_that_of_all_workers_and_the_window_that_is_named_is_enough():
    need = BandwidthEstimate(19_200_000, 20, 12, 0.24)
    assert need.bytes_per_second == pytest.approx(1.6e9)
    assert need.shortest_window == pytest.approx(0.3072)
    assert need.sentence() == (
        "19.2 MB x 20 workers every 12 batches needs 1.6 GB/s in each direction at the driver; "
        "about 1.2 GB/s can pass: raise communication_window to 16 or more, or take fewer workers"
    )
    # A batch takes 0.02 s.
    assert "can pass" in BandwidthEstimate(19_200_000, 20, 15, 15 * 0.02).sentence()
    assert "can pass" not in BandwidthEstimate(19_200_000, 20, 16, 16 * 0.02).sentence()


def test_a_small_need_is_said_without_advice():
    need = "needs 2 MB/s in each direction at the driver"
    ten, one = BandwidthEstimate(10**6, 2, 10, 1.0), BandwidthEstimate(10**6, 2, 1, 1.0)
    assert ten.sentence() == f"1 MB x 2 workers every 10 batches {need}"
    assert one.sentence() == f"1 MB x 2 workers every batch {need}"


def test_loopback_is_faster_than_a_network():
    assert link_speed("127.0.0.1") > link_speed("10.0.0.5")
