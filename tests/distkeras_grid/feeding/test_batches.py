from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.feeding.batches import BLOCK_STEPS, epoch_order, windows

rows_ = st.integers(0, 400)
batch_sizes = st.integers(1, 40)
windows_ = st.none() | st.integers(1, 50)


def all_windows(rows, batch_size, window, epochs=2, *, shuffle=True, start=0, seat=0, seed=3):
    return list(
        windows(
            rows,
            batch_size,
            window,
            epochs,
            seed=seed,
            seat=seat,
            shuffle=shuffle,
            start_sequence=start,
        )
    )


def flat(window):
    return [int(i) for block in window.blocks for i in block.ravel()]


@given(rows_, batch_sizes, windows_, st.booleans())
def test_every_row_of_every_epoch_comes_exactly_once(rows, batch_size, window, shuffle):
    found = all_windows(rows, batch_size, window, epochs=3, shuffle=shuffle)
    for epoch in (1, 2, 3):
        order = [i for w in found if w.epoch == epoch for i in flat(w)]
        assert sorted(order) == list(range(rows))
        assert shuffle or order == list(range(rows))


@given(rows_, batch_sizes, windows_)
def test_windows_have_the_asked_sizes_and_only_the_last_is_smaller(rows, batch_size, window):
    found = all_windows(rows, batch_size, window, epochs=1)
    length = window or math.ceil(rows / batch_size)
    for number, each in enumerate(found):
        assert (each.epoch, each.window, each.sequence) == (1, number, number)
        assert all(block.shape[1] == batch_size for block in each.blocks[:-1])
        assert all(block.shape[0] <= (window or BLOCK_STEPS) for block in each.blocks)
        steps = sum(len(block) for block in each.blocks)
        assert steps == length or each is found[-1]
        assert 0 < len(flat(each)) <= length * batch_size


@given(rows_, batch_sizes, windows_, st.data())
def test_a_retry_at_any_window_goes_on_as_the_first_try_would(rows, batch_size, window, data):
    complete = all_windows(rows, batch_size, window)
    start = data.draw(st.integers(0, len(complete)))
    rest = all_windows(rows, batch_size, window, start=start)
    assert [w.sequence for w in rest] == [w.sequence for w in complete[start:]]
    assert [flat(w) for w in rest] == [flat(w) for w in complete[start:]]


def test_order_depends_on_seed_seat_and_epoch():
    orders = [
        tuple(epoch_order(100, seed, seat, epoch, shuffle=True))
        for seed, seat, epoch in [(0, 0, 1), (1, 0, 1), (0, 1, 1), (0, 0, 2)]
    ]
    assert len(set(orders)) == 4
    assert orders[0] == tuple(epoch_order(100, 0, 0, 1, shuffle=True))


def test_start_past_the_end_gives_nothing():
    assert all_windows(10, 2, 3, start=4) == []


def test_blocks_are_int64_of_steps_and_batch():
    (only,) = all_windows(7, 2, None, epochs=1)
    assert [(block.shape, block.dtype) for block in only.blocks] == [
        ((3, 2), np.int64),
        ((1, 1), np.int64),
    ]
