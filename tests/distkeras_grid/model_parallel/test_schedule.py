"""1F1B as a value: what it must hold for any number of stages and micro-batches."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.model_parallel.schedule import (
    Pass,
    bubble_share,
    in_flight,
    one_forward_one_backward,
    timetable,
)

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
def test_nobody_waits_forever_and_nothing_runs_before_what_it_needs(stages, count, data):
    seconds = st.lists(st.floats(0.01, 3.0), min_size=stages, max_size=stages)
    forward, backward, line = (data.draw(seconds) for _ in range(3))
    schedule = one_forward_one_backward(stages, count)
    passes = timetable(schedule, forward, backward, line[:-1])
    assert len(passes) == 2 * stages * count
    ended = {(p.stage, p.micro_batch, p.backward): p.ended for p in passes}
    for each in passes:
        step = Pass(stage=each.stage, micro_batch=each.micro_batch, backward=each.backward)
        for need in step.needs(stages):
            way = 0.0 if need.stage == each.stage else line[min(need.stage, each.stage)]
            key = need.stage, need.micro_batch, need.backward
            assert each.started >= ended[key] + way - 1e-9
    for stage in range(stages):
        mine = sorted((p for p in passes if p.stage == stage), key=lambda p: p.started)
        for one, other in pairwise(mine):
            assert other.started >= one.ended - 1e-9
    assert 0 <= bubble_share(passes) < 1


@given(*sizes, st.floats(0.1, 2.0), st.floats(0.1, 2.0))
def test_the_bubble_of_equal_stages_is_that_of_the_formula(stages, count, forward, backward):
    schedule = one_forward_one_backward(stages, count)
    passes = timetable(schedule, [forward] * stages, [backward] * stages)
    assert bubble_share(passes) == pytest.approx((stages - 1) / (count + stages - 1), abs=1e-9)


def test_stages_that_wait_for_each_other_are_told():
    first, last = one_forward_one_backward(2, 2)
    with pytest.raises(ConfigurationError):
        timetable((tuple(reversed(first)), last), [1, 1], [1, 1])


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0)])
def test_a_pipeline_of_nothing_is_refused(sizes):
    with pytest.raises(ConfigurationError):
        one_forward_one_backward(*sizes)


def test_no_pass_has_no_bubble():
    assert bubble_share([]) == 0.0
