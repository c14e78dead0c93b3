"""A server in the place of a dead one: who waits for it, and what it makes of those who come."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from distkeras_grid.errors import ServerRestartedError
from distkeras_grid.parameter_server.auth import driver_key, seat_key
from distkeras_grid.parameter_server.client import DriverClient, WorkerClient
from distkeras_grid.parameter_server.lingering import LINGER_SECONDS, Lingering
from distkeras_grid.parameter_server.messages import SeatStatus
from distkeras_grid.parameter_server.service import Service
from distkeras_grid.parameter_server.settings import ServerTurn
from tests.memory_streams import InProcess

KEY = b"k" * 32


class Servers:
    """One way to a run's servers, of which one is there at a time."""

    def __init__(self, settings):
        self.settings, self.door, self.generation = settings, None, -1
        self.next()

    def next(self):
        if self.door is not None:
            self.door.close()
        self.door, self.generation = InProcess(), self.generation + 1
        center = np.zeros(self.settings.spec.size, np.float32)
        turn = ServerTurn(generation=self.generation, replaceable=True)
        Service(self.settings, center, KEY, [self.door], turn=turn)

    def connect(self, seconds):
        return self.door.connect(seconds)

    def worker(self, seat=0):
        key, spec = seat_key(KEY, seat), self.settings.spec
        return WorkerClient.connect(self, key, self.settings.run, seat, 0, spec.size, 5)

    def driver(self):
        run, size = self.settings.run, self.settings.spec.size
        return DriverClient.connect(self, driver_key(KEY), run, size, 5)


@pytest.fixture
def servers(tools):
    found = Servers(tools.settings(rows=10))
    yield found
    found.door.close()


def test_a_worker_takes_its_seat_at_another_server(servers, tools):
    with servers.worker() as client:
        client.ready(10)
        tools.exchange(client, tools.commit())
        servers.next()
        client.close()
        with pytest.raises(ServerRestartedError):
            tools.exchange(client, tools.commit(1))
        # Nothing is folded there yet.
        assert client.rejoin().next_sequence == 0
        tools.exchange(client, tools.commit())
        servers.next()
        client.close()
        with pytest.raises(ServerRestartedError):
            client.finish()


def test_what_a_sign_of_life_meets_first_the_next_request_meets_too(servers, tools):
    with servers.worker() as client:
        client.ready(10)
        servers.next()
        client.close()
        for _ in range(2):
            with pytest.raises(ServerRestartedError):
                client.beat("training", 1, "host", "")
        with pytest.raises(ServerRestartedError):
            tools.exchange(client, tools.commit())
        assert client.rejoin().next_sequence == 0
        assert client.beat("training", 1, "host", "")
        tools.exchange(client, tools.commit())


def test_a_broken_connection_to_the_same_server_changes_nothing(servers, tools):
    with servers.worker() as client:
        client.ready(10)
        client.close()
        answer, _ = tools.exchange(client, tools.commit())
        assert answer.version == 1


def test_a_worker_that_has_finished_stays_until_the_driver_has_the_result(servers, tools):
    driver, left = servers.driver(), threading.Event()
    with servers.worker() as client:
        client.ready(10)
        tools.exchange(client, tools.commit(samples=10))
        thread = threading.Thread(target=lambda: (client.finish(), left.set()), daemon=True)
        thread.start()
        tools.wait_until(lambda: driver.poll().seats[0].status == "finished")
        assert not left.is_set()
        driver.command(release=True)
        assert left.wait(5)
        thread.join(5)
    driver.close()


def test_workers_that_have_finished_leave_for_one_that_is_missing():
    def seats(*states):
        return [SeatStatus(n, 1, state, 9, 3) for n, state in enumerate(states)]

    lingering = Lingering()
    for states in [("finished", "running"), ("lost", "running"), ("finished", "finished")]:
        assert not lingering.is_over(seats(*states), now=0.0)
        assert not lingering.is_over(seats(*states), now=9 * LINGER_SECONDS)
    missing = seats("finished", "lost")
    assert not lingering.is_over(missing, now=1000.0)
    assert not lingering.is_over(missing, now=1000.0 + LINGER_SECONDS)
    assert lingering.is_over(missing, now=1001.0 + LINGER_SECONDS)
    # It is there again.
    assert not lingering.is_over(seats("finished", "joined"), now=2000.0)
    assert not lingering.is_over(missing, now=2001.0)
