"""Paces that are observed at work."""

from __future__ import annotations

from distkeras_grid.model_parallel.pacing import OBSERVATIONS, Pacing


def test_a_pace_is_known_after_five_passes_and_follows_the_last_ones():
    pacing = Pacing()
    for number in range(2 * OBSERVATIONS):
        seconds = 1.0 if number < OBSERVATIONS else 4.0
        assert (pacing.pace("c", 1) is None) == (number < OBSERVATIONS)
        pacing.observe("c", 1, 2, seconds, 2 * seconds)
    found = pacing.pace("c", 1)
    assert (found.forward, found.backward) == (2.0, 4.0)


def test_a_single_slow_pass_changes_nothing():
    pacing = Pacing()
    for seconds in (1.0, 1.0, 100.0, 1.0, 1.0):
        pacing.observe("c", 0, 1, seconds, seconds)
    assert pacing.pace("c", 0).forward == 1.0


def test_new_shares_are_judged_by_new_passes_and_the_pace_stays_known():
    pacing = Pacing()
    for device in (0, 1):
        for _ in range(OBSERVATIONS):
            pacing.observe("c", device, 1, 1.0, 1.0)
    assert pacing.is_fresh("c", (1, 1, 0))
    assert not pacing.is_fresh("c", (1, 1, 1))
    pacing.forget("c")
    assert not pacing.is_fresh("c", (1, 1, 0))
    assert pacing.pace("c", 1) is not None


def test_a_clock_that_does_not_move_makes_no_device_infinitely_fast():
    pacing = Pacing()
    for _ in range(OBSERVATIONS):
        pacing.observe("c", 0, 1, 0.0, 0.0)
    assert pacing.pace("c", 0).both > 0
