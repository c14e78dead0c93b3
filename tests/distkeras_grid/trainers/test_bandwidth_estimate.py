"""What a run asks of the network."""

from __future__ import annotations

from distkeras_grid.trainers.bandwidth_estimate import (
    NETWORK_BYTES_PER_SECOND,
    bandwidth_sentence,
    link_speed,
)


def sentence(vector_bytes, workers, window, seconds):
    return bandwidth_sentence(vector_bytes, workers, window, seconds, NETWORK_BYTES_PER_SECOND)


def test_the_need_is_that_of_all_workers_and_the_window_that_is_named_is_enough():
    assert sentence(19_200_000, 20, 12, 0.24) == (
        "19.2 MB x 20 workers every 12 batches needs 1.6 GB/s in each direction at the driver; "
        "about 1.2 GB/s can pass: raise communication_window to 16 or more, or take fewer workers"
    )
    # A batch takes 0.02 s.
    assert "can pass" in sentence(19_200_000, 20, 15, 15 * 0.02)
    assert "can pass" not in sentence(19_200_000, 20, 16, 16 * 0.02)
    need = "needs 2 MB/s in each direction at the driver"
    assert sentence(10**6, 2, 1, 1.0) == f"1 MB x 2 workers every batch {need}"


def test_loopback_is_faster_than_a_network():
    assert link_speed("127.0.0.1") > link_speed("10.0.0.5")
