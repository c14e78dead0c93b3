"""Where a model is cut: into stages of about equal time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.cuts import LayerGroup, choose_cuts


def piece(number, seconds=1.0, trains=True):
    return LayerGroup(
        name=f"layer{number}", forward=seconds / 3, backward=2 * seconds / 3, sent=0, trains=trains
    )


@given(st.lists(st.tuples(st.floats(0.01, 5.0), st.booleans()), min_size=1, max_size=12), st.data())
def test_stages_are_the_whole_model_in_its_order_and_each_trains(values, data):
    pieces = [piece(n, seconds, trains=trains) for n, (seconds, trains) in enumerate(values)]
    trained = sum(each.trains for each in pieces)
    stages = data.draw(st.integers(1, max(1, trained)))
    if not trained:
        return
    found = choose_cuts(pieces, stages, 2).stages
    ends = [int(stage.name.removeprefix("layer")) for stage in found]
    assert ends == sorted({*ends})
    assert (len(ends), ends[-1]) == (stages, len(pieces) - 1)
    assert all(stage.trains for stage in found)
    whole = sum(each.seconds for each in pieces)
    assert sum(stage.seconds for stage in found) == pytest.approx(whole)


@given(st.lists(st.floats(0.01, 5.0), min_size=1, max_size=12), st.data())
def test_no_stage_is_slower_than_an_even_part_and_the_slowest_piece(seconds, data):
    stages = data.draw(st.integers(1, len(seconds)))
    found = choose_cuts([piece(n, each) for n, each in enumerate(seconds)], stages, 2).stages
    bound = sum(seconds) / stages + max(seconds)
    assert max(stage.seconds for stage in found) <= bound * (1 + 1e-9)


def test_the_slowest_stage_sets_the_pace():
    pieces = [piece(n, seconds) for n, seconds in enumerate((1, 1, 1, 3))]
    assert choose_cuts(pieces, 2, 4).cuts == ("layer2",)


def test_each_stage_has_something_to_train():
    pieces = [piece(0, trains=False), piece(1), piece(2, trains=False)]
    with pytest.raises(ConfigurationError, match="1 parts"):
        choose_cuts(pieces, 2, 1)
