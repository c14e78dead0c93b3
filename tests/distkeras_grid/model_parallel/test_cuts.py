"""Where a model is cut: the best way of all, within the memory."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.cuts import SLACK, Piece, choose_cuts, given_cuts
from distkeras_grid.model_parallel.schedule import in_flight
from distkeras_grid.spark.memory import VECTORS


def piece(number, seconds=1.0, held=0, kept=0, sent=0, trains=True, weights=0):
    return Piece(
        name=f"layer{number}",
        forward=seconds / 3,
        backward=2 * seconds / 3,
        held=held,
        kept=kept,
        sent=sent,
        trains=trains,
        weights=weights,
    )


def all_ways(pieces, stages, micro_batches, given_bytes):
    """Slowest stage and largest memory of each way to cut in which all stages train something."""
    inputs = [given_bytes, *(p.sent for p in pieces)]
    for inner in combinations(range(1, len(pieces)), stages - 1):
        blocks = list(pairwise((0, *inner, len(pieces))))
        if not all(any(p.trains for p in pieces[a:b]) for a, b in blocks):
            continue
        seconds = max(sum(p.forward + p.backward for p in pieces[a:b]) for a, b in blocks)
        memory = max(
            sum(p.held for p in pieces[a:b])
            + in_flight(stages, rank, micro_batches)
            * (sum(p.kept for p in pieces[a:b]) + inputs[a])
            + (
                VECTORS * sum(p.weights for p in pieces)
                if rank == stages - 1
                else sum(p.weights for p in pieces[a:b])
            )
            for rank, (a, b) in enumerate(blocks)
        )
        yield seconds, memory


numbers = st.integers(0, 50)
many = st.lists(
    st.tuples(st.floats(0.01, 5.0), numbers, numbers, numbers, st.booleans(), numbers),
    min_size=1,
    max_size=8,
)


@given(
    many, st.integers(1, 4), st.integers(1, 6), numbers, st.one_of(st.none(), st.integers(0, 300))
)
def test_no_other_way_is_better(values, stages, micro_batches, given_bytes, limit):
    pieces = [piece(number, *value) for number, value in enumerate(values)]
    ways = list(all_ways(pieces, stages, micro_batches, given_bytes))
    fitting = [way for way in ways if limit is None or way[1] <= limit]
    if not fitting:
        with pytest.raises(ConfigurationError):
            choose_cuts(pieces, stages, micro_batches, given=given_bytes, limit=limit)
        return
    found = choose_cuts(pieces, stages, micro_batches, given=given_bytes, limit=limit)
    bound = SLACK * min(seconds for seconds, _ in fitting) * (1 + 1e-9)
    assert max(stage.seconds for stage in found.stages) <= bound
    least = min(memory for seconds, memory in fitting if seconds <= bound / (1 + 2e-9))
    largest = max(stage.memory for stage in found.stages)
    assert largest <= least
    assert limit is None or largest <= limit
    # The stages are all of the model, in its order.
    assert [(s.start, s.stop) for s in found.stages] == list(
        pairwise((0, *(s.stop for s in found.stages)))
    )
    assert found.stages[-1].stop == len(pieces)


def test_the_slowest_stage_sets_the_pace():
    pieces = [piece(n, seconds) for n, seconds in enumerate((1, 1, 1, 3))]
    assert choose_cuts(pieces, 2, 4).cuts == ("layer2",)


def test_of_ways_equally_fast_that_with_less_memory_is_taken():
    """An early stage holds more micro-batches, so what keeps much belongs to a late one."""
    pieces = [piece(0), piece(1, 0.001, kept=100), piece(2)]
    assert choose_cuts(pieces, 2, 4).cuts == ("layer0",)


def test_a_bound_of_the_memory_may_cost_time():
    pieces = [piece(0, held=60), piece(1, 0.5, held=60), piece(2, 0.5, held=10), piece(3, 0.1)]
    assert choose_cuts(pieces, 2, 1).cuts == ("layer0",)
    heavy = [piece(0, 0.3, held=60), piece(1, held=60), piece(2, held=10), piece(3, 0.1)]
    assert choose_cuts(heavy, 2, 1).cuts == ("layer1",)
    assert choose_cuts(heavy, 2, 1, limit=75).cuts == ("layer0",)


def test_the_last_stage_also_holds_the_vectors_of_all_weights():
    """Four pieces of 25 million weights, plain SGD: 500 MB are not all that a worker holds."""
    pieces = [piece(n, held=300_000_000, weights=100_000_000) for n in range(4)]
    stages = choose_cuts(pieces, 4, 4).stages
    assert [s.memory // 10**6 for s in stages] == [400, 400, 400, 300 + VECTORS * 400]
    with pytest.raises(ConfigurationError, match="vectors of all weights"):
        choose_cuts(pieces, 4, 4, limit=600e6)
    assert choose_cuts(pieces, 4, 4, limit=2700e6).cuts == ("layer0", "layer1", "layer2")


def test_the_last_stage_gets_less_because_of_its_vectors():
    pieces = [piece(n, held=6, weights=2) for n in range(6)]
    assert choose_cuts(pieces, 2, 1, limit=120).cuts == ("layer2",)
    assert choose_cuts(pieces, 2, 1, limit=VECTORS * 12 + 6).cuts == ("layer4",)


def test_predicted_waiting_is_that_of_the_schedule():
    placement = choose_cuts([piece(0), piece(1)], 2, 3)
    assert placement.bubble == pytest.approx(1 / 4)
    assert len(placement.table()) == 4


def test_named_cuts_are_made_where_they_are():
    pieces = [piece(n) for n in range(4)]
    assert given_cuts(pieces, ("layer0", "layer2"), 2).cuts == ("layer0", "layer2")


def test_named_cuts_stay_within_the_memory():
    """The first stage holds two micro-batches, the last one the vectors of all weights."""
    pieces = [piece(0, held=60, kept=10, weights=1), piece(1, held=10, kept=20, weights=1)]
    placement = given_cuts(pieces, ("layer0",), 2, given=5, limit=91)
    assert [stage.memory for stage in placement.stages] == [60 + 2 * 15 + 1, 30 + 2 * VECTORS]
    with pytest.raises(ConfigurationError, match=r"memory_limit.*layer0"):
        given_cuts(pieces, ("layer0",), 2, given=5, limit=90)
    light = [piece(0), piece(1, held=60, weights=1)]
    with pytest.raises(ConfigurationError, match=r"memory_limit.*layer1"):
        given_cuts(light, ("layer0",), 2, limit=59 + VECTORS)


@pytest.mark.parametrize(
    "names", [("none",), ("layer2", "layer0"), ("layer1", "layer1"), ("layer3",)]
)
def test_cuts_where_none_is_possible_are_refused_with_those_that_are(names):
    with pytest.raises(ConfigurationError, match="layer0, layer1, layer2"):
        given_cuts([piece(n) for n in range(4)], names, 2)


def test_each_stage_has_something_to_train():
    pieces = [piece(0, trains=False), piece(1), piece(2, trains=False)]
    with pytest.raises(ConfigurationError, match="1 parts"):
        choose_cuts(pieces, 2, 1)
    with pytest.raises(ConfigurationError, match="layer0"):
        given_cuts(pieces, ("layer0",), 1)
