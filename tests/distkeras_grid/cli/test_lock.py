"""The lock between two real processes, and after its holder was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distkeras_grid.cli.common_options import run
from distkeras_grid.cli.lock import descriptors, hold_lock
from distkeras_grid.errors import BusyError

HOLDER = """
import subprocess, sys
from distkeras_grid.cli.lock import hold_lock

with hold_lock(sys.argv[1]):
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"])
    print(child.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "grid.lock")


def test_a_second_process_is_turned_away_and_gets_it_when_the_first_is_killed(path, capsys):
    calls = []
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        child = int(holder.stdout.readline())
        code = run("train", lambda rest: calls.append(rest) or 0, ["--lock", path, "--x", "1"])
        assert (code, calls) == (75, [])
        assert capsys.readouterr().err.startswith(f"BusyError: {path} is held by another command")
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(10)
        # A child of the holder that lives on, such as Spark's JVM for a moment, does not keep it.
        os.kill(child, 0)
        code = run("train", lambda rest: calls.append(list(rest)) or 0, ["--lock", path, "--x=1"])
        assert (code, calls) == (0, [["--x=1"]])
        os.kill(child, signal.SIGKILL)


def test_it_is_free_after_an_error_and_the_file_keeps_its_content(path):
    Path(path).write_text("of somebody else")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), hold_lock(path):
            raise ZeroDivisionError
    with hold_lock(path), pytest.raises(BusyError):
        hold_lock(path).__enter__()
    assert descriptors() == ()
    assert Path(path).read_text() == "of somebody else"


def test_a_lock_that_cannot_be_opened_is_a_storage_error(tmp_path, capsys):
    assert run("train", lambda _: 0, ["--lock", str(tmp_path / "no" / "lock")]) == 4
    assert capsys.readouterr().err.startswith("StorageError: ")


# The driver runs here, or is being handed over to YARN.
HANDED_ON = """
import sys
from distkeras_grid.cli.lock import descriptors, hold_lock
from distkeras_grid.submission.spark_submit import follow, hand_over

CHILD = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(100)"
with hold_lock(sys.argv[1]):
    command = [sys.executable, "-c", CHILD, sys.argv[1] + ".child"]
    {call}
"""


@pytest.mark.parametrize(
    "call",
    ["follow(command, descriptors())", "hand_over(command, descriptors())"],
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
        with pytest.raises(BusyError):
            hold_lock(path).__enter__()
        os.kill(child, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                with hold_lock(path):
                    return
            except BusyError:
                time.sleep(0.05)
        pytest.fail("the lock stayed")
