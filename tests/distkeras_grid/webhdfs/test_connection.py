"""Tries and their end, without a daemon; tests/hadoop has the real ones."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time

import pytest
import requests
from hdfs import HdfsError

from distkeras_grid.errors import ConfigurationError, StorageError
from distkeras_grid.webhdfs import connection as module
from distkeras_grid.webhdfs.addresses import Address
from distkeras_grid.webhdfs.connection import Connection, file_status

REFUSED = Address(("http://localhost:1",), "ada")


def test_a_wrong_address_is_said_at_once_and_a_lost_one_after_some_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = time.monotonic()
    with pytest.raises(StorageError, match="the NameNode at localhost:1 refuses connections"):
        Connection(REFUSED).status("/")
    assert time.monotonic() - began < 2
    monkeypatch.setattr(module, "PAUSES", (0.1, 0.2, 0.3))
    began = time.monotonic()
    with pytest.raises(StorageError, match="refuses connections"):
        Connection(REFUSED, patient=True).status("/")
    assert 0.6 <= time.monotonic() - began < 5


def test_a_stop_ends_a_pause_and_all_further_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSES", (60.0, 0.0, 0.0))
    stopped, tries = threading.Event(), []

    def attempt(excluded: str | None) -> None:
        tries.append(excluded)
        raise requests.ConnectionError("refused")

    connection = Connection(REFUSED, stopped=stopped, patient=True)
    threading.Timer(0.2, stopped.set).start()
    began = time.monotonic()
    with pytest.raises(StorageError, match="refuses connections"):
        connection._again("read", "/", attempt)
    assert len(tries) == 2  # one before the pause, one after it
    assert time.monotonic() - began < 30


def test_a_datanode_that_fails_is_left_out_every_other_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PAUSES", (0.0, 0.0, 0.0))
    request = requests.Request("GET", "http://dead:9864/webhdfs/v1/x").prepare()
    tries = []

    def attempt(excluded: str | None) -> None:
        tries.append(excluded)
        raise requests.ConnectionError("Connection refused", request=request)

    with pytest.raises(StorageError, match="the DataNode at dead:9864 refuses connections"):
        Connection(REFUSED, patient=True)._again("read", "/x", attempt)
    assert tries == [None, "dead", None, "dead"]


@pytest.mark.parametrize(
    ("exception", "message", "count"),
    [
        ("RetriableException", "NameNode still not started", 3),
        ("StandbyException", "not in state standby", 3),
        ("IOException", "Failed to replace a bad datanode", 3),
        ("IOException", "could only be written to 0 of the 1 minReplication nodes", 1),
        ("AccessControlException", "Permission denied", 1),
    ],
)
def test_what_may_pass_is_tried_again_and_what_may_not_is_not(
    exception: str, message: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSES", (0.0, 0.0))
    tries = []

    def attempt(excluded: str | None) -> None:
        tries.append(excluded)
        raise HdfsError(message, exception=exception)

    with pytest.raises(StorageError, match=message):
        Connection(REFUSED, patient=True)._again("write", "/x", attempt)
    assert len(tries) == count


def test_a_server_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUTS", (0.5, 0.5))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address((f"http://127.0.0.1:{silent.getsockname()[1]}",), "ada")
        with pytest.raises(StorageError, match="does not answer"):
            Connection(address).list_directory("/")


@pytest.mark.parametrize(("field", "opaque"), [("encBit", True), ("ecBit", True), ("snap", False)])
def test_a_status_tells_whether_the_checksum_is_that_of_the_bytes(field: str, opaque: bool) -> None:
    answer = {
        "type": "FILE",
        "length": 3,
        "modificationTime": 1500,
        "permission": "644",
        "owner": "ada",
        "group": "lab",
        field: True,
    }
    status = file_status("/raw/a b", answer)
    assert (status.name, status.size, status.modified, status.opaque) == ("a b", 3, 1.5, opaque)


def test_kerberos_without_its_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "requests_gssapi", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'distkeras_grid\[kerberos\]'"):
        Connection(Address(("http://localhost:1",), "ada", kerberos=True))


def test_importing_the_client_imports_neither_spark_nor_a_slow_package() -> None:
    code = (
        "import distkeras_grid.webhdfs.upload, distkeras_grid.webhdfs.download, sys;"
        "heavy = {'hdfs', 'requests', 'pyspark', 'numpy', 'keras'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
