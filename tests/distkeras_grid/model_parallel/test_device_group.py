"""Devices that connect again: which of them may go on, and what the master notices."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.errors import FencedError, RefusedError
from distkeras_grid.model_parallel.device_group import DeviceGroup
from distkeras_grid.model_parallel.devices import Devices
from distkeras_grid.model_parallel.messages import (
    Acknowledgement,
    FetchWeights,
    ForwardResult,
    GetDeviceState,
    PutWeights,
)
from distkeras_grid.model_parallel.remote_parts import RemoteParts
from distkeras_grid.spec import LimitsSpec
from tests.distkeras_grid.model_parallel.helpers import again, connect


class Holds:
    """A part that begins with zeros."""

    def __init__(self):
        self.weights = np.zeros(3, np.float32)

    def answer(self, message, arrays, duplex):
        if isinstance(message, PutWeights):
            (self.weights,) = arrays
            duplex.send(Acknowledgement())
        elif isinstance(message, FetchWeights):
            duplex.send(ForwardResult(seconds=0.0), [self.weights])


@pytest.fixture
def members():
    found = DeviceGroup(2)
    threads = [connect(found, 1, Holds())]
    assert found.wait_for_all(5.0) == 2
    yield found
    found.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize("noticed", [True, False])
def test_a_part_that_was_lost_stays_lost_for_the_attempt(members, noticed):
    """Its weights are those that it began with, also if the master has not noticed the loss."""
    parts = RemoteParts(members, 1, LimitsSpec(start_timeout=5.0))
    parts.put([np.full(3, 7, np.float32)])
    assert not parts.lost
    if noticed:
        members.drop(1, "a test")
    with pytest.raises(RefusedError):
        again(members, 1, Holds())
    assert parts.lost
    with pytest.raises(ConnectionResetError):
        parts.fetch()


def test_a_part_may_connect_again_until_all_are_there():
    members = DeviceGroup(3)
    threads = [connect(members, number, Holds()) for number in (1, 1, 2)]
    assert members.wait_for_all(5.0) == 3
    assert not members.lost
    members.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_device_that_keeps_nothing_may_connect_again():
    devices = Devices((), 2, 8)
    threads = [connect(devices, 1, Holds())]
    assert devices.wait_for_all(5.0) == 2
    devices.drop(1, "a test")
    threads.append(connect(devices, 1, Holds()))
    assert devices.count == 2
    devices.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize("kind", [DeviceGroup, lambda count: Devices((), count, 8)])
def test_an_older_attempt_does_not_take_the_place_of_a_newer_one(kind):
    members = kind(3)
    threads = [connect(members, 1, Holds(), attempt=attempt) for attempt in (4, 6)]
    line = members.line(1)
    for act in (lambda: members.authorize(1, 5), lambda: again(members, 1, Holds(), 5)):
        with pytest.raises(FencedError):
            act()
    assert members.line(1) is line
    # Attempts of other numbers say nothing about this one.
    threads.append(connect(members, 2, Holds(), attempt=1))
    assert members.wait_for_all(5.0) == 3
    members.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_newer_attempt_that_comes_too_late_fences_the_older_one(members):
    """Otherwise the older one would connect to the next master before the newer one."""
    with pytest.raises(RefusedError):
        members.authorize(1, 3)
    assert members.lost
    with pytest.raises(FencedError):
        members.authorize(1, 2)


def test_a_part_that_does_not_answer_in_time_is_lost(members):
    """It is still connected, and the answer may come too late."""
    parts = RemoteParts(members, 1, LimitsSpec(start_timeout=0.05, round_timeout=60.0))
    # `Holds` does not answer this one.
    with pytest.raises(TimeoutError, match=r"device 1.*start_timeout"):
        parts.fetch_state()
    assert parts.lost
    with pytest.raises(ConnectionResetError):
        members.line(1)


def test_an_answer_of_the_training_has_the_time_of_the_training(members):
    parts = RemoteParts(members, 1, LimitsSpec(start_timeout=60.0, round_timeout=0.05))
    parts.begin_training()
    with pytest.raises(TimeoutError, match=r"device 1.*round_timeout"):
        parts.fetch_state()


def test_the_device_that_owes_an_answer_is_told_and_no_other_one():
    told = []
    members = DeviceGroup(3, told.append)
    threads = [connect(members, number, Holds()) for number in (1, 2)]
    assert members.wait_for_all(5.0) == 3
    parts = RemoteParts(members, 2, LimitsSpec(start_timeout=0.5))
    parts.put([np.zeros(3, np.float32)] * 2)
    asked = members.line(2).ask(GetDeviceState(), [])[0]
    with pytest.raises(TimeoutError, match="device 2"):
        parts._result(asked)
    assert [line.split(":")[0] for line in told] == ["Device 2 is lost"]
    assert members.missing == [2]
    members.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
