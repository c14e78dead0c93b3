"""Tasks that run parameter servers: who is let in as one, and what is told if none comes."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from distkeras_grid.errors import (
    AuthenticationError,
    ParameterServerError,
    RefusedError,
    StartTimeoutError,
)
from distkeras_grid.parameter_server.auth import new_key, new_nonce, seat_key
from distkeras_grid.parameter_server.entering import enter
from distkeras_grid.parameter_server.hosting import VOCABULARY, Enter, Stop
from distkeras_grid.parameter_server.messages import WorkerHello
from distkeras_grid.parameter_server.process import ServerProcess
from distkeras_grid.parameter_server.settings import ServerPlace
from distkeras_grid.parameter_server.streams import memory_pair
from distkeras_grid.parameter_server.wire import ArrayChannel
from distkeras_grid.spark.server_tasks import ServerTasks
from tests.specs import make_settings

pytestmark = pytest.mark.spark

PLACE = ServerPlace("127.0.0.1", "127.0.0.1")


def come(tasks, key, number):
    hello = WorkerHello("run", number, 7, 0, new_nonce())
    return enter(tasks._gate.address, VOCABULARY, key, hello, Enter, 5.0)


def test_nobody_else_comes_as_a_server_and_each_number_once(spark):
    run_key = new_key()
    with ServerTasks(spark, PLACE, "run", 1, 60.0) as tasks:
        settings = make_settings(run="run")
        center = np.arange(8, dtype=np.float32)
        with ServerProcess(settings, center, run_key, spawn=tasks.spawn) as server:
            np.testing.assert_array_equal(server.center(), center)
            # What a worker holds opens no door here.
            with pytest.raises(AuthenticationError):
                come(tasks, seat_key(run_key, 0), 0)
            # Another attempt of the task has the key, and comes too late.
            for number in (0, 1):
                with pytest.raises(RefusedError):
                    come(tasks, seat_key(tasks._key, number), number)
            assert server.poll(5).version == 0
    assert list(spark.sparkContext.statusTracker().getActiveJobsIds()) == []


def test_a_task_that_died_before_it_was_needed_is_replaced_by_its_next_attempt(spark):
    """The driver gave a server to the attempt that was gone."""
    tasks = ServerTasks(spark, PLACE, "run", 1, 5.0)
    (dead, gone), (mine, theirs) = (
        [ArrayChannel(stream, VOCABULARY) for stream in memory_pair()] for _ in range(2)
    )
    gone.close()
    for attempt, channel in enumerate((dead, mine)):
        tasks._admit(WorkerHello("run", 0, attempt, 0, new_nonce()), channel)
    tasks.spawn().stop(at_once=False)
    theirs.proven = True
    assert isinstance(theirs.receive(5.0)[0], Stop)
    theirs.close()
    with pytest.raises(RefusedError):
        tasks._permit(WorkerHello("run", 0, 2, 0, new_nonce()))


def test_a_port_that_is_taken_is_told_and_no_task_is_started(spark):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = ServerPlace("127.0.0.1", "127.0.0.1", taken.getsockname()[1])
        tasks = ServerTasks(spark, place, "run", 1, 60.0)
        with pytest.raises(ParameterServerError, match="cannot listen"):
            tasks.__enter__()
    assert list(spark.sparkContext.statusTracker().getActiveJobsIds()) == []


@pytest.mark.full
def test_what_is_missing_is_told(spark):
    with ServerTasks(spark, PLACE, "run", 3, 12.0) as tasks:
        # The session has two slots.
        servers = [tasks.spawn(), tasks.spawn()]
        with pytest.raises(StartTimeoutError, match="server 2 of 3"):
            tasks.spawn()
        for server in servers:
            server.stop(at_once=False)
