"""Who is asked by way of a proxy, and who is told a password."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from distkeras_grid.errors import StorageError
from distkeras_grid.webhdfs.addresses import Address, HdfsPath, find_address
from distkeras_grid.webhdfs.connection import WebHdfsConnection
from tests.distkeras_grid.webhdfs.loopback import Loopback, closed_at_end
from tests.http_servers import serving

CLOSED = "http://ada:secret@127.0.0.1:1"


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    with closed_at_end(globals()):
        yield


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return lambda url: monkeypatch.setenv("http_proxy", url)


def answering(status: int, asked: list[str], logins: list[str | None]) -> type:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            logins.append(self.headers.get("Authorization"))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    return Answer


def test_loopback_and_a_configured_cluster_are_asked_directly(
    hdfs: Loopback, proxy: Callable[[str], None]
) -> None:
    proxy(CLOSED)
    here = find_address(HdfsPath("/"), url=hdfs.url, environment={})
    assert WebHdfsConnection(here).status("/") is not None
    # This host is one of the cluster as far as the client knows, and answers here.
    cluster = hdfs.url.replace("127.0.0.1", "0.0.0.0")
    assert WebHdfsConnection(Address((cluster,), "ada")).status("/") is not None
    stated = find_address(HdfsPath("/"), url="http://gateway.example:9870", environment={})
    assert stated.by_proxy


def test_a_proxy_that_is_asked_is_named_without_its_password(proxy: Callable[[str], None]) -> None:
    address = Address(("http://gateway.example:9870",), "ada", by_proxy=True)
    proxy(CLOSED)
    with pytest.raises(StorageError, match="by way of the proxy") as raised:
        WebHdfsConnection(address).status("/")
    assert "secret" not in str(raised.value)
    asked: list[str] = []
    with serving(answering(404, asked, [])) as url:
        proxy(url)
        with pytest.raises(StorageError, match="A proxy may stand between"):
            WebHdfsConnection(address).status("/")
    assert asked[0].startswith("http://gateway.example:9870/webhdfs/v1/?")


def test_a_login_goes_to_the_gateway_and_no_further(hdfs: Loopback) -> None:
    logins: list[str | None] = []

    class Gateway(answering(200, [], logins)):  # type: ignore[misc]
        def do_GET(self) -> None:
            logins.append(self.headers.get("Authorization"))
            self.send_response(307)
            self.send_header("Location", elsewhere + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with serving(answering(404, [], logins)) as elsewhere, serving(Gateway) as url:
        address = Address((url,), "ada", login=("ada", "pässword"))
        with pytest.raises(StorageError) as raised:
            WebHdfsConnection(address).status("/")
    told = base64.b64encode("ada:pässword".encode()).decode()
    assert logins == [f"Basic {told}", None]
    assert "pässword" not in str(raised.value)
