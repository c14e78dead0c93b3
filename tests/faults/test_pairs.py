"""Every pair of a point and a fault on real processes: workers, server and the driver's own loop.

Families and kinds of training alternate, so that each of them meets each fault and each point, too.
`tests/invariants/test_fault_product.py` has the whole product on the cores, and says what ends with
which error.
"""

from __future__ import annotations

import itertools
import platform

import numpy as np
import pytest

from distkeras_grid.errors import NoSpaceError
from tests.faults.pairs import FRAMES, NEXT, Pair
from tests.invariants.fault_runs import FAULTS
from tests.invariants.small_runs import EPOCHS, SEAT_ROWS
from tests.invariants.test_fault_product import (
    FAMILIES,
    KINDS,
    POINTS,
    error_due,
    goes_on_without,
    left_out_because,
    whole_rounds,
)

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("forkserver")]

#: In `make test`; all pairs in `make test-full` and `make test-faults`.
SMOKE = {
    ("window", "kill"),
    ("half a commit", "reset"),
    ("folded and no reply", "zombie twin"),
    ("half of what it keeps", "cut half-open"),
}


ALL = [
    (point, fault, family, kind)
    for point, fault, family, kind in itertools.product(POINTS, FAULTS, FAMILIES, KINDS)
    if not left_out_because(family, kind, point, fault)
]


def pairs_in(run):
    """The pairs of any two of point, fault, family and kind."""
    return set(itertools.combinations(run, 2))


def all_pairs():
    """Runs in which each pair that has a meaning happens: one of each point and fault, and more."""
    left = set().union(*map(pairs_in, ALL))
    chosen = []
    for _, fits in itertools.groupby(ALL, lambda run: run[:2]):
        chosen.append(max(fits, key=lambda run: len(left & pairs_in(run))))
        left -= pairs_in(chosen[-1])
    while left:
        chosen.append(max(ALL, key=lambda run: len(left & pairs_in(run))))
        left -= pairs_in(chosen[-1])
    return chosen


def marked(run):
    return pytest.param(*run, marks=[] if run[:2] in SMOKE else [pytest.mark.full])


@pytest.mark.parametrize(("point", "fault", "family", "kind"), list(map(marked, all_pairs())))
@pytest.mark.promise(
    "any fault of a worker, at any point of its run",
    "Each window counts once; the run ends with its result, or an error that names the worker.",
)
def test_each_fault_at_each_point(tmp_path, point, fault, family, kind):
    pair = Pair(tmp_path, FAMILIES[family], kind, point, fault).go()
    due = error_due(family, point, fault)
    assert type(pair.error) is (due or type(None)), pair.error
    # A quorum may end before the point is reached, or before all five have died.
    assert pair.strikes > 0
    found = [(window.worker, window.epoch, window.window) for window in pair.history.records]
    assert len(found) == len(set(found))
    if due is not None:
        assert f"orker {pair.victim}" in str(pair.error)
        if goes_on_without(family, fault):
            assert pair.history.samples >= SEAT_ROWS * EPOCHS * (pair.workers - 1)
        return
    assert np.isfinite(pair.center).all()
    if "quorum" not in family:
        assert pair.history.samples == SEAT_ROWS * EPOCHS * pair.workers
    innocent = [seat for seat, _ in pair.launch.attempts if seat != pair.victim]
    assert len(innocent) == pair.workers - 1
    continued = [e for e in pair.history.workers if e.status == "continued"]
    exact = kind == "BatchNorm" or all(e.windows == e.state_windows for e in continued)
    if whole_rounds(family) and exact:
        (tmp_path / "undisturbed").mkdir()
        whole = Pair(tmp_path / "undisturbed", FAMILIES[family], kind).go()
        np.testing.assert_array_equal(pair.center, whole.center)


@pytest.mark.promise(
    "disk of a worker's host: full, or it fails",
    "Another attempt goes on, on another host perhaps. If it is so each time, trainers without "
    "rounds go on without the worker; at last one `NoSpaceError` or `LocalDiskError` names it.",
)
@pytest.mark.parametrize("family", ["delta", "averaging with quorum", "averaging"])
def test_a_disk_that_is_full_each_time_ends_only_the_work_of_its_worker(tmp_path, family):
    pair = Pair(tmp_path, FAMILIES[family], "BatchNorm", "spool", "disk full x5").go()
    given_up = [record for record in pair.history.workers if record.status == "given up"]
    assert [record.worker for record in given_up] == [pair.victim]
    assert [record.error for record in given_up] == ["NoSpaceError"]
    if family == "averaging with quorum":
        assert pair.error is None
        return
    assert type(pair.error) is NoSpaceError
    assert f"orker {pair.victim} on {platform.node()}" in str(pair.error)
    others = 0 if family == "averaging" else SEAT_ROWS * EPOCHS * (pair.workers - 1)
    assert pair.history.samples == others


def test_every_pair_that_has_a_meaning_is_there():
    found = all_pairs()
    assert set().union(*map(pairs_in, found)) == set().union(*map(pairs_in, ALL))
    assert {point for point, *_ in found} == {*FRAMES, *NEXT}
    assert len(found) == len(set(found))
