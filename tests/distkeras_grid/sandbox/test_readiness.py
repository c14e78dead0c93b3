"""What a start asks of the daemons: each question has a limit, and what fails is one sentence."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import requests

from distkeras_grid.errors import SandboxError
from distkeras_grid.sandbox import readiness
from distkeras_grid.sandbox.readiness import WebUI, wait_for

#: How long a test waits before it gives up: then what hangs is closed.
PATIENCE_SECONDS = 10.0


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "FILE_SECONDS", 0.3)
    monkeypatch.setattr(readiness, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(readiness, "POLL_SECONDS", 0.01)


@pytest.fixture
def hanging() -> Iterator[str]:
    """A daemon that accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as daemon:
        timer = threading.Timer(PATIENCE_SECONDS, lambda: daemon.shutdown(socket.SHUT_RDWR))
        timer.start()
        yield "{}:{}".format(*daemon.getsockname())
        timer.cancel()
        timer.join()


def test_the_daemons_of_this_machine_are_not_asked_by_a_proxy(
    hanging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(SandboxError) as raised:
        WebUI(hanging, "").make_homes("ada")
    assert isinstance(raised.value.__cause__, requests.Timeout)


def test_a_daemon_that_has_ended_ends_the_wait_and_so_does_the_deadline() -> None:
    def ended() -> None:
        raise SandboxError("The namenode has ended.")

    with pytest.raises(SandboxError, match="namenode has ended"):
        wait_for("HDFS", lambda: False, ended, time.monotonic() + 60)
    with pytest.raises(SandboxError, match="HDFS is not there in time"):
        wait_for("HDFS", lambda: False, lambda: None, time.monotonic())
