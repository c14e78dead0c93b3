"""Operations, tries and their end, on loopback; tests/hadoop has the real daemons."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from distkeras_grid.errors import NoSpaceError, OutputExistsError, PathNotFoundError, StorageError
from distkeras_grid.webhdfs import connection as module
from distkeras_grid.webhdfs import failures
from distkeras_grid.webhdfs.addresses import Address
from distkeras_grid.webhdfs.connection import WebHdfsConnection
from tests.distkeras_grid.webhdfs.loopback import Fault, Loopback, closed_at_end, loopback

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    with closed_at_end(globals()):
        yield


def test_a_wrong_address_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "PAUSES", (60.0,))
    began = time.monotonic()
    with pytest.raises(StorageError, match="the NameNode at localhost:1 refuses connections"):
        WebHdfsConnection(Address(("http://localhost:1",), "ada")).status("/")
    assert time.monotonic() - began < 30


def test_a_refused_connection_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A DataNode that has just died refuses; its NameNode may name another one the next time."""
    monkeypatch.setattr(failures, "PAUSES", (0.1, 0.2))
    began = time.monotonic()
    with pytest.raises(StorageError, match="refuses connections"):
        WebHdfsConnection(Address(("http://localhost:1",), "ada"), patient=True).status("/")
    assert time.monotonic() - began >= 0.3


def test_a_stop_ends_a_pause_and_all_further_tries(
    hdfs: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "PAUSES", (60.0, 0.0, 0.0))
    hdfs.faults["LISTSTATUS"] = Fault("reset", times=-1)
    stopped = threading.Event()
    connection = WebHdfsConnection(hdfs.address, stopped=stopped, patient=True)
    threading.Timer(0.2, stopped.set).start()
    began = time.monotonic()
    with pytest.raises(StorageError, match="broke"):
        connection.list_directory("/")
    assert hdfs.asked == ["LISTSTATUS"] * 2  # one before the pause, one after it
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("fault", "count"),
    [
        (Fault("RetriableException", 9), 4),
        (Fault("StandbyException", 9), 4),
        (Fault("IOException", 9, "Failed to replace a bad datanode"), 4),
        (Fault("IOException", 9, "could only be written to 0 of the 1 minReplication nodes"), 1),
        (Fault("AccessControlException", 9), 1),
        (Fault("page", 9, status=503), 4),
        (Fault("page", 9, status=404), 1),
        (Fault("page", 9, status=401), 1),
        (Fault("answer", 9, body=b"[]"), 1),
        (Fault("answer", 9, body=b"<html>"), 1),
        (Fault("answer", 9, body=b""), 1),
    ],
)
def test_what_may_pass_is_tried_again_and_what_may_not_is_not(
    hdfs: Loopback, fault: Fault, count: int
) -> None:
    hdfs.faults["GETFILESTATUS"] = fault
    with pytest.raises(StorageError) as raised:
        WebHdfsConnection(hdfs.address, patient=True).status("/")
    assert not isinstance(raised.value, failures.AttemptFailure)
    assert len(hdfs.asked) == count
    fault.times = 2 if count == 4 else 0
    assert WebHdfsConnection(hdfs.address, patient=True).status("/") is not None


@pytest.mark.parametrize(
    ("second", "kind", "told"),
    [
        (
            Fault("FileNotFoundException", message="/x does not exist."),
            PathNotFoundError,
            None,
        ),
        (Fault("DSQuotaExceededException", message="The DiskSpace quota"), NoSpaceError, None),
        # HDFS says so because the DataNode was left out that failed before.
        (
            Fault("IOException", message="No active and not excluded nodes contain this block."),
            StorageError,
            "the DataNode at .* broke",
        ),
    ],
)
def test_what_is_told_after_a_datanode_was_left_out(
    hdfs: Loopback,
    monkeypatch: pytest.MonkeyPatch,
    second: Fault,
    kind: type[StorageError],
    told: str | None,
) -> None:
    monkeypatch.setattr(failures, "PAUSES", (0.0,))
    hdfs.files["/x"] = b"content"
    hdfs.faults["OPEN data"] = Fault("reset")
    connection = WebHdfsConnection(hdfs.address, patient=True)

    def attempt() -> bytes:
        try:
            with connection.pieces("/x") as pieces:
                return b"".join(pieces)
        finally:
            hdfs.faults["OPEN"] = second

    with pytest.raises(kind, match=told) as raised:
        connection.again("read", "/x", attempt)
    assert type(raised.value) is kind
    assert "excludedatanodes" in hdfs.queries[2]


def test_before_anybody_has_answered_nothing_is_tried_again(hdfs: Loopback) -> None:
    hdfs.faults["GETFILESTATUS"] = Fault("reset", times=-1)
    with pytest.raises(StorageError, match="broke"):
        WebHdfsConnection(hdfs.address).status("/")
    assert len(hdfs.asked) == 1
    # A definite no is an answer.
    connection = WebHdfsConnection(hdfs.address)
    with pytest.raises(PathNotFoundError):
        connection.list_directory("/nothing")
    with pytest.raises(StorageError, match="broke"):
        connection.status("/")
    assert len(hdfs.asked) == 2 + 4


def test_the_tries_of_an_operation_have_a_deadline_together(
    hdfs: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "PAUSES", (0.3,) * 100)
    monkeypatch.setattr(module, "OPERATION_SECONDS", 1.0)
    hdfs.faults["GETFILESTATUS"] = Fault("reset", times=-1)
    began = time.monotonic()
    with pytest.raises(StorageError, match="broke"):
        WebHdfsConnection(hdfs.address, patient=True).status("/")
    assert time.monotonic() - began < 5
    assert 2 <= len(hdfs.asked) <= 4


def test_a_server_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUTS", (0.5, 0.5))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address((f"http://127.0.0.1:{silent.getsockname()[1]}",), "ada")
        with pytest.raises(StorageError, match="does not answer"):
            WebHdfsConnection(address).list_directory("/")


def test_a_host_that_does_not_exist_is_named() -> None:
    with pytest.raises(StorageError, match=r"knows no host 'nowhere\.invalid'"):
        WebHdfsConnection(Address(("http://nowhere.invalid:9870",), "ada")).status("/")


@pytest.mark.parametrize("kind", ["StandbyException", "reset", "RetriableException"])
def test_the_other_namenode_is_asked_and_kept(hdfs: Loopback, kind: str) -> None:
    with loopback() as standby:
        standby.faults["GETFILESTATUS"] = Fault(kind, times=-1)
        connection = WebHdfsConnection(Address((standby.url, hdfs.url), "ada"))
        assert connection.status("/") is not None
        assert connection.status("/") is not None
        assert (len(standby.asked), len(hdfs.asked)) == (1, 2)
        # No other one helps where the answer is definite.
        hdfs.faults["GETFILESTATUS"] = Fault("AccessControlException")
        with pytest.raises(StorageError, match="AccessControl"):
            connection.status("/")
        assert len(standby.asked) == 1


def test_redirects_that_go_round_end(hdfs: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    hdfs.files["/x"] = b"1"
    hdfs.datanode = hdfs.url
    connection = WebHdfsConnection(hdfs.address)
    with pytest.raises(StorageError, match="3 redirects"):
        connection.checksum("/x")
    assert hdfs.asked.count("GETFILECHECKSUM") == 1 + 3


def test_only_the_namenode_is_told_who_asks(hdfs: Loopback) -> None:
    # Its redirects say it, as it believes it.
    hdfs.files["/x"] = b"1"
    assert WebHdfsConnection(hdfs.address).checksum("/x") is not None
    assert [query.get("user.name") for query in hdfs.queries] == ["ada", "ada"]


def test_each_operation_does_what_it_says(hdfs: Loopback) -> None:
    connection = WebHdfsConnection(hdfs.address)
    name = "/raw/100% #;?&=+,'[x] ä.tif"
    connection.make_directory("/raw")
    connection.again("write", name, lambda: connection.write(name, iter([b"1", b"23"])))
    (status,) = connection.list_directory("/raw")
    assert status == connection.status(name)
    assert (status.path, status.size, status.modified, status.is_directory) == (name, 3, 1.5, False)
    with connection.pieces(name) as pieces:
        assert b"".join(pieces) == b"123"
    connection.rename(name, "/raw/b", overwrite=False)
    with pytest.raises(PathNotFoundError):
        connection.rename(name, "/raw/b", overwrite=False)
    hdfs.files[name] = b"4"
    with pytest.raises(OutputExistsError):
        connection.rename(name, "/raw/b", overwrite=False)
    connection.rename(name, "/raw/b", overwrite=True)
    for _ in range(2):
        connection.delete("/raw/b")
    assert (connection.status("/raw/b"), hdfs.files) == (None, {})
    hdfs.faults["RENAME"] = Fault("answer", body=b'{"boolean": false}')
    hdfs.files[name] = b"4"
    with pytest.raises(StorageError, match="was refused"):
        connection.rename(name, "/raw/b", overwrite=True)


def test_no_proxy_is_asked(hdfs: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    # This host is one of the cluster as far as the client knows, and answers here.
    cluster = hdfs.url.replace("127.0.0.1", "0.0.0.0")
    assert WebHdfsConnection(Address((cluster,), "ada")).status("/") is not None
