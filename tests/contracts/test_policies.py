"""What every policy promises: which rows come in which window, the same at every try.

A policy of another kind adds a class with a strategy of its own, and must pass.
"""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.feeding.batches import BLOCK_STEPS, Epochs, epoch_order, policy_of
from distkeras_grid.spec import ScheduleSpec


def flat(window):
    return [int(i) for block in window.blocks for i in block.ravel()]


def check_policy(policy, rows, start):
    """Hold a policy for so many rows to what `Policy` says, begun at window `start` too."""
    complete = list(policy.windows())
    assert [window.sequence for window in complete] == list(range(len(complete)))
    steps = 0
    for number, window in enumerate(complete):
        assert policy.steps_before(number) == steps
        assert window.blocks
        for block in window.blocks:
            assert block.dtype == np.int64
            assert block.ndim == 2
            assert 0 not in block.shape
            assert block.min() >= 0
            assert block.max() < rows
        assert window.steps == sum(len(block) for block in window.blocks)
        steps += window.steps
    rest = list(policy.windows(min(start, len(complete))))
    assert [(w.sequence, w.epoch, w.window, flat(w)) for w in rest] == [
        (w.sequence, w.epoch, w.window, flat(w)) for w in complete[start:]
    ]
    assert list(policy.windows(len(complete) + 1)) == []
    return complete


policies = st.builds(
    Epochs,
    rows=st.integers(0, 400),
    batch_size=st.integers(1, 40),
    window=st.none() | st.integers(1, 50),
    epochs=st.integers(1, 3),
    epochs_per_window=st.integers(1, 3),
    seed=st.integers(0, 5),
    seat=st.integers(0, 3),
    shuffle=st.booleans(),
    bootstrap=st.booleans(),
)


@given(policies, st.integers(0, 60))
def test_epochs_keep_the_contract(policy, start):
    check_policy(policy, policy.rows, start)


@given(policies, st.integers(0, 5))
def test_local_sets_fit_as_another_policy(policy, start):
    """A class-balanced set for each (seed, iteration, worker), as a grid of desktops drew them."""
    kinds = np.arange(policy.rows) % 3
    check_policy(LocalSets(kinds, 2, policy.batch_size, policy.epochs), policy.rows, start)


class LocalSets:
    """As many rows of each class in each window, drawn anew; what no epoch could do."""

    def __init__(self, kinds, each, batch_size, iterations):
        self._places = [np.flatnonzero(kinds == kind) for kind in np.unique(kinds)]
        self._each, self._batch_size, self._iterations = each, batch_size, iterations
        self._size = each * len(self._places)

    def windows(self, start=0):
        from distkeras_grid.feeding.batches import Window, blocks_of

        for number in range(start, self._iterations if self._size else 0):
            rng = np.random.default_rng([0, number])
            drawn = [rng.choice(places, self._each) for places in self._places]
            blocks = blocks_of(rng.permutation(np.concatenate(drawn)), self._batch_size, 32)
            yield Window(number, number + 1, 0, blocks)

    def steps_before(self, sequence):
        return sequence * math.ceil(self._size / self._batch_size)


# -- epochs -------------------------------------------------------------------------------------


@given(policies)
def test_every_row_of_every_epoch_comes_exactly_once(policy):
    rows = policy.rows
    kept = set(range(rows))
    found = [flat(window) for window in policy.windows()]
    order = [i for window in found for i in window]
    assert len(order) == rows * policy.epochs
    epochs = [order[n * rows : (n + 1) * rows] for n in range(policy.epochs)]
    for each in epochs:
        if not policy.bootstrap:
            assert set(each) == kept
            assert policy.shuffle or each == sorted(each)
        else:
            assert sorted(each) == sorted(epochs[0])


def test_a_bootstrap_draws_as_many_rows_once_for_all_epochs():
    policy = Epochs(rows=50, batch_size=7, window=3, epochs=2, bootstrap=True)
    order = [i for window in policy.windows() for i in flat(window)]
    assert sorted(order[:50]) == sorted(order[50:])
    assert order[:50] != order[50:]
    assert 20 < len(set(order)) < 45


@given(policies)
def test_windows_have_the_asked_sizes_and_only_the_last_of_an_epoch_is_smaller(policy):
    steps = math.ceil(policy.rows / policy.batch_size)
    for window in policy.windows():
        if policy.window is None:
            left = policy.epochs - window.epoch + 1
            assert window.steps == steps * min(policy.epochs_per_window, left)
            assert all(block.shape[0] <= BLOCK_STEPS for block in window.blocks)
        else:
            before = window.window * policy.window
            assert window.steps == min(policy.window, steps - before)
        assert all(block.shape[1] <= policy.batch_size for block in window.blocks)


def test_order_depends_on_seed_seat_and_epoch():
    orders = [
        tuple(epoch_order(100, seed, seat, epoch, shuffle=True))
        for seed, seat, epoch in [(0, 0, 1), (1, 0, 1), (0, 1, 1), (0, 0, 2)]
    ]
    assert len(set(orders)) == 4
    assert orders[0] == tuple(epoch_order(100, 0, 0, 1, shuffle=True))


def test_a_schedule_has_the_policy_of_its_fields():
    schedule = ScheduleSpec(
        rows=99, batch_size=4, window=None, epochs=6, epochs_per_window=2, seed=3, bootstrap=True
    )
    assert policy_of(schedule, 20, 5) == Epochs(
        rows=20, batch_size=4, epochs=6, epochs_per_window=2, seed=3, seat=5, bootstrap=True
    )


@given(policies)
def test_once_is_the_first_epoch_alone(policy):
    once = [i for window in policy.once().windows() for i in flat(window)]
    whole = [i for window in policy.windows() for i in flat(window)]
    assert once == whole[: policy.rows]
