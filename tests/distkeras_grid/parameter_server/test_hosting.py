"""A real server that is started through a channel, as on the host of a Spark task."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import contextmanager

import numpy as np
import psutil
import pytest

from distkeras_grid.errors import RemoteProtocolError, ServerUnreachableError
from distkeras_grid.parameter_server.auth import new_key, seat_key
from distkeras_grid.parameter_server.child import START_SECONDS
from distkeras_grid.parameter_server.client import WorkerClient
from distkeras_grid.parameter_server.hosting import (
    VOCABULARY,
    Enter,
    RemoteServer,
    SavedPart,
    host_server,
)
from distkeras_grid.parameter_server.process import ServerProcess
from distkeras_grid.parameter_server.streams import SocketStream
from distkeras_grid.parameter_server.wire import ArrayChannel

LOOPBACK = "127.0.0.1"


class Task:
    """What a Spark task does, in a thread of its own."""

    def __init__(self, seconds=10.0):
        ours, theirs = (SocketStream(each) for each in socket.socketpair())
        self.driver, self._mine = (ArrayChannel(each, VOCABULARY) for each in (ours, theirs))
        self.driver.proven = self._mine.proven = True
        self.error = None
        self._thread = threading.Thread(target=self._run, args=(seconds,))
        self._thread.start()

    def _run(self, seconds):
        with self._mine:
            try:
                host_server(self._mine, LOOPBACK, seconds)
            except (OSError, RemoteProtocolError) as error:
                self.error = error

    def spawn(self):
        return RemoteServer(self.driver)

    def ends(self):
        self._thread.join(10)
        return not self._thread.is_alive()

    def kill(self):
        """End the connection, as a task does that is killed."""
        self.driver.interrupt()


@contextmanager
def hosted(settings, center, key, saved=()):
    """A server in a task; nothing of it is left in the end."""
    before = set(psutil.Process().children())
    task = Task()
    with ServerProcess(settings, center, key, saved, spawn=task.spawn) as server:
        (found,) = set(psutil.Process().children()) - before
        yield task, server, found
    assert task.ends()
    assert not found.is_running()


def test_workers_train_with_it_as_with_any_other(tools):
    key, settings = new_key(), tools.settings(rows=3)
    with hosted(settings, np.zeros(8, np.float32), key) as (_, server, _):
        assert (server.pid, server.pids) == (None, ())
        own = seat_key(key, 0)
        with WorkerClient.connect(server.address, own, settings.run, 0, 0, 8, 10) as client:
            client.ready(3)
            reply = np.empty(8, np.float32)
            for sequence in range(3):
                client.exchange(
                    tools.commit(sequence, version=sequence), np.ones(8, np.float32), reply
                )
            client.finish()
        np.testing.assert_array_equal(server.center(), np.full(8, 3))


def test_it_goes_on_from_a_checkpoint_and_its_unix_socket_is_its_own(tools):
    key, settings = new_key(), tools.settings()
    start = np.arange(8, dtype=np.float32)
    with ServerProcess(settings, start, key) as first:
        first.gather(at_once=True)
        tools.wait_until(lambda: first.poll(5).captured == 1)
        saved = list(first.parts(1))
        folder = os.path.dirname(first.address.unix_path)
    with hosted(settings, np.zeros(8, np.float32), key, saved) as (_, server, _):
        np.testing.assert_array_equal(server.center(), start)
        path = server.address.unix_path
        assert os.path.exists(path)
        assert os.path.dirname(path) != folder
    assert not os.path.exists(os.path.dirname(path))


def test_a_task_that_comes_late_has_the_whole_time_to_start_its_server(tools, monkeypatch):
    """The time began before the task had come, which may take minutes on a busy cluster."""
    clock, passed = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock() + passed[0])
    tasks = []

    def late():
        passed[0] += START_SECONDS + 1
        tasks.append(Task())
        return tasks[0].spawn()

    with ServerProcess(tools.settings(), np.zeros(8, np.float32), new_key(), spawn=late) as server:
        assert server.poll(5).version == 0
    assert tasks[0].ends()


def test_the_driver_is_told_how_its_process_ended(tools):
    with hosted(tools.settings(), np.zeros(8, np.float32), new_key()) as (task, server, found):
        found.send_signal(signal.SIGKILL)
        with pytest.raises(ServerUnreachableError, match=r"on an executor.*exit code -9"):
            server.poll(5)
        assert task.ends()


def test_it_ends_with_the_connection_to_the_driver(tools):
    with hosted(tools.settings(), np.zeros(8, np.float32), new_key()) as (task, server, found):
        task.kill()
        assert task.ends()
        tools.wait_until(lambda: not found.is_running())
        with pytest.raises(ServerUnreachableError, match="its task has ended"):
            server.poll(1)


def test_a_server_that_cannot_listen_is_told(tools):
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        task = Task()
        server = ServerProcess(
            tools.settings(port=port), np.zeros(8, np.float32), new_key(), spawn=task.spawn
        )
        with pytest.raises(ServerUnreachableError, match=f"cannot listen on {LOOPBACK}:{port}"):
            server.__enter__()
        assert task.ends()


def test_a_task_ends_that_is_asked_for_nothing():
    task = Task()
    task.spawn().stop(at_once=False)
    assert task.ends()
    assert task.error is None
    began = time.monotonic()
    silent = Task(seconds=0.2)
    assert silent.ends()
    assert isinstance(silent.error, TimeoutError)
    assert time.monotonic() - began < 5
    silent.driver.close()


@pytest.mark.parametrize("message", [Enter(), SavedPart()])
def test_something_else_than_settings_is_refused(message):
    task = Task()
    task.driver.send(message)
    assert task.ends()
    assert isinstance(task.error, RemoteProtocolError)
    task.driver.close()
