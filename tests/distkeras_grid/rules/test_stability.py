"""The bound of delayed steps, against the recursion itself."""

import numpy as np
import pytest

from distkeras_grid.rules import (
    AccumulatedGradientRule,
    AveragingRule,
    DownpourRule,
    DynamicRateRule,
    EnergyMatchingRule,
)
from distkeras_grid.rules.stability import delay_bound, is_stable, stability_warning


@pytest.mark.parametrize("workers", [1, 2, 5, 10, 20])
@pytest.mark.parametrize(("factor", "shrinks"), [(0.97, True), (1.03, False)])
def test_the_recursion_is_stable_below_the_bound_and_not_above(workers, factor, shrinks):
    gain = factor * delay_bound(workers)
    past = [1.0] * workers
    for _ in range(6000):
        past.append(past[-1] - gain * past[-workers])
    late, early = np.abs(past[-500:]).max(), np.abs(past[2000:2500]).max()
    assert bool(late < early) is shrinks


def test_windows_of_adag_near_the_workers_are_stable_at_any_step():
    for workers in (2, 4, 8, 16, 40):
        assert is_stable(AccumulatedGradientRule(), workers, workers, share=1.0)


def test_rules_whose_gain_is_not_known_are_not_judged():
    assert is_stable(EnergyMatchingRule(), steps=1, workers=1000)
    assert stability_warning(AveragingRule(), 1000, 1000) == ""


def test_the_warning_names_what_would_be_stable():
    warning = stability_warning(DownpourRule(), steps=5, workers=8)
    assert "8 workers with a window of 5 lie in the divergent zone" in warning
    assert "set commit_scale=0.125, or communication_window=2, or" in warning
    assert is_stable(DownpourRule(), 2, 8)
    assert is_stable(DownpourRule(0.125), 5, 8)
    assert stability_warning(DownpourRule(), steps=5, workers=2) == ""
    assert stability_warning(DynamicRateRule(), steps=500, workers=50) == ""


def test_where_no_window_helps_none_is_named():
    warning = stability_warning(DownpourRule(), steps=5, workers=100)
    assert "communication_window" not in warning
