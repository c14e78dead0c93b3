"""Every fault at every point of a run of every family, on the cores.

`FaultyRun.check` says it: each window is folded once, the center is what the folded windows make of
it one after the other, nobody is blamed but the worker that the fault has struck, the run ends, and
the server's memory stays bounded. Here stand the product, the combinations that have no meaning,
and with which error a run ends that cannot go on.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from distkeras_grid.errors import ClusterError, RefusedError, StartTimeoutError
from distkeras_grid.rules import SynchronousRule, build_rule
from tests.invariants.fault_runs import FAULTS, STRUCK_SEQUENCE, FaultyRun
from tests.invariants.small_runs import EPOCHS, WINDOWS, WORKERS

pytestmark = pytest.mark.slow

#: Of each family a rule, its numbers, the workers, and what else is different of the run.
FAMILIES = {
    "delta": ("downpour", {}, WORKERS, {}),
    "staleness": ("dynamic_rate", {}, WORKERS, {}),
    "elastic": ("elastic", {"alpha": 0.25}, WORKERS, {}),
    "server state": ("adagrad", {"rate": 0.05}, WORKERS, {}),
    "averaging": ("averaging", {}, WORKERS, {}),
    "averaging with quorum": ("averaging", {}, WORKERS, {"quorum": 0.6}),
    "synchronous": ("mean_gradient", {}, WORKERS, {}),
    "ensemble": ("member", {}, WORKERS, {}),
    "single": ("sequential", {}, 1, {}),
}
KINDS = ("DGC", "Adam", "BatchNorm")
#: Points before the worker has told its rows, before it has trained anything, and all.
UNREAD = ("hello", "spool", "warm-up")
UNTRAINED = (*UNREAD, "gate")
#: Points before which the server has got what the worker keeps.
KEPT_BEFORE = ("window", "half a commit", "folded and no reply", "epoch end")
POINTS = (
    *UNTRAINED,
    *("window", "half a commit", "folded and no reply", "half a reply"),
    *("half of what it keeps", "hand-over", "epoch end", "finish"),
)


def left_out_because(family, kind, point, fault):
    """Why a combination cannot happen, or is not struck; empty if it is."""
    rule = build_rule(*FAMILIES[family][:2])
    if kind == "DGC" and not rule.traits.compressible:
        return "No meaning: the workers send weights, which are not compressed"
    if kind == "Adam" and rule.traits.plain_sgd:
        return "No meaning: the rule computes with plain gradients, so the workers train with SGD"
    if fault == "rows changed" and point in UNREAD:
        return "No meaning: no attempt has told its rows yet, so these are the rows"
    if fault == "disk full" and point != "spool":
        return (
            "Not struck: a worker with a share of the rows writes to its disk only while it "
            "spools. On local sets it also writes the rows of each window"
        )
    if point == "hand-over" and not rule.traits.steps_on_workers:
        return "No meaning: nobody hands anything over: the server makes the steps"
    return ""


def error_due(family, point, fault):
    """The error with which the run has to end; None if it ends with a result."""
    quorum = "quorum" in family
    if fault == "rows changed":
        # A quorum that has finished does not read them.
        return None if quorum and point == "finish" else RefusedError
    if fault == "executor x5" and point in UNTRAINED:
        # Spark starts it four times, and it has trained nothing.
        return None if quorum else ClusterError
    if fault == "slot gone" or (fault, point) == ("stop", "hello"):
        # A worker that hangs before it connects is one that does not come.
        return None if quorum else StartTimeoutError
    return None


MEANINGFUL = {
    (family, kind, fault): points
    for family in FAMILIES
    for kind in KINDS
    for fault in FAULTS
    if (points := [p for p in POINTS if not left_out_because(family, kind, p, fault)])
}


@functools.cache
def undisturbed(family, kind):
    return FaultyRun(FAMILIES[family], kind).go().center


def whole_rounds(family):
    """Whether the center does not depend on who comes first."""
    rule = build_rule(*FAMILIES[family][:2])
    in_order = isinstance(rule, SynchronousRule) or rule.traits.own_center or family == "single"
    return in_order and "quorum" not in family


def goes_on_without(family, fault):
    """Whether all others train to their ends before the run ends with an error."""
    in_rounds = isinstance(build_rule(*FAMILIES[family][:2]), SynchronousRule)
    # Other rows are an error that would occur again.
    return not in_rounds and fault != "rows changed"


@pytest.mark.parametrize(("family", "kind", "fault"), MEANINGFUL)
def test_whatever_dies_wherever_the_run_ends_as_promised(family, kind, fault):
    for point in MEANINGFUL[family, kind, fault]:
        run = FaultyRun(FAMILIES[family], kind, fault, point).go()
        assert type(run.error) is (error_due(family, point, fault) or type(None)), point
        assert run.strikes > 0, point
        if "quorum" not in family:
            stopped = fault == "stop" and run.error is None
            assert run.restarted == [run.victim] * stopped, point
        if point in KEPT_BEFORE:
            # Every reply asks for it, as keeping takes no time here.
            assert all(e.state_windows is not None for e in run.told("continued")), point
        if run.error is not None and goes_on_without(family, fault):
            windows = [window for window in run.windows if window.worker != run.victim]
            assert len(windows) == (run.workers - 1) * EPOCHS * WINDOWS, point
        if run.error is None and whole_rounds(family) and run.exact:
            np.testing.assert_array_equal(run.center, undisturbed(family, kind), point)


def test_the_product_is_whole_and_what_it_leaves_out_has_a_reason():
    """Each pair of a point and a fault has a family, and each family and kind most pairs."""
    pairs = {(point, fault) for (_, _, fault), points in MEANINGFUL.items() for point in points}
    out = {(point, fault) for point in POINTS for fault in FAULTS} - pairs
    assert out == {
        *((point, "rows changed") for point in UNREAD),
        *((point, "disk full") for point in POINTS if point != "spool"),
    }
    kinds = {(family, kind) for family, kind, _ in MEANINGFUL}
    assert {family for family, _ in kinds} == set(FAMILIES)
    assert len(kinds) == 21
    assert sum(map(len, MEANINGFUL.values())) > 1700
    assert STRUCK_SEQUENCE > 0


@pytest.mark.full
def test_faults_that_leave_the_worker_alive_leave_no_trace_in_rounds():
    """So that `exact` does not excuse what it must not."""
    for family in filter(whole_rounds, FAMILIES):
        for kind in KINDS:
            for fault in ("cut half-open", "reset", "slow"):
                for point in MEANINGFUL.get((family, kind, fault), ()):
                    run = FaultyRun(FAMILIES[family], kind, fault, point).go()
                    assert not run.told("continued"), (family, kind, fault, point)
                    np.testing.assert_array_equal(run.center, undisturbed(family, kind))
