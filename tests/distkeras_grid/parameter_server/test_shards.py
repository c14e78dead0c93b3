"""How a vector is cut, and what several servers tell together."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.errors import ConfigurationError, DataError
from distkeras_grid.parameter_server.checkpoint_state import SavedLedger, SavedSeat
from distkeras_grid.parameter_server.messages import CenterUpdate
from distkeras_grid.parameter_server.shards import (
    EventMerger,
    Shard,
    cut,
    lag,
    shard_run,
    shard_settings,
    shard_spec,
    split_parts,
)
from distkeras_grid.records import EpochEnded, WindowRecord, WorkerRecord
from distkeras_grid.spec import LayoutSpec
from tests.specs import make_settings, make_spec


@given(st.integers(1, 300), st.integers(0, 300), st.data())
def test_shards_are_the_vector_in_order_without_gap_or_overlap(trainable, statistics, data):
    servers = data.draw(st.integers(1, trainable))
    layout = LayoutSpec(trainable_size=trainable, statistics_size=statistics, worker_state_limit=9)
    shards = cut(layout, servers)
    assert [shard.number for shard in shards] == list(range(servers))
    assert (shards[0].start, shards[-1].stop) == (0, layout.size)
    assert all(a.stop == b.start for a, b in pairwise(shards))
    specs = [shard_spec(make_spec(layout=layout), shard) for shard in shards]
    assert [spec.size for spec in specs] == [shard.size for shard in shards]
    # each has something that the rule moves, and together they have every section
    assert all(spec.layout.trainable_size for spec in specs)
    for name in ("trainable_size", "statistics_size"):
        assert sum(getattr(s.layout, name) for s in specs) == getattr(layout, name)
    # what exists once is on the first
    assert [spec.layout.worker_state_limit for spec in specs] == [9] + [0] * (servers - 1)


@given(st.integers(1, 10**9), st.integers(1, 64))
def test_shards_of_trainable_numbers_are_of_equal_length(size, servers):
    if servers <= size:
        sizes = {shard.size for shard in cut(LayoutSpec(trainable_size=size), servers)}
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("servers", [0, 5])
def test_a_model_cannot_be_cut_over_more_servers_than_it_has_numbers(servers):
    with pytest.raises(ConfigurationError, match="num_servers"):
        cut(LayoutSpec(trainable_size=4, statistics_size=100), servers)


def test_a_shards_run_differs_in_its_layout_only():
    spec = make_spec(layout=LayoutSpec(trainable_size=6, statistics_size=3), epochs=4)
    own = shard_spec(spec, Shard(1, 4, 9))
    assert own.layout == LayoutSpec(trainable_size=2, statistics_size=3)
    assert own.change(layout=spec.layout) == spec


def test_the_servers_of_a_run_have_names_and_ports_of_their_own():
    settings = make_settings(trainable_size=9, port=7000)
    found = [shard_settings(settings, shard) for shard in cut(settings.spec.layout, 3)]
    assert [own.run for own in found] == [shard_run(settings.run, n) for n in range(3)]
    assert len({own.run for own in found}) == 3
    assert [own.place.port for own in found] == [7000, 7001, 7002]
    free = make_settings(trainable_size=9)
    assert {shard_settings(free, shard).place.port for shard in cut(free.spec.layout, 3)} == {0}


def window(number, worker=0, up=10, down=20, samples=1):
    return WindowRecord(
        *(worker, 0, 1, number, 1, samples, 0.5, {}, 0.0, 0.1, 0, up, down, float(number), 1)
    )


def update(*events, folded=0):
    return CenterUpdate(version=7, samples_folded=folded, seats=(), events=events)


def numbers(found):
    return [(e.worker, e.window) for e in found.events if isinstance(e, WindowRecord)]


def join(joined, told):
    """Let it hear the updates of each server, and return what is due."""
    for number, updates in enumerate(told):
        for each in updates:
            joined.add(number, each)
    return joined.due()


class TestJoined:
    def test_a_window_is_told_once_all_servers_have_folded_it_with_the_bytes_of_all(self):
        joined = EventMerger(3)
        first = join(joined, [[update(window(0))], [update(window(0))], [update()]])
        assert first.events == ()
        (then,) = join(joined, [[update()], [update()], [update(window(0, up=1, down=2))]]).events
        assert (then.bytes_up, then.bytes_down) == (21, 42)
        assert join(joined, [[update()], [update()], [update()]]).events == ()

    def test_the_order_is_that_of_the_first_server(self):
        joined = EventMerger(2)
        a, b = window(0, worker=0), window(0, worker=1)
        assert numbers(join(joined, [[update(a, b)], [update(b)]])) == []
        assert numbers(join(joined, [[update()], [update(a)]])) == [(0, 0), (1, 0)]

    def test_an_epoch_ends_after_its_windows_on_all_servers(self):
        joined = EventMerger(2)
        ended = EpochEnded(1, 1, 1, 0.0)
        assert join(joined, [[update(window(0), ended)], [update()]]).events == ()
        *windows, last = join(joined, [[update()], [update(window(0), ended)]]).events
        assert (len(windows), last) == (1, ended)

    def test_news_of_workers_do_not_wait_for_a_window_that_may_never_come(self):
        joined = EventMerger(2)
        lost, failed = WorkerRecord(0, 0, "lost"), WorkerRecord(1, 0, "failed", error="DataError")
        found = join(joined, [[update(window(0), lost)], [update(lost, failed)]])
        assert found.events == (lost, failed)

    def test_what_every_server_has_folded_counts(self):
        found = join(EventMerger(2), [[update(folded=5)], [update(folded=2), update(folded=4)]])
        assert (found.version, found.samples_folded) == (7, 4)

    @given(st.permutations(range(6)), st.permutations(range(6)), st.lists(st.integers(0, 3)))
    def test_each_window_is_told_once_in_whatever_order_servers_fold(self, mine, theirs, steps):
        joined = EventMerger(2)
        left = [[window(number) for number in order] for order in (mine, theirs)]
        told = []
        # The second server may be ahead of the first one, or behind it.
        for number, step in enumerate([*steps, 6, 6]):
            now = [[update()], [update()]]
            side = left[number % 2]
            now[number % 2] = [update(*(side.pop(0) for _ in range(min(step, len(side)))))]
            told += numbers(join(joined, now))
        assert told == [(0, number) for number in mine]

    def test_windows_that_a_server_had_before_the_run_went_on_come_again_from_the_first_only(self):
        joined = EventMerger(2, [{0: 2, 1: 0}])
        found = join(joined, [[update(*map(window, range(3)))], [update()]])
        assert numbers(found) == [(0, 0), (0, 1)]
        assert (found.events[0].bytes_up, found.events[0].bytes_down) == (10, 20)
        assert joined.waits
        assert numbers(join(joined, [[update()], [update(window(2))]])) == [(0, 2)]
        assert not joined.waits
        # Another worker's windows do not come again.
        assert numbers(join(joined, [[update(window(0, worker=1))], [update()]])) == []

    def test_what_was_heard_of_a_server_is_told_next(self):
        joined = EventMerger(2)
        failed = WorkerRecord(1, 0, "failed", error="DataError")
        joined.add(1, update(window(0), failed))
        assert join(joined, [[update(window(0))], [update()]]).events[0] == failed
        assert not joined.waits
        assert joined.failed == {1}

    def test_what_was_heard_of_the_first_server_waits_for_the_others(self):
        """The driver may be interrupted in between."""
        joined = EventMerger(2)
        joined.add(0, update(window(0), folded=1))
        joined.add(1, update(window(0), folded=1))
        joined.add(0, update(window(1), folded=2))
        found = join(joined, [[update(folded=2)], [update(window(1), folded=2)]])
        assert (numbers(found), found.samples_folded) == ([(0, 0), (0, 1)], 2)

    def test_epochs_are_compared(self):
        joined, ended = EventMerger(3), EpochEnded(1, 1, 1, 0.0)
        assert joined.same_epoch
        join(joined, [[update(ended)], [update(ended)], [update()]])
        assert not joined.same_epoch
        joined.add(2, update(ended))
        assert joined.same_epoch


def ledger(*sequences, epochs=0):
    seats = [SavedSeat(4, "", sequence, sequence, 0) for sequence in sequences]
    return SavedLedger(sum(sequences), sum(sequences), 0, False, None, epochs, False, seats)


def test_servers_of_a_checkpoint_are_as_far_as_the_first_or_further():
    assert lag(ledger(1, 2), ledger(1, 4)) == {0: 0, 1: 2}
    with pytest.raises(DataError):
        lag(ledger(1, 2), ledger(2, 1))


def test_servers_of_a_checkpoint_are_in_the_same_epoch():
    """A server that is ahead would not make the snapshot of its last epoch again."""
    with pytest.raises(DataError, match="epochs"):
        lag(ledger(1, 2), ledger(1, 3, epochs=1))


def test_each_server_receives_its_own_parts_of_a_checkpoint():
    parts = [np.full(1, number, np.uint8) for number in range(5)]
    own = split_parts(parts, 3)
    assert [[int(part[0]) for part in each] for each in own] == [[0, 1, 2], [3], [4]]
    assert split_parts((), 3) == [(), (), ()]


def test_slices_of_a_center_are_views():
    """So that cutting it costs no memory."""
    center = np.zeros(10, np.float32)
    for shard in cut(LayoutSpec(trainable_size=10), 3):
        part = center[shard.span]
        assert part.flags.c_contiguous
        assert np.shares_memory(part, center)
