"""Where a model is cut: into stages of about equal time, each within the memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.cuts import LayerGroup, choose_cuts, place_cuts
from distkeras_grid.spark.memory import VECTORS


def piece(number, seconds=1.0, held=0, kept=0, sent=0, trains=True, weights=0):
    return LayerGroup(
        name=f"layer{number}",
        forward=seconds / 3,
        backward=2 * seconds / 3,
        state_bytes=held,
        activation_bytes=kept,
        sent=sent,
        trains=trains,
        weights=weights,
    )


@given(st.lists(st.tuples(st.floats(0.01, 5.0), st.booleans()), min_size=1, max_size=12), st.data())
def test_stages_are_the_whole_model_in_its_order_and_each_trains(values, data):
    pieces = [piece(n, seconds, trains=trains) for n, (seconds, trains) in enumerate(values)]
    trained = sum(each.trains for each in pieces)
    stages = data.draw(st.integers(1, max(1, trained)))
    if not trained:
        return
    found = choose_cuts(pieces, stages, 2).stages
    assert [each.start for each in found] == [0, *(each.stop for each in found[:-1])]
    assert (len(found), found[-1].stop) == (stages, len(pieces))
    assert all(any(p.trains for p in pieces[each.start : each.stop]) for each in found)


@given(st.lists(st.floats(0.01, 5.0), min_size=1, max_size=12), st.data())
def test_no_stage_is_slower_than_an_even_part_and_the_slowest_piece(seconds, data):
    stages = data.draw(st.integers(1, len(seconds)))
    found = choose_cuts([piece(n, each) for n, each in enumerate(seconds)], stages, 2).stages
    bound = sum(seconds) / stages + max(seconds)
    assert max(stage.seconds for stage in found) <= bound * (1 + 1e-9)


def test_the_slowest_stage_sets_the_pace():
    pieces = [piece(n, seconds) for n, seconds in enumerate((1, 1, 1, 3))]
    assert choose_cuts(pieces, 2, 4).cuts == ("layer2",)


def test_the_last_stage_also_holds_the_vectors_of_all_weights():
    """Four pieces of 25 million weights, plain SGD: 500 MB are not all that a worker holds."""
    pieces = [piece(n, held=300_000_000, weights=100_000_000) for n in range(4)]
    stages = choose_cuts(pieces, 4, 4).stages
    assert [s.memory // 10**6 for s in stages] == [400, 400, 400, 300 + VECTORS * 400]
    with pytest.raises(ConfigurationError, match="vectors of all weights"):
        choose_cuts(pieces, 4, 4, limit=600e6)
    assert choose_cuts(pieces, 4, 4, limit=2700e6).cuts == ("layer0", "layer1", "layer2")


def test_named_cuts_are_made_where_they_are():
    pieces = [piece(n) for n in range(4)]
    assert place_cuts(pieces, ("layer0", "layer2"), 2).cuts == ("layer0", "layer2")


def test_named_cuts_stay_within_the_memory():
    """The first stage holds two micro-batches, the last one the vectors of all weights."""
    pieces = [piece(0, held=60, kept=10, weights=1), piece(1, held=10, kept=20, weights=1)]
    placement = place_cuts(pieces, ("layer0",), 2, input_bytes=5, limit=91)
    assert [stage.memory for stage in placement.stages] == [60 + 2 * 15 + 1, 30 + 2 * VECTORS]
    with pytest.raises(ConfigurationError, match=r"memory_limit.*layer0"):
        place_cuts(pieces, ("layer0",), 2, input_bytes=5, limit=90)
    light = [piece(0), piece(1, held=60, weights=1)]
    with pytest.raises(ConfigurationError, match=r"memory_limit.*layer1"):
        place_cuts(light, ("layer0",), 2, limit=59 + VECTORS)


@pytest.mark.parametrize(
    "names", [("none",), ("layer2", "layer0"), ("layer1", "layer1"), ("layer3",)]
)
def test_cuts_where_none_is_possible_are_refused_with_those_that_are(names):
    with pytest.raises(ConfigurationError, match="layer0, layer1, layer2"):
        place_cuts([piece(n) for n in range(4)], names, 2)


def test_each_stage_has_something_to_train():
    pieces = [piece(0, trains=False), piece(1), piece(2, trains=False)]
    with pytest.raises(ConfigurationError, match="1 parts"):
        choose_cuts(pieces, 2, 1)
    with pytest.raises(ConfigurationError, match="layer0"):
        place_cuts(pieces, ("layer0",), 1)
