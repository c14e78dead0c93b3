"""1F1B as a value: what it must hold for any number of stages and micro-batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.schedule import (
    Pass,
    bubble_share,
    in_flight,
    one_forward_one_backward,
    predicted_bubble,
)
from tests.distkeras_grid.model_parallel.timetable import timetable

sizes = st.integers(1, 9), st.integers(1, 17)


@given(*sizes)
def test_each_stage_computes_each_micro_batch_once_forward_and_then_once_backward(stages, count):
    schedule = one_forward_one_backward(stages, count)
    assert len(schedule) == stages
    for stage, order in enumerate(schedule):
        assert {step.stage for step in order} == {stage}
        for backward in (False, True):
            numbers = [step.micro_batch for step in order if step.backward == backward]
            assert numbers == list(range(count))
        places = {step: place for place, step in enumerate(order)}
        for step in order:
            if step.backward:
                forward = Pass(stage=stage, micro_batch=step.micro_batch)
                assert places[forward] < places[step]


@given(*sizes)
def test_at_most_stages_less_rank_micro_batches_are_in_flight(stages, count):
    for stage, order in enumerate(one_forward_one_backward(stages, count)):
        flying = most = 0
        for step in order:
            flying += -1 if step.backward else 1
            most = max(most, flying)
        assert flying == 0
        assert most == in_flight(stages, stage, count) <= stages - stage


@given(*sizes, st.data())
def test_nobody_waits_forever_nor_longer_than_predicted(stages, count, data):
    seconds = st.lists(st.floats(0.01, 3.0), min_size=stages, max_size=stages)
    forward, backward = data.draw(seconds), data.draw(seconds)
    schedule = one_forward_one_backward(stages, count)
    passes = timetable(schedule, forward, backward)
    assert len(passes) == 2 * stages * count
    assert 0 <= bubble_share(passes) <= predicted_bubble(forward, backward, count) + 1e-9


@given(*sizes, st.floats(0.1, 2.0), st.floats(0.1, 2.0))
def test_the_bubble_of_equal_stages_is_that_of_the_formula(stages, count, forward, backward):
    schedule = one_forward_one_backward(stages, count)
    passes = timetable(schedule, [forward] * stages, [backward] * stages)
    expected = pytest.approx((stages - 1) / (count + stages - 1), abs=1e-9)
    assert bubble_share(passes) == expected
    assert predicted_bubble([forward] * stages, [backward] * stages, count) == expected


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0)])
def test_a_pipeline_of_nothing_is_refused(sizes):
    with pytest.raises(ConfigurationError):
        one_forward_one_backward(*sizes)


def test_no_pass_has_no_bubble():
    assert bubble_share([]) == 0.0
