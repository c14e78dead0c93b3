"""When asynchronous steps that come late diverge, and what to change.

With n workers in turn, each commit was computed n - 1 commits ago. On a quadratic with curvature h
a commit moves the center by the share ``a`` of its distance to the minimum, the *gain* of the
rule; the recursion ``c <- c - a c_(n-1 commits ago)`` is stable where ``a < 2 sin(pi / (2 (2 n -
1)))`` (the classical bound of a delayed first-order difference equation: Levin and May, "A note on
difference-delay equations", Theoretical Population Biology 9, 1976).
"""

from __future__ import annotations

import math

from distkeras_grid.rules.base import Rule

#: Learning rate times curvature at which a run is judged. At 1 a single worker would reach the
#: minimum in one step; a tuned rate stays well below.
STEP_SHARE = 0.1

LONGEST_WINDOW = 256


def delay_bound(workers: int) -> float:
    """Return the gain below which ``n`` workers in turn are stable.

    Parameters
    ----------
    workers : int
        ``n``.

    Examples
    --------
    >>> [round(delay_bound(n), 3) for n in (1, 5, 10, 40)]
    [2.0, 0.347, 0.165, 0.04]
    """
    return 2 * math.sin(math.pi / (2 * (2 * workers - 1)))


def is_stable(rule: Rule, steps: int, workers: int, share: float = STEP_SHARE) -> bool:
    """Tell whether a run of plain SGD is stable at a step's share of the distance.

    Parameters
    ----------
    rule : Rule
        One without a gain counts as stable.
    steps : int
        Batches in a window.
    workers : int
        Workers of the run.
    share : float
        Learning rate times curvature, above 0 and at most 1.

    Examples
    --------
    >>> from distkeras_grid.rules import AccumulatedGradientRule, DownpourRule
    >>> is_stable(DownpourRule(), steps=5, workers=10), is_stable(DownpourRule(0.1), 5, 10)
    (False, True)
    >>> is_stable(AccumulatedGradientRule(), steps=10, workers=40)
    False
    """
    gain = rule.gain(1 - (1 - share) ** steps, steps, workers)
    return gain is None or gain < delay_bound(workers)


def stability_warning(rule: Rule, steps: int, workers: int) -> str:
    """Return what to say before a run that lies in the divergent zone; empty elsewhere.

    Parameters
    ----------
    rule, steps, workers
        As in `is_stable`.
    """
    if is_stable(rule, steps, workers):
        return ""
    windows = [k for k in range(1, LONGEST_WINDOW + 1) if is_stable(rule, k, workers)]
    advice = "fewer workers or a learning rate divided by their number"
    if windows:
        nearest = min(windows, key=lambda k: abs(k - steps))
        advice = f"communication_window={nearest}, or {advice}"
    if "commit_scale" in rule.parameters():
        advice = f"commit_scale={1 / workers:.3g}, or {advice}"
    return (
        f"{workers} workers with a window of {steps} lie in the divergent zone of delayed SGD "
        f"(judged at learning rate x curvature = {STEP_SHARE:g}, whatever your rate is, for the "
        f"curvature is not known): set {advice}."
    )
