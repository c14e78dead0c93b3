"""The lock between two real processes, and after its holder was killed."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys

import pytest

from distkeras_grid.cli.lock import held
from distkeras_grid.cli.running import run
from distkeras_grid.errors import BusyError, StorageError

HOLDER = """
import subprocess, sys
from distkeras_grid.cli.lock import held

with held(sys.argv[1], "tile"):
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
            held(path, "train").__enter__()
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
        with pytest.raises(ZeroDivisionError), held(path, verb):
            raise ZeroDivisionError
    with held(path, "predict"), pytest.raises(BusyError, match="held by predict, process"):
        held(path, "train").__enter__()


def test_a_holder_that_has_not_said_who_it_is(path):
    import fcntl

    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="has not said who it is"):
            held(path, "train").__enter__()


def test_a_lock_that_cannot_be_opened_is_a_storage_error(tmp_path, capsys):
    missing = str(tmp_path / "no" / "lock")
    with pytest.raises(StorageError, match="No such file"):
        held(missing, "train").__enter__()
    assert run("train", lambda _: 0, ["--lock", missing]) == 4
