from __future__ import annotations

import fcntl
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distkeras_grid.errors import BusyError, SandboxError, StorageError
from distkeras_grid.lock_files import open_lock_file
from distkeras_grid.sandbox import cluster, configuration
from distkeras_grid.sandbox.cluster import Sandbox, SandboxState, can_bind, free_ports
from distkeras_grid.sandbox.daemons import start, stop


def test_no_connection_is_given_a_daemons_port() -> None:
    ports = free_ports()
    numbers = {getattr(ports, name) for name in ports.names()}
    assert len(numbers) == len(ports.names())
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


SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A sandbox of two sleepers, which stand for its daemons."""
    sandbox = Sandbox(tmp_path / "grid", memory_mb=1024)
    sandbox.layout.root.mkdir()
    names = ("namenode", "nodemanager")
    sleepers = tuple(start(name, SLEEP, sandbox.layout.logs / name) for name in names)
    sandbox._keep(SandboxState(free_ports(), 1, 1024, 8, sleepers))
    yield sandbox
    stop(sleepers)


def test_a_second_command_is_told_of_the_first(sandbox: Sandbox) -> None:
    """Two starts at once both failed, and left a DataNode that no command knew."""
    for act in (sandbox.start, sandbox.start_anew, sandbox.stop, sandbox.repair, sandbox.delete):
        with Sandbox(sandbox.layout.root)._alone(), pytest.raises(BusyError):
            act()
    with Sandbox(sandbox.layout.root)._alone(), pytest.raises(BusyError):
        sandbox.restart("namenode")
    assert all(sandbox.status().values())


def test_no_other_command_comes_between_the_stop_and_the_start_of_a_restart(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one that took the lock there left the sandbox stopped, or deleted it."""

    def class_path() -> list[str]:
        assert not sandbox.running()
        with pytest.raises(BusyError):
            Sandbox(sandbox.layout.root).delete()
        raise SandboxError("no jars")

    monkeypatch.setattr(cluster, "daemon_class_path", class_path)
    again = Sandbox(sandbox.layout.root, datanodes=2)
    with pytest.raises(SandboxError, match="no jars"):
        again.start_anew()
    assert again._wanted == (1, 1024, 8)


def test_a_start_says_what_has_ended_and_how_it_comes_back(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match="restart"):
        sandbox.start()
    stop([sandbox.daemon("nodemanager")])
    with pytest.raises(SandboxError, match=r"without nodemanager.*repair"):
        sandbox.start()


def test_a_sandbox_that_is_stopped_is_not_repaired(sandbox: Sandbox) -> None:
    sandbox.stop()
    with pytest.raises(SandboxError):
        sandbox.repair()


def test_a_sandbox_of_which_all_runs_needs_no_repair(sandbox: Sandbox) -> None:
    assert sandbox.repair() == []


@pytest.mark.parametrize("verb", ["stop", "start", "delete"])
def test_a_daemon_that_nobody_could_note_is_ended(
    sandbox: Sandbox, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its starter was killed after the process had begun, and before sandbox.json named it."""
    sandbox.stop()
    line = [*SLEEP, f"-Djava.io.tmpdir={sandbox.layout.scratch}"]
    unknown = start("namenode", line, sandbox.layout.logs / "namenode.log")
    monkeypatch.setattr(cluster, "daemon_class_path", list)
    monkeypatch.setattr(
        Sandbox, "_start_all", lambda *_: unknown.process() and pytest.fail("it still runs")
    )
    getattr(Sandbox(sandbox.layout.root, memory_mb=1024), verb)()
    assert unknown.process() is None


def test_a_stop_keeps_the_data_and_no_leftovers(sandbox: Sandbox) -> None:
    for folder in (sandbox.layout.namenode(), sandbox.layout.containers, sandbox.layout.scratch):
        (folder / "some").mkdir(parents=True)
    sandbox.stop()
    assert {path.name for path in sandbox.layout.root.iterdir()} == {
        "hdfs",
        "lock",
        "logs",
        "sandbox.json",
    }
    assert not sandbox.running()


@pytest.mark.parametrize("verb", ["start", "stop", "delete"])
def test_a_link_in_place_of_the_lock_is_not_followed(sandbox: Sandbox, verb: str) -> None:
    precious = sandbox.layout.root.with_name("precious")
    sandbox.layout.lock.unlink(missing_ok=True)
    sandbox.layout.lock.symlink_to(precious)
    with pytest.raises(StorageError, match="link"):
        getattr(sandbox, verb)()
    assert not precious.exists()


def test_a_sandbox_is_deleted_with_its_folder(sandbox: Sandbox) -> None:
    (sandbox.layout.namenode()).mkdir(parents=True)
    processes = [daemon.process() for daemon in sandbox.state.daemons]
    assert sandbox.delete() == []
    assert not sandbox.layout.root.exists()
    assert not any(process.is_running() for process in processes if process)


@pytest.fixture
def deleted_meanwhile(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sandbox is deleted when the next command has opened its lock, and not locked it yet."""

    def late(file: Any, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        sandbox.delete()
        lock(file, operation)

    lock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", late)


@pytest.mark.usefixtures("deleted_meanwhile")
def test_the_lock_of_a_sandbox_that_is_deleted_is_held_by_one(sandbox: Sandbox) -> None:
    """One that waited held the deleted file, and the next one the file that it had made anew."""
    (sandbox.layout.root / "thesis.txt").touch()
    with Sandbox(sandbox.layout.root)._alone(new=True), pytest.raises(BusyError):
        Sandbox(sandbox.layout.root)._alone(new=True).__enter__()


@pytest.mark.usefixtures("deleted_meanwhile")
@pytest.mark.parametrize(("verb", "others"), [("stop", True), ("repair", False), ("delete", True)])
def test_what_is_deleted_meanwhile_is_no_sandbox(sandbox: Sandbox, verb: str, others: bool) -> None:
    if others:
        (sandbox.layout.root / "thesis.txt").touch()
    with pytest.raises(SandboxError, match="There is no sandbox"):
        getattr(Sandbox(sandbox.layout.root), verb)()
    assert sandbox.layout.root.exists() == others
    assert not sandbox.layout.lock.exists()


@pytest.mark.usefixtures("deleted_meanwhile")
def test_a_start_makes_the_folder_anew_that_was_deleted_meanwhile(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "daemon_class_path", list)
    monkeypatch.setattr(Sandbox, "_start_all", lambda *_: None)
    Sandbox(sandbox.layout.root, memory_mb=1024).start()
    assert sandbox.layout.state.exists()


def test_a_delete_holds_the_lock_until_nothing_is_left(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that it removed was that of the next start."""

    def remove(folder: Path) -> None:
        assert not sandbox.layout.lock.exists()
        # Somebody who has opened the lock before.
        with pytest.raises(BlockingIOError):
            fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)
        rmdir(folder)

    rmdir = Path.rmdir
    monkeypatch.setattr(Path, "rmdir", remove)
    with open_lock_file(sandbox.layout.lock) as waiting:
        assert sandbox.delete() == []
    assert not sandbox.layout.root.exists()


def test_what_begins_while_a_folder_is_deleted_stays(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was an OSError: the directory is not empty."""

    def remove(folder: Path) -> None:
        (folder / "new").touch()
        rmdir(folder)

    rmdir = Path.rmdir
    monkeypatch.setattr(Path, "rmdir", remove)
    assert sandbox.delete() == [sandbox.layout.root / "new"]


def test_what_is_not_of_the_sandbox_is_not_deleted(sandbox: Sandbox) -> None:
    thesis = sandbox.layout.root / "thesis.txt"
    thesis.write_text("x")
    assert sandbox.delete() == [thesis]
    assert [path.name for path in sandbox.layout.root.iterdir()] == ["thesis.txt"]
    with pytest.raises(SandboxError):
        sandbox.delete()


def test_the_state_of_another_version_is_named(sandbox: Sandbox) -> None:
    written = json.loads(sandbox.layout.state.read_text())
    for daemon in written["daemons"]:
        daemon["created"] = daemon.pop("began")
    stop(sandbox.state.daemons)
    sandbox.layout.state.write_text(json.dumps(written))
    with pytest.raises(SandboxError, match="another version"):
        sandbox.status()


@pytest.mark.parametrize(
    ("field", "value"), [("pid", "1"), ("pid", -1), ("pid", 2**40), ("log", None), ("name", 3)]
)
def test_a_state_that_no_sandbox_has_written_is_refused(
    sandbox: Sandbox, field: str, value: object
) -> None:
    whole = sandbox.layout.state.read_text()
    written = json.loads(whole)
    written["daemons"][0][field] = value
    sandbox.layout.state.write_text(json.dumps(written))
    with pytest.raises(SandboxError):
        sandbox.status()
    sandbox.layout.state.write_text(whole)


@pytest.mark.parametrize("content", ["", "[1]", '{"ports": 3}', "[" * 5000])
def test_a_damaged_state_is_named(sandbox: Sandbox, content: str) -> None:
    whole = sandbox.layout.state.read_text()
    sandbox.layout.state.write_text(content)
    with pytest.raises(SandboxError, match=r"sandbox\.json"):
        sandbox.status()
    sandbox.layout.state.write_text(whole)
