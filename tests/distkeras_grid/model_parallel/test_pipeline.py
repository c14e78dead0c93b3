"""Micro-batches through stages behind real lines; the stages multiply, and need no framework."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.errors import LocalDiskError, ServerUnreachableError
from distkeras_grid.model_parallel.pipeline import infer, micro_batch_bounds, scaled, train
from distkeras_grid.model_parallel.schedule import one_forward_one_backward
from distkeras_grid.spec import LimitsSpec
from tests.distkeras_grid.model_parallel.helpers import group_of


class Multiplies:
    """A stage ``y = factor x`` that notes what it is asked for."""

    CALLS = frozenset({"forward", "backward", "step"})

    def __init__(self, factor, first):
        self.factor, self.first = factor, first
        self.asked = []
        self.closed_at = None
        self.pause = 0.0

    def _note(self, name, number=None):
        if len(self.asked) == self.closed_at:
            raise LocalDiskError("a test")
        time.sleep(self.pause)
        self.asked.append((name, number))

    def forward(self, x, number, **_):
        self._note("forward", number)
        yield [self.factor * x]

    def backward(self, dy, number):
        self._note("backward", number)
        yield [] if self.first else [self.factor * dy]

    def step(self):
        self._note("step")
        yield from ()


def stages(*factors):
    return [Multiplies(factor, number == 0) for number, factor in enumerate(factors)]


@pytest.mark.parametrize(("count", "micro_batches"), [(1, 1), (1, 4), (3, 2), (3, 7)])
def test_each_stage_is_asked_in_the_order_of_the_schedule(count, micro_batches):
    inputs = [np.full((2, 3), number, np.float32) for number in range(micro_batches)]
    seen, modules = [], stages(*[2.0] * count)

    def last(number, x):
        seen.append((number, x))
        return np.ones_like(x)

    with group_of(modules) as group:
        for batch in range(2):
            train(group, inputs, last, first_call=100 * batch)
    # All have ended, and taken the steps of the last batch.
    schedule = one_forward_one_backward(count + 1, micro_batches)
    for module, order in zip(modules, schedule, strict=False):
        expected = []
        for first_call in (0, 100):
            expected += [
                ("backward" if step.backward else "forward", first_call + step.micro_batch)
                for step in order
            ]
            expected.append(("step", None))
        assert module.asked == expected
    assert [number for number, _ in seen] == [*range(micro_batches)] * 2
    for number, found in seen:
        np.testing.assert_array_equal(found, np.full((2, 3), number * 2.0**count, np.float32))


def test_the_output_before_the_last_stage_is_found_without_training():
    with group_of(stages(2.0, 3.0)) as group:
        found = infer(group, np.ones((2, 2), np.float32))
    np.testing.assert_array_equal(found, np.full((2, 2), 6))


@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_that_dies_at_any_call_is_one_error_at_once(stage, at):
    inputs, modules = [np.ones((1, 1), np.float32)] * 4, stages(2.0, 2.0)
    modules[stage].closed_at = at
    with group_of(modules, raises={stage + 1: LocalDiskError}) as group:
        clock = time.monotonic()
        with pytest.raises(ServerUnreachableError, match=f"Device {stage + 1} is lost"):
            train(group, inputs, lambda _, x: x, first_call=0)
        assert time.monotonic() - clock < 10


def test_the_limit_is_for_one_answer_and_not_for_the_way_through_all_stages():
    """Nothing comes to the last stage for 1.2 s, or out of the first one at the end."""
    modules = stages(2.0, 2.0, 2.0)
    for module in modules:
        module.pause = 0.4
    with group_of(modules, LimitsSpec(start_timeout=1.0)) as group:
        train(group, [np.ones((1, 1), np.float32)], lambda _, x: x, first_call=0)


@pytest.mark.parametrize("others", [0, 2])
def test_the_last_stage_is_called_in_one_thread(others):
    """It may be the only one."""
    threads = []

    def last(_, x):
        threads.append(threading.current_thread())
        return x

    with group_of(stages(*[2.0] * others)) as group:
        train(group, [np.ones((1, 1), np.float32)] * 5, last, first_call=0)
    assert threads == [threading.current_thread()] * 5


@given(st.integers(1, 40), st.integers(1, 12))
def test_micro_batches_have_all_rows_once_and_almost_equally_many(rows, micro_batches):
    bounds = micro_batch_bounds(rows, micro_batches)
    sizes = [stop - start for start, stop in bounds]
    assert [row for start, stop in bounds for row in range(start, stop)] == list(range(rows))
    assert len(bounds) == min(rows, micro_batches)
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


def test_inputs_are_scaled_to_float32():
    x = np.arange(4, dtype=np.uint8)
    assert scaled(x, 0.5, 1.0).tolist() == [1.0, 1.5, 2.0, 2.5]
    assert scaled(x, 1.0, 0.0).dtype == np.float32
