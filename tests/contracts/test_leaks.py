"""What a test leaves is found: each kind is left once, and then put away."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.leaks import MARK, held, held_by_runs, left

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]


def a_process(folder):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    return lambda: process.communicate(b"\n")


def a_thread(folder):
    event = threading.Event()
    thread = threading.Thread(target=event.wait)
    thread.start()
    return lambda: (event.set(), thread.join())


def a_file(folder):
    file = (folder / "open").open("w")
    return lambda: (file.close(), (folder / "open").unlink())


def a_port(folder):
    return socket.create_server(("127.0.0.1", 0)).close


def a_folder(folder):
    (folder / "dkg-left").mkdir()
    return (folder / "dkg-left").rmdir


@pytest.mark.parametrize(
    ("leave", "kinds"),
    [
        (a_process, {"processes"}),
        (a_thread, {"threads"}),
        (a_file, {"descriptors", "temporary"}),
        (a_port, {"descriptors"}),
        (a_folder, {"temporary"}),
    ],
)
def test_each_kind_is_found(tmp_path, leave, kinds):
    before = held(str(tmp_path))
    assert left(before, str(tmp_path)) == {}
    away = leave(tmp_path)
    assert set(left(before, str(tmp_path), seconds=0.2)) == kinds
    away()
    assert left(before, str(tmp_path)) == {}


SERVER = [sys.executable, "-m", "distkeras_grid.parameter_server"]
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}


def an_orphan(environment):
    """Start the process of a parameter server, which waits for its settings; its parent ends."""
    settings = "stdin=0, stdout=1, start_new_session=True"
    command = f"import subprocess; subprocess.Popen({SERVER}, {settings})"
    process = subprocess.Popen([sys.executable, "-c", command], env=environment, **PIPES)
    process.wait(20)
    # The end of its input ends it; the end of its output is that of the process.
    return lambda: process.communicate(timeout=20)


@pytest.mark.parametrize("ours", [True, False])
def test_a_server_whose_driver_is_gone_is_found_and_not_that_of_others(tmp_path, ours):
    before = held_by_runs(str(tmp_path))
    away = an_orphan({**os.environ, MARK: os.environ[MARK] if ours else "another"})
    try:
        found = left(before, str(tmp_path), 0.2, held_by_runs)
    finally:
        away()
    assert set(found) == ({"processes"} if ours else set())
    assert left(before, str(tmp_path), 20, held_by_runs) == {}


def test_a_server_in_a_container_has_other_variables_and_is_found(tmp_path):
    before = held_by_runs(str(tmp_path))
    unmarked = {name: value for name, value in os.environ.items() if name != MARK}
    process = subprocess.Popen(SERVER, env=unmarked, **PIPES)
    try:
        # Popen returns when the program is replaced, a moment before its words can be read.
        words = Path(f"/proc/{process.pid}/cmdline")
        deadline = time.monotonic() + 10
        while not words.read_bytes() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert set(left(before, str(tmp_path), 0.2, held_by_runs)) == {"processes"}
    finally:
        process.communicate(timeout=20)
    assert left(before, str(tmp_path), 20, held_by_runs) == {}


def test_what_ends_by_itself_is_waited_for(tmp_path):
    before = held(str(tmp_path))
    threading.Timer(0.3, lambda: None).start()
    assert left(before, str(tmp_path)) == {}
