"""What a start asks of the daemons: each question has a limit, and what fails is one sentence."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler

import pytest
import requests

from distkeras_grid.errors import SandboxError
from distkeras_grid.sandbox import readiness
from distkeras_grid.sandbox.readiness import WebUI
from tests.http_servers import serving

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


def namenode_of(datanode: str) -> type[BaseHTTPRequestHandler]:
    """A NameNode that sends whoever writes a file to a DataNode."""

    class NameNode(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.send_response(307)
            self.send_header("Location", f"http://{datanode}/webhdfs/v1/tmp")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    return NameNode


def test_a_datanode_that_hangs_holds_no_start(hanging: str) -> None:
    with serving(namenode_of(hanging)) as url, pytest.raises(SandboxError) as raised:
        WebUI(url.removeprefix("http://"), "").write_and_read()
    assert isinstance(raised.value.__cause__, requests.Timeout)


def test_the_daemons_of_this_machine_are_not_asked_by_a_proxy(
    hanging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(SandboxError) as raised:
        WebUI(hanging, "").make_homes("ada")
    assert isinstance(raised.value.__cause__, requests.Timeout)


@pytest.mark.parametrize(
    "ask",
    [
        lambda pages: pages.make_homes("ada"),
        lambda pages: pages.write_and_read(),
        lambda pages: pages.run_container(time.monotonic() + 60),
    ],
    ids=["homes", "file", "container"],
)
def test_a_master_that_hangs_ends_a_start_with_our_error(
    hanging: str, ask: Callable[[WebUI], None]
) -> None:
    with pytest.raises(SandboxError) as raised:
        ask(WebUI(hanging, hanging))
    assert isinstance(raised.value.__cause__, requests.Timeout)


@pytest.mark.parametrize("silences", [2, 10**6])
def test_a_master_that_is_busy_for_a_moment_is_asked_again(silences: int) -> None:
    """Until the deadline, and no longer."""
    asked = []

    class ResourceManager(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self._answer(b'{"application-id": "application_17_0001"}')

        def do_GET(self) -> None:
            asked.append(self.path)
            if len(asked) <= silences:
                time.sleep(0.6)
                return
            self._answer(b'{"app": {"state": "FAILED", "diagnostics": "exitCode: 0"}}')

        def _answer(self, content: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with serving(ResourceManager) as url:
        pages = WebUI("", url.removeprefix("http://"))
        if silences == 2:
            pages.run_container(time.monotonic() + 60)
        else:
            with pytest.raises(SandboxError) as raised:
                pages.run_container(time.monotonic() + 1)
            assert isinstance(raised.value.__cause__, requests.Timeout)
    assert len(asked) >= 2
