"""How a vector is cut, and what several servers tell together."""

from collections import Counter
from itertools import pairwise, takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.errors import ConfigurationError
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


def update(*events, folded=0):
    return CenterUpdate(version=7, samples_folded=folded, seats=(), events=events)


def events_of(server, order):
    """Return what a server tells that folds windows of workers in this order: three are an epoch.

    The bytes of a window are another number on each server.
    """
    told, counts = [], Counter()
    for number, worker in enumerate(order, 1):
        up, down, place = 10**server, 2 * 10**server, counts[worker]
        told.append(
            WindowRecord(
                *(worker, 0, 1, place, 1, 1, 0.5, {}, 0.0, 0.1, 0, up, down, float(number), number)
            )
        )
        counts[worker] += 1
        if number % 3 == 0:
            told.append(EpochEnded(number // 3, number, number, 0.0))
    return told


def place_of(event):
    return (event.worker, event.window) if isinstance(event, WindowRecord) else None


def parts_of(event, heard, ahead):
    """Return the bytes that each server has told of a window; None where it still lacks it."""
    parts = [1]
    for number, (other, had) in enumerate(zip(heard[1:], ahead, strict=True), 1):
        if place_of(event) in map(place_of, other):
            parts.append(10**number)
        else:
            parts.append(0 if event.window < had[event.worker] else None)
    return parts


def is_due(event, heard, ahead):
    return isinstance(event, EpochEnded) or None not in parts_of(event, heard, ahead)


@given(st.data())
def test_several_servers_tell_what_the_first_one_tells_once_all_have_folded_it(data):
    """In whatever order each folds, and however far it was when the run went on.

    What a checkpoint of the first server has is told at once.
    """
    servers, workers = 3, [0, 0, 0, 1, 1, 1]
    streams = [events_of(server, data.draw(st.permutations(workers))) for server in range(servers)]
    # Windows that the other servers had folded before are told by the first one only.
    ahead = [{n: data.draw(st.integers(0, 2)) for n in (0, 1)} for _ in range(1, servers)]
    for stream, had in zip(streams[1:], ahead, strict=True):
        stream[:] = [
            e for e in stream if not (isinstance(e, WindowRecord) and e.window < had[e.worker])
        ]
    joined, heard = EventMerger(servers, [dict(had) for had in ahead]), [[] for _ in streams]
    told, sizes, flushes = [], {}, data.draw(st.booleans())

    steps = data.draw(st.lists(st.tuples(st.integers(0, servers - 1), st.integers(0, 3))))
    for server, count in [*steps, *((server, 10) for server in range(servers))]:
        news, streams[server] = streams[server][:count], streams[server][count:]
        heard[server] += news
        folded = sum(isinstance(event, WindowRecord) for event in heard[0])
        joined.add(0, update(folded=folded))
        joined.add(server, update(*news, folded=folded))
        if flushes and len(steps) > count > 1:
            joined.flush()
            due = heard[0]
        else:
            left = heard[0][len(told) :]
            due = told + list(takewhile(lambda e: is_due(e, heard, ahead), left))
        for event in due[len(told) :]:
            if isinstance(event, WindowRecord):
                sizes[place_of(event)] = sum(filter(None, parts_of(event, heard, ahead)))
        found = joined.merged_update()
        told += found.events
        assert list(map(place_of, told)) == list(map(place_of, due))
        assert found.samples_folded == sum(isinstance(event, WindowRecord) for event in told)
    assert len(told) == len(heard[0])
    # Nothing is kept of what was told.
    assert not any(queue for other in joined._others for queue in other._sizes.values())
    assert not any(any(other._owed.values()) for other in joined._others)
    for event in told:
        if isinstance(event, WindowRecord):
            up = sizes[place_of(event)]
            assert (event.bytes_up, event.bytes_down) == (up, 2 * up)


def test_a_window_that_the_first_one_had_when_the_run_went_on_is_told_no_more():
    """The others fold it now, and the first one tells the next one."""
    joined = EventMerger(2, [{0: -1}])
    first, second = events_of(1, [0, 0])
    joined.add(1, update(first))
    (again,) = events_of(0, [0, 0])[1:]
    joined.add(0, update(again))
    assert joined.merged_update().events == ()
    joined.add(1, update(second))
    (told,) = joined.merged_update().events
    assert (told.window, told.bytes_up) == (1, 11)


def test_news_of_workers_do_not_wait_for_a_window_that_may_never_come():
    joined, (first, *_) = EventMerger(2), events_of(0, [0])
    lost, failed = WorkerRecord(0, 0, "lost"), WorkerRecord(1, 0, "failed", error="DataError")
    joined.add(0, update(first, lost))
    joined.add(1, update(lost, failed))
    assert joined.merged_update().events == (lost, failed)


def ledger(*sequences, epochs=0):
    seats = [SavedSeat(4, "", sequence, sequence, 0, 1) for sequence in sequences]
    return SavedLedger(sum(sequences), sum(sequences), 0, False, None, epochs, False, seats, [], [])


def test_a_server_of_a_checkpoint_may_be_ahead_of_the_first_one():
    assert lag(ledger(1, 2), ledger(1, 4)) == {0: 0, 1: 2}
    assert lag(ledger(1, 2), ledger(0, 3, epochs=1)) == {0: -1, 1: 1}


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
