"""Micro-batches through stages behind real lines; the stages multiply, and need no framework."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.errors import ServerUnreachableError
from distkeras_grid.model_parallel.device_group import DeviceGroup
from distkeras_grid.model_parallel.messages import (
    ForwardResult,
    InputGradient,
    StageBackward,
    StageStep,
    StepReply,
    TowerForward,
)
from distkeras_grid.model_parallel.pipeline import RemoteStages, micro_batch_bounds, scaled
from distkeras_grid.model_parallel.schedule import one_forward_one_backward
from distkeras_grid.spec import LimitsSpec
from tests.distkeras_grid.model_parallel.helpers import PATIENT, connect


class Multiplies:
    """A stage ``y = factor x`` that notes what it is asked for."""

    def __init__(self, factor, first):
        self.factor, self.first = factor, first
        self.asked = []
        self.silent_at = self.closed_at = None
        self.pause = 0.0

    def answer(self, message, arrays, duplex):
        if len(self.asked) == self.closed_at:
            duplex.close()
            return
        if len(self.asked) == self.silent_at:
            time.sleep(1.0)
        time.sleep(self.pause)
        self.asked.append(message)
        if isinstance(message, TowerForward):
            duplex.send(ForwardResult(seconds=0.0), [self.factor * arrays[0]])
        elif isinstance(message, StageBackward):
            found = [] if self.first else [self.factor * arrays[0]]
            duplex.send(InputGradient(seconds=0.0), found)
        else:
            duplex.send(StepReply(seconds=0.0))


@contextmanager
def stages(*factors, limits=PATIENT):
    members = DeviceGroup(1 + len(factors))
    computers = [Multiplies(factor, number == 0) for number, factor in enumerate(factors)]
    threads = [connect(members, n, computer) for n, computer in enumerate(computers, start=1)]
    remote = RemoteStages(members, len(factors), limits)
    remote.members, remote.computers = members, computers
    try:
        yield remote
    finally:
        members.close()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()


@pytest.mark.parametrize(("count", "micro_batches"), [(1, 1), (1, 4), (3, 2), (3, 7)])
def test_each_stage_is_asked_in_the_order_of_the_schedule(count, micro_batches):
    inputs = [np.full((2, 3), number, np.float32) for number in range(micro_batches)]
    seen = []

    def last(number, given):
        seen.append((number, given))
        return np.ones_like(given)

    with stages(*[2.0] * count) as remote:
        for batch in range(2):
            passes = remote.train(inputs, last)
            first_call = min(
                m.call
                for m in remote.computers[0].asked[-2 * micro_batches :]
                if isinstance(m, TowerForward)
            )
            schedule = one_forward_one_backward(count + 1, micro_batches)
            # The steps of the batch before are taken by now.
            for computer, order in zip(remote.computers, schedule, strict=False):
                begin = batch * (2 * micro_batches + 1)
                asked = computer.asked[begin : begin + 2 * micro_batches]
                assert [
                    (isinstance(message, StageBackward), message.call - first_call)
                    for message in asked
                ] == [(step.backward, step.micro_batch) for step in order]
                if batch:
                    assert isinstance(computer.asked[begin - 1], StageStep)
            assert len(passes) == micro_batches * (2 * count + 1)
    assert [number for number, _ in seen] == [*range(micro_batches)] * 2
    for number, found in seen:
        np.testing.assert_array_equal(found, np.full((2, 3), number * 2.0**count, np.float32))


def test_the_output_before_the_last_stage_is_found_without_training():
    with stages(2.0, 3.0) as remote:
        np.testing.assert_array_equal(remote.infer(np.ones((2, 2), np.float32)), np.full((2, 2), 6))


@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_that_dies_at_any_message_is_one_error_at_once(stage, at):
    inputs = [np.ones((1, 1), np.float32)] * 4
    with stages(2.0, 2.0) as remote:
        remote.computers[stage].closed_at = at
        clock = time.monotonic()
        with pytest.raises(ServerUnreachableError):
            remote.train(inputs, lambda _, given: given)
        assert time.monotonic() - clock < 10
        assert remote.lost


@pytest.mark.parametrize(
    ("limits", "trains", "limit"),
    [
        (LimitsSpec(start_timeout=0.2), False, "start_timeout"),
        (LimitsSpec(round_timeout=0.2), True, "round_timeout"),
    ],
)
def test_a_stage_that_is_silent_for_too_long_is_an_error(limits, trains, limit):
    """The second one of two, which the first one waits for."""
    with stages(2.0, 2.0, limits=limits) as remote:
        if trains:
            remote.begin_training()
        remote.computers[1].silent_at = 1
        with pytest.raises(ServerUnreachableError, match=rf"device 2\b.*0\.2 s \({limit}\)"):
            remote.train([np.ones((1, 1), np.float32)] * 2, lambda _, given: given)
        assert remote.lost


def test_a_stage_that_trains_may_take_longer_than_a_start():
    with stages(2.0, limits=LimitsSpec(start_timeout=0.2, round_timeout=None)) as remote:
        remote.begin_training()
        remote.computers[0].silent_at = 1
        remote.train([np.ones((1, 1), np.float32)] * 2, lambda _, given: given)
        assert not remote.lost


def test_the_limit_is_for_one_answer_and_not_for_the_way_through_all_stages():
    """Nothing comes to the last stage for 1.2 s, or out of the first one at the end."""
    with stages(2.0, 2.0, 2.0, limits=LimitsSpec(round_timeout=1.0)) as remote:
        remote.begin_training()
        for computer in remote.computers:
            computer.pause = 0.4
        remote.train([np.ones((1, 1), np.float32)], lambda _, given: given)
        assert not remote.lost


def test_what_the_last_stage_raises_comes_through():
    def last(*_):
        raise ZeroDivisionError

    with stages(2.0) as remote, pytest.raises(ZeroDivisionError):
        remote.train([np.ones((1, 1), np.float32)] * 3, last)


def test_the_last_stage_is_called_in_one_thread():
    threads = set()

    def last(_, given):
        threads.add(threading.current_thread())
        return given

    with stages(2.0, 2.0) as remote:
        remote.train([np.ones((1, 1), np.float32)] * 5, last)
    assert threads == {threading.current_thread()}


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
