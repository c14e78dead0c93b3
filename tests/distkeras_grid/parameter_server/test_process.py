"""The real server process."""

import errno
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import psutil
import pytest

from distkeras_grid.errors import (
    ConfigurationError,
    ParameterServerError,
    ServerUnreachableError,
)
from distkeras_grid.parameter_server import client as client_module
from distkeras_grid.parameter_server import process as process_module
from distkeras_grid.parameter_server.auth import new_key, seat_key
from distkeras_grid.parameter_server.client import WorkerClient
from distkeras_grid.parameter_server.process import ServerProcess
from distkeras_grid.records import WindowRecord
from distkeras_grid.rules import apply_reply, compute_commit, rule_of
from tests.faults.counting import lives

pytestmark = pytest.mark.slow


def work(server, key, settings, seat, windows, tools):
    """One worker's loop; returns its replies, each of which is one version of the center."""
    rule, size = rule_of(settings.spec.rule), settings.spec.size
    address = server.address
    own = seat_key(key, seat)
    with WorkerClient.connect(address, own, settings.run, seat, 0, size, 10) as client:
        client.ready(windows)
        before = client.vector.copy()
        after, payload, reply = (np.empty_like(before) for _ in range(3))
        answers = []
        for sequence in range(windows):
            assert (before == before[0]).all()
            np.add(before, 1, out=after)
            compute_commit(rule, settings.spec.layout.sections, before, after, 1, payload)
            version = answers[-1].version if answers else 0
            commit = tools.commit(sequence, version=version)
            answers.append(client.exchange(commit, payload, reply))
            apply_reply(rule, settings.spec.layout.sections, after, reply, before)
        client.finish()
    return answers


@pytest.mark.parametrize(
    ("workers", "windows", "size"),
    [(4, 60, 30_000), pytest.param(3, 15, 300_000, id="large vectors")],
)
def test_staleness_identity_and_exact_sum_with_threads_as_workers(tools, workers, windows, size):
    """sum of staleness + sum_i (v - v_i) == (n - 1) commits; no commit is lost or counted twice.

    No reply mixes two versions of the center, however large the vector is.
    """
    key = new_key()
    settings = tools.settings(seats=workers, trainable_size=size, rows=workers * windows)
    with ServerProcess(settings, np.zeros(size, np.float32), key) as server:
        calls = [
            lambda seat=seat: work(server, key, settings, seat, windows, tools)
            for seat in range(workers)
        ]
        results = tools.in_threads(*calls)
        np.testing.assert_array_equal(server.center(), workers * windows)
        update = server.poll(5)
    events = [event for event in update.events if isinstance(event, WindowRecord)]
    staleness = sum(event.staleness for event in events)
    behind = sum(update.version - answers[-1].version for answers in results)
    assert staleness + behind == (workers - 1) * workers * windows
    assert [event.version for event in events] == list(range(1, workers * windows + 1))
    assert update.samples_folded == workers * windows


def test_a_center_goes_with_its_server(tools):
    """Python's next collection of garbage may come much later, after further runs."""
    center = np.zeros(9, np.float32)
    alive = weakref.ref(center)
    gc.disable()
    try:
        with ServerProcess(tools.settings(trainable_size=9), center, new_key()) as server:
            server.poll(5)
        del server, center
        assert alive() is None
    finally:
        gc.enable()


def test_an_interrupt_of_the_driver_does_not_reach_it(tools):
    with ServerProcess(tools.settings(), np.zeros(8, np.float32), new_key()) as server:
        assert os.getpgid(server._started.process.pid) != os.getpgid(0)


def test_keys_are_in_neither_command_line_nor_environment(tools, monkeypatch):
    """Neither the run's, nor that of the driver's own JVM."""
    key = new_key()
    monkeypatch.setenv("PYSPARK_GATEWAY_SECRET", "the JVM's")
    with ServerProcess(tools.settings(), np.zeros(8, np.float32), key) as server:
        child = server._started.process
        assert key.hex() not in " ".join(child.args)
        environment = f"/proc/{child.pid}/environ"
        if os.path.exists(environment):
            with open(environment, "rb") as file:
                told = file.read()
            assert key.hex().encode() not in told
            assert b"PYSPARK_GATEWAY_SECRET" not in told


def test_a_dead_server_is_named_with_what_it_wrote(tools):
    with ServerProcess(tools.settings(), np.zeros(8, np.float32), new_key()) as server:
        server._started.process.send_signal(signal.SIGKILL)
        server._started.process.wait(5)
        with pytest.raises(ServerUnreachableError, match=r"ended with exit code -9.*It wrote: "):
            server.poll(5)


#: A server whose rule fails.
MISTAKEN = """
import sys
from distkeras_grid.parameter_server import __main__ as server
from distkeras_grid.parameter_server.center import Center

def fold(*_):
    raise {kind}("my own mistake \\udcff")

Center.fold = fold
sys.exit(server.main())
"""


@pytest.mark.parametrize("kind", ["LookupError", "OSError"])
def test_a_defect_ends_the_process_and_the_driver_reads_what_it_was(tools, monkeypatch, kind):
    """An error of the system is no broken connection where the core has raised it."""
    start, key = subprocess.Popen, new_key()

    def mistaken(command, **options):
        return start([command[0], "-c", MISTAKEN.format(kind=kind)], **options)

    monkeypatch.setattr(process_module.subprocess, "Popen", mistaken)
    monkeypatch.setattr(client_module, "RECONNECT_SECONDS", 0.5)
    with ServerProcess(tools.settings(), np.zeros(8, np.float32), key) as server:
        own = seat_key(key, 0)
        with WorkerClient.connect(server.address, own, "test", 0, 0, 8, 10) as client:
            client.ready(100)
            with pytest.raises(ParameterServerError):
                tools.exchange(client, tools.commit(0))
        with pytest.raises(ParameterServerError, match="my own mistake"):
            server.poll(5)
        assert server._started.process.wait(5) == 1


@pytest.mark.full
@pytest.mark.promise(
    "server: stopped for some seconds",
    "The run goes on.",
)
def test_a_server_that_stands_still_for_a_while_ends_no_run(tools):
    with ServerProcess(tools.settings(), np.zeros(8, np.float32), new_key()) as server:
        child = server._started.process
        child.send_signal(signal.SIGSTOP)
        timer = threading.Timer(1.5, child.send_signal, [signal.SIGCONT])
        timer.start()
        assert server.poll().version == 0
        timer.join()
        child.send_signal(signal.SIGSTOP)
        # A thread that is answering stops a little later.
        tools.wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)
        clock = time.monotonic()
        with pytest.raises(ServerUnreachableError, match="still runs"):
            server.poll(1.0)
        assert time.monotonic() - clock < 4


def test_a_process_that_cannot_be_forked_is_told(tools, monkeypatch):
    def no_memory(*_, **__):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(process_module.subprocess, "Popen", no_memory)
    server = ServerProcess(tools.settings(), np.zeros(8, np.float32), new_key())
    with pytest.raises(ParameterServerError, match="Cannot allocate memory"):
        server.__enter__()


def test_a_blocked_port_is_named(tools):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = ServerProcess(tools.settings(port=port), np.zeros(8, np.float32), new_key())
        with pytest.raises(ServerUnreachableError, match=f"cannot listen on 127.0.0.1:{port}"):
            server.__enter__()


def test_a_port_that_is_taken_leads_to_the_next_ones(tools):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = tools.settings(port=port, port_retries=8)
        with ServerProcess(settings, np.zeros(8, np.float32), new_key()) as server:
            assert port < server.address.port <= port + 8
            assert server.poll(5).version == 0


def test_a_center_of_another_size_is_refused(tools):
    for center in (np.zeros(7, np.float32), np.zeros(8)):
        with pytest.raises(ConfigurationError, match="Received: "):
            ServerProcess(tools.settings(), center, new_key())


PARENT = """
import sys, numpy as np
from distkeras_grid.parameter_server.process import ServerProcess
from distkeras_grid.parameter_server.settings import ServerSettings
import json
settings = ServerSettings.from_json(json.loads(sys.argv[1]))
with ServerProcess(settings, np.zeros(8, np.float32), b"k" * 32) as server:
    print(server._started.process.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.promise(
    "driver: killed, without checkpoints",
    "Workers and server end by themselves.",
)
@pytest.mark.full
def test_it_does_not_outlive_the_driver(tools):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, json.dumps(tools.settings().to_json())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    server = int(parent.stdout.readline())
    parent.kill()
    parent.communicate(timeout=5)

    tools.wait_until(lambda: not lives(server))
