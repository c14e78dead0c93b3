from __future__ import annotations

import dataclasses
import errno
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from distkeras_grid.errors import BusyError, SandboxError
from distkeras_grid.sandbox import cluster, configuration
from distkeras_grid.sandbox.cluster import Sandbox, SandboxState, can_bind, free_ports
from distkeras_grid.sandbox.configuration import Ports
from distkeras_grid.sandbox.daemons import command, running, start, stop


def test_no_connection_is_given_a_daemons_port() -> None:
    ports = free_ports()
    numbers = set(dataclasses.astuple(ports))
    assert len(numbers) == 7
    assert max(numbers) < 32768


def test_a_port_somebody_listens_on_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = free_ports().namenode
    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", taken))
        somebody.listen()
        assert not can_bind(taken)
        monkeypatch.setattr(configuration, "PORTS", range(taken, taken + 1))
        with pytest.raises(SandboxError, match=f"Only 0 ports from {taken} to {taken + 1}"):
            free_ports()
    assert can_bind(taken)


STATE = SandboxState(Ports(*range(7)), 1, 1024).to_json().replace('nodes": 1', 'nodes": %s')


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A sandbox whose daemons are sleeping processes."""
    sandbox = Sandbox(tmp_path / "grid", memory_mb=1024)
    sandbox.layout.root.mkdir()
    sandbox._configure()
    for name in sandbox.state.names:
        begin(sandbox, name)
    yield sandbox
    stop(list(running(sandbox.layout.scratch).values()))


def begin(sandbox: Sandbox, name: str) -> None:
    _, *options = command(name, [], "main", scratch=sandbox.layout.scratch)
    line = [sys.executable, "-c", "import time; time.sleep(60)", *options]
    start(line, sandbox.layout.logs / name)


@pytest.mark.parametrize("verb", ["start", "stop"])
def test_a_second_command_is_told_of_the_first(sandbox: Sandbox, verb: str) -> None:
    """Two starts at once both failed, and left a DataNode that no command knew."""
    with Sandbox(sandbox.layout.root)._alone(), pytest.raises(BusyError):
        getattr(sandbox, verb)()
    assert all(sandbox.status().values())


def test_a_file_system_without_locks_is_named(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(cluster.fcntl, "flock", without_locks)
    with pytest.raises(SandboxError, match="local disk"):
        sandbox.stop()


def test_a_start_starts_what_has_ended_and_nothing_else(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SandboxError, match="runs already"):
        sandbox.start()
    stop([sandbox.daemon("nodemanager")])
    assert not sandbox.status()["nodemanager"]
    with pytest.raises(SandboxError, match="nodemanager has ended"):
        sandbox.daemon("nodemanager")
    started: list[str] = []

    def launch(self: Sandbox, names: list[str], _: list[str]) -> None:
        started.extend(names)
        for name in names:
            begin(self, name)

    monkeypatch.setattr(cluster, "daemon_class_path", list)
    monkeypatch.setattr(Sandbox, "_launch", launch)
    monkeypatch.setattr(cluster.daemons, "run", lambda *_: None)
    monkeypatch.setattr(cluster.readiness, "wait_for", lambda *_: None)
    monkeypatch.setattr(cluster.WebUI, "make_homes", lambda *_: None)
    sandbox.start()
    assert started == ["nodemanager"]
    assert all(sandbox.status().values())


def test_daemons_end_in_the_order_that_is_the_reverse_of_their_start(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop([sandbox.daemon("resourcemanager")])
    begin(sandbox, "resourcemanager")
    numbers = {sandbox.daemon(name).pid: name for name in sandbox.state.names}
    ended: list[str] = []

    def note(processes: list[psutil.Process], *_: object) -> None:
        ended.extend(numbers[each.pid] for each in processes)

    with monkeypatch.context() as patch:
        patch.setattr(cluster.daemons, "stop", note)
        sandbox.stop()
    assert ended == sandbox.state.names


def test_other_numbers_are_refused_while_daemons_run(sandbox: Sandbox) -> None:
    """They were ignored, and what did not run was started with the former ones."""
    stop([sandbox.daemon("nodemanager")])
    root = sandbox.layout.root
    for wanted in ({"datanodes": 3}, {"memory_mb": 4096}):
        with pytest.raises(SandboxError, match=rf"Received: \d+\. Stop it.*stop --folder {root}"):
            Sandbox(root, **wanted).start()


def test_the_sandbox_of_another_user_is_refused(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root found none of its daemons, and deleted the data that they had open."""
    owner = os.getuid()

    def closed(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(cluster.os, "getuid", lambda: owner + 1)
        # Nor may another user open its lock.
        patch.setattr(cluster.Path, "open", closed)
        with pytest.raises(SandboxError, match=f"number {owner}"):
            sandbox.stop()
    assert all(sandbox.status().values())


def test_a_start_that_fails_leaves_nothing_running(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.stop()

    def fail(self: Sandbox, *_: object) -> None:
        begin(self, "namenode")
        raise SandboxError("the port is taken")

    monkeypatch.setattr(cluster, "daemon_class_path", list)
    monkeypatch.setattr(Sandbox, "_start_all", fail)
    with pytest.raises(SandboxError, match="taken"):
        Sandbox(sandbox.layout.root).start()
    assert not sandbox.running()


def test_a_first_start_that_cannot_be_configured_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cluster, "daemon_class_path", list)
    monkeypatch.setattr(cluster, "free_ports", full)
    with pytest.raises(OSError, match="No space left"):
        Sandbox(tmp_path / "new").start()


def test_a_later_start_has_the_ports_and_the_memory_of_the_first(sandbox: Sandbox) -> None:
    first = sandbox.state
    Sandbox(sandbox.layout.root)._configure()
    assert sandbox.state == first
    Sandbox(sandbox.layout.root, datanodes=2, memory_mb=2048)._configure()
    assert (sandbox.state.datanodes, sandbox.state.memory_mb) == (2, 2048)
    assert sandbox.state.ports == first.ports


def test_a_stop_keeps_the_data_and_no_leftovers(sandbox: Sandbox) -> None:
    for folder in (sandbox.layout.namenode(), sandbox.layout.containers, sandbox.layout.scratch):
        (folder / "some").mkdir(parents=True)
    sandbox.stop()
    left = {path.name for path in sandbox.layout.root.iterdir()}
    assert {"hdfs", "logs", "sandbox.json"} <= left
    assert not {"yarn", "tmp"} & left
    assert not sandbox.running()


@pytest.mark.parametrize(
    "content",
    ["", "[1]", '{"ports": 3}', "[" * 5000, STATE % "0", STATE % "2000", STATE % '"1"'],
    ids=lambda text: str(len(text)),
)
def test_a_damaged_state_is_named(sandbox: Sandbox, content: str) -> None:
    sandbox.layout.state.write_text(content)
    with pytest.raises(SandboxError, match=r"sandbox\.json"):
        sandbox.status()
