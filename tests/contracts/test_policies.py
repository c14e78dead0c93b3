"""What every policy promises: which rows come in which window, the same at every try.

A policy of another kind adds a class with a strategy of its own, and must pass.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.feeding.batches import BLOCK_STEPS, EpochSampler, epoch_order, policy_of
from distkeras_grid.local_sets.sampler import TileSampler
from distkeras_grid.local_sets.tile_index import TileIndex
from distkeras_grid.local_sets.worker_sampler import LocalSetSampler
from distkeras_grid.spec import LocalSpec, ScheduleSpec


def flat(window):
    return [int(i) for block in window.blocks for i in block.ravel()]


def check_policy(policy, rows, start):
    """Hold a policy for so many rows to what `BatchSampler` says, begun at window `start` too."""
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
    EpochSampler,
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


@given(
    st.integers(1, 3),
    st.integers(1, 40),
    st.none() | st.integers(1, 5),
    st.integers(0, 6),
)
def test_local_sets_keep_the_contract(classes, size, window, start):
    pool = TileIndex.of(
        [30] * 2 * classes, range(2 * classes), np.arange(2 * classes) % classes, classes
    )
    spec = LocalSpec(local_train=min(size, 30 * classes))
    drawing = TileSampler(pool, pool.select(pool.tiles < 0), spec, seed=1, workers=2)
    schedule = ScheduleSpec(rows=2 * size, workers=2, batch_size=7, window=window, epochs=4)
    check_policy(LocalSetSampler.of(drawing, schedule, 1), len(pool), start)


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
    policy = EpochSampler(rows=50, batch_size=7, window=3, epochs=2, bootstrap=True)
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


@given(st.integers(1, 5), st.integers(1, 40), st.integers(1, 20), st.integers(1, 5), st.data())
def test_all_workers_have_the_same_windows_in_an_epoch(workers, share, batch, window, data):
    """Shares differ by a row at most; no worker has a round alone, and no row is left out."""
    rows = share * workers + data.draw(st.integers(0, workers - 1))
    schedule = ScheduleSpec(rows=rows, workers=workers, batch_size=batch, window=window, epochs=2)
    found = set()
    for number in range(workers):
        own = rows // workers + (number < rows % workers)
        policy = policy_of(schedule, own, number)
        windows = check_policy(policy, own, data.draw(st.integers(0, 20)))
        found.add(tuple((each.epoch, each.window) for each in windows))
        assert {each.window for each in windows} == set(range(schedule.windows_per_epoch(own)))
        for epoch in (1, 2):
            order = [i for each in windows if each.epoch == epoch for i in flat(each)]
            assert sorted(order) == list(range(own))
    assert len(found) == 1


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
    assert policy_of(schedule, 20, 5) == EpochSampler(
        rows=20,
        batch_size=4,
        epochs=6,
        epochs_per_window=2,
        seed=3,
        seat=5,
        bootstrap=True,
        windows_per_epoch=1,
    )


@given(policies, st.integers(0, 3))
def test_after_epochs_of_others_come_the_windows_of_the_others(policy, before):
    """As in the whole policy, with numbers from 0 on; the batches of all epochs are counted."""
    policy = replace(policy, epochs_per_window=1)
    whole = list(policy.windows())
    later = [window for window in whole if window.epoch > before]
    found = list(replace(policy, before=min(before, policy.epochs)).windows())
    assert [(w.epoch, w.window, flat(w)) for w in found] == [
        (w.epoch, w.window, flat(w)) for w in later
    ]
    assert [window.sequence for window in found] == list(range(len(later)))
    other = replace(policy, before=before)
    for window, old in zip(found, later, strict=True):
        assert other.steps_before(window.sequence) == policy.steps_before(old.sequence)
