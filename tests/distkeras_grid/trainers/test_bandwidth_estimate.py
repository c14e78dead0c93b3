"""What a run asks of the network."""

from __future__ import annotations

import pytest

from distkeras_grid.trainers.bandwidth_estimate import BandwidthEstimate, link_speed


def test_the_need_is_both_ways_of_all_workers():
    need = BandwidthEstimate(19_200_000, 20, 12, 0.24)
    assert need.bytes_per_second == pytest.approx(3.2e9)
    assert not need.fits
    assert "raise communication_window" in need.sentence()


def test_a_small_need_is_said_without_advice():
    need = BandwidthEstimate(1_000_000, 2, 10, 1.0)
    assert need.fits
    assert need.sentence() == "1 MB x 2 workers every 10 batches needs 4 MB/s on the driver"


def test_the_window_that_is_named_is_enough():
    need = BandwidthEstimate(19_200_000, 20, 12, 0.24)
    enough = int(need.sentence().split("communication_window to ")[1].split()[0])
    assert BandwidthEstimate(19_200_000, 20, enough, 0.24 * enough / 12).fits
    assert not BandwidthEstimate(19_200_000, 20, enough - 1, 0.24 * (enough - 1) / 12).fits


def test_a_window_that_takes_long_enough_fits():
    need = BandwidthEstimate(19_200_000, 20, 12, 1.0)
    assert need.shortest_window == pytest.approx(0.3072)
    for seconds, fits in ((0.31, True), (0.3, False)):
        assert BandwidthEstimate(19_200_000, 20, 12, seconds).fits is fits


def test_loopback_is_faster_than_a_network():
    assert link_speed("127.0.0.1") > link_speed("10.0.0.5")


def test_empty_replies_leave_the_way_down_alone():
    both = BandwidthEstimate(19_200_000, 20, 12, 0.24)
    up = BandwidthEstimate(19_200_000, 20, 12, 0.24, empty_reply=True)
    assert up.bytes_per_second == both.bytes_per_second / 2
    # The way up is as full as before.
    assert up.fits == both.fits
    assert not up.fits
    assert "needs 1.6 GB/s on the driver; about 1.2 GB/s can pass" in up.sentence()
    assert "communication_window to 16 or more" in up.sentence()


def test_a_window_of_one_batch_reads_well():
    assert "2 workers every batch needs" in BandwidthEstimate(4000, 2, 1, 0.1).sentence()
