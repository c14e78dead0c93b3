"""1F1B as a value: what it must hold for any number of stages and micro-batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.model_parallel.schedule import Pass, one_forward_one_backward

sizes = st.integers(1, 9), st.integers(1, 17)


def needed(step, stages):
    """The passes whose results a pass needs."""

    def at(stage, backward):
        return Pass(stage=stage, micro_batch=step.micro_batch, backward=backward)

    if not step.backward:
        return [at(step.stage - 1, False)] if step.stage else []
    own = [at(step.stage, False)]
    return own if step.stage == stages - 1 else [*own, at(step.stage + 1, True)]


def waiting(schedule, forward, backward):
    """The share of the time in which stages wait; stages that wait for each other raise."""
    stages = len(schedule)
    ended, free, places, busy = {}, [0.0] * stages, [0] * stages, 0.0
    while len(ended) < sum(map(len, schedule)):
        before = len(ended)
        for stage, order in enumerate(schedule):
            while places[stage] < len(order):
                step = order[places[stage]]
                if not all(each in ended for each in needed(step, stages)):
                    break
                started = max([free[stage], *(ended[each] for each in needed(step, stages))])
                seconds = (backward if step.backward else forward)[stage]
                free[stage] = ended[step] = started + seconds
                busy += seconds
                places[stage] += 1
        assert len(ended) > before, "stages wait for each other"
    return 1.0 - busy / (stages * max(free))


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
        assert most == min(stages - stage, count)


@given(*sizes, st.floats(0.1, 2.0), st.floats(0.1, 2.0))
def test_the_bubble_of_equal_stages_is_that_of_the_formula(stages, count, forward, backward):
    schedule = one_forward_one_backward(stages, count)
    expected = pytest.approx((stages - 1) / (count + stages - 1), abs=1e-9)
    assert waiting(schedule, [forward] * stages, [backward] * stages) == expected
