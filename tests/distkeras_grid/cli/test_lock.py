"""The lock between two real processes, and after its holder was killed."""

from __future__ import annotations

import errno
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distkeras_grid.cli.common_options import run
from distkeras_grid.cli.lock import Lock, current, hold_lock
from distkeras_grid.errors import BusyError, ClusterError, ConfigurationError, StorageError
from distkeras_grid.submission.applications import new_tag

HOLDER = """
import subprocess, sys
from distkeras_grid.cli.lock import current, hold_lock

with hold_lock(sys.argv[1], "tile"):
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"])
    print(child.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "grid.lock")


def test_a_second_process_is_told_who_holds_it_and_gets_it_when_that_is_killed(path, capsys):
    calls = []
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        child = int(holder.stdout.readline())
        with pytest.raises(BusyError, match=f"process {holder.pid} on {platform.node()}, since 2"):
            hold_lock(path, "train").__enter__()
        code = run("train", lambda rest: calls.append(rest) or 0, ["--lock", path, "--x", "1"])
        assert (code, calls) == (75, [])
        assert capsys.readouterr().err.startswith(f"BusyError: {path} is held by tile, process")
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(10)
        # A child of the holder that lives on, such as Spark's JVM for a moment, does not keep it.
        os.kill(child, 0)
        code = run("train", lambda rest: calls.append(list(rest)) or 0, ["--lock", path, "--x=1"])
        assert (code, calls) == (0, [["--x=1"]])
        os.kill(child, signal.SIGKILL)


def test_it_is_free_after_an_error_and_names_the_next_holder_alone(path):
    for verb in ("a verb with a long name", "tile"):
        with pytest.raises(ZeroDivisionError), hold_lock(path, verb):
            raise ZeroDivisionError
    with hold_lock(path, "predict"), pytest.raises(BusyError, match="held by predict, process"):
        hold_lock(path, "train").__enter__()


def test_a_holder_that_has_not_said_who_it_is(path):
    import fcntl

    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="has not said who it is"):
            hold_lock(path, "train").__enter__()


def test_a_lock_that_cannot_be_opened_is_a_storage_error(tmp_path, capsys):
    missing = str(tmp_path / "no" / "lock")
    with pytest.raises(StorageError, match="No such file"):
        hold_lock(missing, "train").__enter__()
    assert run("train", lambda _: 0, ["--lock", missing]) == 4


@pytest.mark.parametrize("content", ["not a lock", '{"a": 1}', "\x00\x01"])
def test_a_file_with_other_content_stays_as_it_is(path, content):
    with open(path, "w") as file:
        file.write(content)
    with pytest.raises(StorageError):
        hold_lock(path, "train").__enter__()
    with open(path) as file:
        assert file.read() == content


def test_a_link_is_not_followed(tmp_path, path):
    target = tmp_path / "precious"
    target.write_text("")
    os.symlink(target, path)
    with pytest.raises(StorageError, match="link"):
        hold_lock(path, "train").__enter__()
    os.unlink(path)
    os.symlink(tmp_path / "made", path)
    with pytest.raises(StorageError, match="link"):
        hold_lock(path, "train").__enter__()
    assert not (tmp_path / "made").exists()


def test_a_pipe_is_no_lock_file(path):
    os.mkfifo(path)
    with pytest.raises(StorageError):
        hold_lock(path, "train").__enter__()


# The driver runs here, or is being handed over to YARN.
HANDED_ON = """
import sys
from distkeras_grid.cli.lock import hold_lock
from distkeras_grid.submission.spark_submit import follow, hand_over

CHILD = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(100)"
with hold_lock(sys.argv[1], "submit") as lock:
    command = [sys.executable, "-c", CHILD, sys.argv[1] + ".child"]
    {call}
"""


@pytest.mark.parametrize(
    "call",
    ["follow(command, [lock.descriptor])", "hand_over(command, print, [lock.descriptor])"],
)
def test_work_that_was_given_the_lock_keeps_it_when_the_command_is_killed(path, call):
    told = Path(path + ".child")
    with subprocess.Popen([sys.executable, "-c", HANDED_ON.format(call=call), path]) as holder:
        deadline = time.monotonic() + 30
        while not (told.exists() and told.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        child = int(told.read_text())
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(10)
        with pytest.raises(BusyError, match=f"process {holder.pid}"):
            hold_lock(path, "train").__enter__()
        os.kill(child, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                with hold_lock(path, "train"):
                    return
            except BusyError:
                time.sleep(0.05)
        pytest.fail("the lock stayed")


def test_an_application_whose_end_nobody_has_seen_keeps_the_lock(path):
    asked = []

    def runs(identifier):
        asked.append(identifier)
        return identifier

    with hold_lock(path, "submit") as lock:
        assert current() is lock
        lock.add_application("application_17_0001")
    assert current() is None
    with pytest.raises(BusyError, match="application_17_0001"):
        hold_lock(path, "train", runs).__enter__()
    # Who was turned away has not overwritten what the file says.
    with pytest.raises(BusyError, match="application_17_0001"):
        hold_lock(path, "train", runs).__enter__()
    with hold_lock(path, "train", lambda _: None) as lock:
        pass
    with hold_lock(path, "train", runs):
        pass
    assert asked == ["application_17_0001"] * 2


def test_an_application_that_has_no_id_yet_is_known_by_its_tag(path):
    tag, asked = new_tag(), []

    def runs(name):
        asked.append(name)
        return "application_17_0001"

    with hold_lock(path, "submit") as lock:
        lock.add_application(tag)
    with pytest.raises(BusyError, match="cancel application_17_0001"):
        hold_lock(path, "train", runs).__enter__()
    assert asked == [tag]
    with hold_lock(path, "train", lambda _: None):
        pass


def test_the_application_is_on_the_disk_before_it_is_handed_over(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.pread(descriptor, 999, 0)))
    with hold_lock(path, "submit") as lock:
        lock.add_application(new_tag())
    assert any(b"distkeras-grid-" in content for content in synced)


@pytest.mark.parametrize(
    "answer", [ClusterError("Cannot reach YARN."), ConfigurationError("HADOOP_CONF_DIR is not set")]
)
def test_an_application_that_nobody_can_ask_for_keeps_the_lock_and_is_named(path, answer):
    def runs(identifier):
        raise answer

    with hold_lock(path, "submit") as lock:
        lock.add_application("application_17_0001")
    before = Path(path).read_text()
    with pytest.raises(ClusterError) as raised:
        hold_lock(path, "train", runs).__enter__()
    # What is guarded, why nobody can tell, and which file is in the way.
    assert all(part in str(raised.value) for part in (path, "application_17_0001", str(answer)))
    assert Path(path).read_text() == before


@pytest.mark.parametrize(
    "told",
    ["", "x; rm -rf /", "application_17", 17, ["application_17_0001"], "distkeras-grid-1"],
)
def test_a_lock_file_that_names_no_application_is_refused_and_yarn_is_not_asked(path, told):
    content = json.dumps({"verb": "submit", "application": told})
    Path(path).write_text(content)
    with pytest.raises(StorageError):
        hold_lock(path, "train", lambda _: pytest.fail("asked")).__enter__()
    assert Path(path).read_text() == content


def test_the_end_of_a_longer_content_hides_no_application(path):
    holder = {"verb": "submit", "application": "application_17_0001"}
    Path(path).write_text(json.dumps(holder) + '\n"since": "2026"}\n')
    with pytest.raises(BusyError):
        hold_lock(path, "train", lambda name: name).__enter__()


def test_a_file_system_without_locks_is_a_storage_error(path, monkeypatch):
    import fcntl

    def without_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", without_locks)
    with pytest.raises(StorageError):
        hold_lock(path, "train").__enter__()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_is_a_storage_error():
    with open("/dev/full", "r+b", buffering=0) as file, pytest.raises(StorageError):
        Lock(file, "/dev/full", {"verb": "train"})


def test_an_application_that_has_ended_leaves_the_lock_free(path):
    with hold_lock(path, "submit") as lock:
        lock.add_application("application_17_0001")
        lock.forget_application()
    with hold_lock(path, "train", lambda name: name):
        pass
