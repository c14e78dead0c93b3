"""A server within the test's process, and clients of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from distkeras_grid.parameter_server.auth import driver_key, new_key, seat_key
from distkeras_grid.parameter_server.client import WorkerClient
from distkeras_grid.parameter_server.driver_client import DriverClient
from distkeras_grid.parameter_server.messages import WindowCommit
from distkeras_grid.parameter_server.service import Service
from distkeras_grid.parameter_server.settings import ServerSettings
from distkeras_grid.weights import Vector
from tests.specs import make_settings

SIZE = 8


def make_commit(sequence: int = 0, **changes) -> WindowCommit:
    defaults = {
        "sequence": sequence,
        # Not of the future, whoever else has folded meanwhile.
        "version": sequence,
        "epoch": 1,
        "window": sequence,
        "steps": 1,
        "samples": 1,
        "loss": 0.5,
        "metrics": {"accuracy": 0.25},
        "started": 1.0,
        "seconds": 0.5,
    }
    return WindowCommit(**{**defaults, **changes})


class Bench:
    """A running service and its clients."""

    def __init__(
        self,
        stack: ExitStack,
        settings: ServerSettings,
        center: Vector | None = None,
    ) -> None:
        self.settings = settings
        self.key = new_key()
        self._stack = stack
        start = np.zeros(settings.spec.size, np.float32) if center is None else center
        self.service = Service(settings, start, self.key)
        stack.callback(self.service.close)

    @property
    def address(self):
        return self.service.address

    def worker(self, seat: int = 0, attempt: int = 0, **changes) -> WorkerClient:
        layout = self.settings.spec.layout
        arguments = {
            "address": self.address,
            "key": seat_key(self.key, seat),
            "run": self.settings.run,
            "size": layout.size,
            "deadline": 5,
            "state_size": layout.state_section.nbytes,
            "worker_state_limit": layout.worker_state_limit,
            "compression": self.settings.spec.compression,
        }
        client = WorkerClient.connect(seat=seat, attempt=attempt, **{**arguments, **changes})
        self._stack.callback(client.close)
        return client

    def started(self, rows: int = 100, **changes) -> WorkerClient:
        client = self.worker(**changes)
        client.ready(rows)
        return client

    def driver(self, address=None) -> DriverClient:
        client = DriverClient.connect(
            address or self.address,
            driver_key(self.key),
            self.settings.run,
            self.settings.spec.size,
            5,
        )
        self._stack.callback(client.close)
        return client


def exchange(client: WorkerClient, commit: WindowCommit, value: float = 1.0):
    """Send a constant vector; return the answer and the reply's first element."""
    payload = np.full(client.vector.shape, value, np.float32)
    reply = np.full_like(payload, -77)
    return client.exchange(commit, payload, reply), reply[0]


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait for a condition of another thread; fail after the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        threading.Event().wait(0.005)


def in_threads(*calls: Callable[[], object]) -> list[object]:
    """Run calls at once; return what each returned, or the exception it raised."""
    results: list[object] = [None] * len(calls)

    def run(number: int) -> None:
        try:
            results[number] = calls[number]()
        except Exception as error:  # noqa: BLE001
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a call did not return"
    return results


@pytest.fixture
def serve() -> Iterator[Callable[..., Bench]]:
    with ExitStack() as stack:
        yield lambda **changes: Bench(stack, make_settings(**changes))


@pytest.fixture
def tools():
    """What tests of this folder share, for they cannot import from here."""

    class Tools:
        settings = staticmethod(make_settings)
        commit = staticmethod(make_commit)
        exchange = staticmethod(exchange)
        wait_until = staticmethod(wait_until)
        in_threads = staticmethod(in_threads)

    return Tools
