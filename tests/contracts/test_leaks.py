"""What a test leaves is found: each kind is left once, and then put away."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest

from tests.leaks import held, left

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


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


def test_what_ends_by_itself_is_waited_for(tmp_path):
    before = held(str(tmp_path))
    threading.Timer(0.3, lambda: None).start()
    assert left(before, str(tmp_path)) == {}
