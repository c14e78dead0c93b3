"""When the master leaves, its devices know whether another one may come."""

from __future__ import annotations

import threading
import time
from functools import partial
from types import SimpleNamespace

import pytest

from distkeras_grid.errors import FencedError, RefusedError, ServerUnreachableError
from distkeras_grid.model_parallel import rendezvous as meetings
from distkeras_grid.model_parallel.device import serve
from distkeras_grid.model_parallel.device_group import DeviceGroup
from distkeras_grid.model_parallel.master_registry import MasterRegistry, RegistryAddress
from distkeras_grid.model_parallel.messages import Echo, Welcome
from distkeras_grid.model_parallel.rendezvous import DeviceRendezvous, DevicesPlan
from distkeras_grid.parameter_server.auth import new_key, seat_key
from distkeras_grid.parameter_server.settings import BindAddress, ServerAddress


class Answers:
    """A device that sends everything back."""

    def answer(self, message, arrays, duplex):
        duplex.send(message, arrays)


@pytest.fixture
def plan(monkeypatch):
    # There is no Spark task here, whose numbers these would be.
    monkeypatch.setattr(meetings, "task_numbers", lambda: (0, 0))
    key_of = partial(seat_key, new_key())
    place = BindAddress("127.0.0.1", "127.0.0.1")
    with MasterRegistry(place, key_of, "run", lambda _: None) as directory:
        limits = SimpleNamespace(start_timeout=10.0)
        guide = RegistryAddress("run", key_of, directory.address)
        yield DevicesPlan(guide=guide, count=2, spec=SimpleNamespace(limits=limits))


def test_the_master_lets_no_part_in_again_and_no_older_attempt(plan):
    """What comes again has waited for another master; what is older ends."""
    members, released = DeviceGroup(2), []
    thread = device(plan.guide, released)
    with DeviceRendezvous(plan) as meeting:
        meeting.admit(members, Welcome())
        with plan.guide.ask(1, 0, 5.0) as asking:
            address = asking.master()
        for attempt, error in ((1, RefusedError), (0, FencedError)):
            with pytest.raises(error):
                plan.guide.connect(address, 1, attempt, 5.0)
        assert members.lost
    thread.join(10)
    assert released == [False]


def device(guide, released):
    """A device that looks for the master and serves it; told whether it was released."""

    def work():
        address = None
        while address is None:
            with guide.ask(1, 0, 5.0) as asking:
                address = asking.master()
        channel, _ = guide.connect(address, 1, 0, 5.0)
        released.append(serve(channel, Answers()))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("fails", [False, True])
def test_devices_are_released_by_a_master_that_has_finished_and_not_by_one_that_failed(plan, fails):
    released = []
    thread = device(plan.guide, released)
    members = DeviceGroup(2)

    def lead():
        with DeviceRendezvous(plan) as meeting:
            meeting.admit(members, Welcome())
            members.line(1).ask(Echo(), [])[0].result(5.0)
            if fails:
                raise ZeroDivisionError

    if fails:
        with pytest.raises(ZeroDivisionError):
            lead()
    else:
        lead()
    thread.join(10)
    assert released == [not fails]


def test_a_part_that_its_master_has_lost_waits_for_the_next_master(plan):
    thread = threading.Thread(
        target=meetings._serve_masters, args=(plan, 1, 0, lambda *_: Answers()), daemon=True
    )
    thread.start()

    def lead(loses):
        members = DeviceGroup(2)
        with DeviceRendezvous(plan) as meeting:
            meeting.admit(members, Welcome())
            if loses:
                members.drop(1, "a test")
                # It asks again a few times meanwhile.
                time.sleep(3 * meetings.ASK_AGAIN)
                assert members.count == 1
                raise ZeroDivisionError
            members.line(1).ask(Echo(), [])[0].result(5.0)

    with pytest.raises(ZeroDivisionError):
        lead(loses=True)
    lead(loses=False)
    thread.join(10)
    assert not thread.is_alive()


def test_released_devices_end_and_a_later_attempt_of_the_master_knows_it(plan):
    def serving():
        work = meetings._serve_masters
        thread = threading.Thread(target=work, args=(plan, 1, 0, lambda *_: Answers()), daemon=True)
        thread.start()
        return thread

    thread, members = serving(), DeviceGroup(2)
    with DeviceRendezvous(plan) as meeting:
        meeting.admit(members, Welcome())
        assert not meeting.released
        meeting.release(members)
        thread.join(10)
        assert not thread.is_alive()
        # It has died before it heard of it, and Spark has started it again.
        late = serving()
        late.join(10)
        assert not late.is_alive()
        assert members.count == 1
    with DeviceRendezvous(plan) as meeting:
        assert meeting.released


def test_an_attempt_that_was_given_up_releases_nobody(plan):
    with plan.guide.ask(0, 5, 5.0) as asking:
        asking.announce(ServerAddress("127.0.0.1", 1, None))
    with plan.guide.ask(0, 4, 5.0) as asking:
        asking.release()
        assert not asking.released()
    with plan.guide.ask(1, 0, 5.0) as asking, pytest.raises(ServerUnreachableError):
        asking.release()
