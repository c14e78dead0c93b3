"""A NameNode and a DataNode on loopback: two real HTTP servers over one dictionary, and faults.

They speak as Hadoop 3 does (`tests/hadoop/test_webhdfs.py` runs the same client on real daemons),
and do what real daemons cannot be made to do at a given moment: lose an answer, cut a body.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from distkeras_grid.webhdfs.addresses import Address
from distkeras_grid.webhdfs.checksums import ChecksumLayout, FileDigest
from distkeras_grid.webhdfs.connection import WebHdfsConnection
from tests.http_servers import QuietHandler, serving


def drip(send: Callable[[bytes], object]) -> None:
    """Send a byte now and then, for some seconds."""
    with contextlib.suppress(OSError):
        for _ in range(50):
            send(b"x")
            time.sleep(0.1)


METHODS = {"CREATE": "PUT", "MKDIRS": "PUT", "RENAME": "PUT", "DELETE": "DELETE"}
LAYOUT = ChecksumLayout(block_bytes=0)


@dataclass
class Fault:
    """What goes wrong with an operation, so many times.

    `kind` is one of: ``"reset"`` (nothing is done, the connection closes), ``"lost"`` (it is done,
    then the connection closes), ``"cut"`` (half of the body comes), ``"slow"`` (it comes byte by
    byte), ``"page"`` (HTML with `status`), ``"answer"`` (`body` with status 200), or Java's name of
    an exception.
    """

    kind: str
    times: int = 1
    message: str = "told so"
    status: int = 503
    body: bytes = b""


@dataclass
class Loopback:
    """The state of both servers."""

    files: dict[str, bytes] = field(default_factory=dict)
    directories: set[str] = field(default_factory=lambda: {"/"})
    faults: dict[str, Fault] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    queries: list[dict[str, str]] = field(default_factory=list)
    opaque: bool = False
    url: str = ""
    datanode: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def address(self) -> Address:
        return Address((self.url,), "ada")

    def fault_of(self, operation: str) -> Fault | None:
        with self.lock:
            fault = self.faults.get(operation)
            if fault is None or fault.times == 0:
                return None
            fault.times -= 1
            return fault


class RemoteException(Exception):
    def __init__(self, exception: str, message: str, status: int = 403) -> None:
        super().__init__(message)
        self.exception, self.status = exception, status


class Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    state: Loopback
    is_datanode: bool

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()

    def do(self) -> None:
        state, asked = self.state, urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(asked.query).items()}
        path = unquote(asked.path).removeprefix("/webhdfs/v1") or "/"
        operation = query["op"] + (" data" if self.is_datanode else "")
        if self.command != METHODS.get(query["op"], "GET"):
            self.reply(405, b"")
            return
        with state.lock:
            state.asked.append(operation)
            state.queries.append(query)
        fault = state.fault_of(operation)
        if fault is not None and fault.kind == "reset":
            self.close_connection = True
            return
        content = self.read_body()
        try:
            if fault is not None and fault.kind.endswith("Exception"):
                raise RemoteException(fault.kind, fault.message)
            with state.lock:
                answer = self.answer(operation, path, query, content)
        except RemoteException as error:
            told = {"exception": error.exception, "message": str(error)}
            self.reply(error.status, json.dumps({"RemoteException": told}).encode())
            return
        self.misbehave(fault, answer)

    do_GET = do_PUT = do_DELETE = do

    def misbehave(self, fault: Fault | None, answer: bytes | None) -> None:
        kind = fault.kind if fault else ""
        if kind == "lost":
            self.close_connection = True
        elif answer is None:
            self.reply(307, b"", {"Location": f"{self.state.datanode}{self.path}"})
        elif fault is not None and kind == "page":
            self.reply(fault.status, b"<html>\n<head>")
        elif fault is not None and kind == "answer":
            self.reply(200, fault.body)
        elif kind == "cut":
            self.reply(200, answer[: len(answer) // 2], length=len(answer))
            self.close_connection = True
        elif kind == "slow":
            self.reply(200, b"", length=len(answer))
            self.close_connection = True
            drip(self.wfile.write)
        else:
            self.reply(200, answer)

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        content = b""
        while size := int(self.rfile.readline() or b"0", 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def answer(
        self, operation: str, path: str, query: dict[str, str], content: bytes
    ) -> bytes | None:
        """Return the body, None to send the client on to the DataNode."""
        state = self.state
        if operation not in ("CREATE", "MKDIRS", "DELETE", "RENAME", "CREATE data"):
            self.must_exist(path)
        answers: dict[str, Callable[[], bytes | None]] = {
            "CREATE": lambda: None,
            "OPEN": lambda: None,
            "GETFILECHECKSUM": lambda: None,
            "CREATE data": lambda: self.create(path, content),
            "OPEN data": lambda: self.range(path, query),
            "GETFILECHECKSUM data": lambda: dumps(FileChecksum=checksum(state.files[path])),
            "MKDIRS": lambda: self.make_directory(path),
            "DELETE": lambda: self.delete(path, query["recursive"] == "true"),
            "GETCONTENTSUMMARY": lambda: self.summary(path),
            "RENAME": lambda: self.rename(path, query["destination"], query["renameoptions"]),
            "GETFILESTATUS": lambda: dumps(FileStatus=self.status(path, "")),
            "LISTSTATUS": lambda: self.listing(path),
        }
        return answers[operation]()

    def range(self, path: str, query: dict[str, str]) -> bytes:
        content = self.state.files[path]
        start = int(query.get("offset", 0))
        if start > len(content):
            raise RemoteException("IOException", f"Offset={start} out of the range", 403)
        return content[start : start + int(query.get("length", len(content)))]

    def create(self, path: str, content: bytes) -> bytes:
        self.state.files[path] = content
        return b""

    def make_directory(self, path: str) -> bytes:
        while path not in self.state.directories:
            self.state.directories.add(path)
            path = posixpath.dirname(path)
        return dumps(boolean=True)

    def delete(self, path: str, recursive: bool) -> bytes:
        state = self.state
        inside = [each for each in [*state.files, *state.directories] if is_below(each, path)]
        if inside and not recursive:
            raise RemoteException("PathIsNotEmptyDirectoryException", f"{path} is non empty")
        existed = path in state.files or path in state.directories
        for each in [path, *inside]:
            state.files.pop(each, None)
            state.directories.discard(each)
        return dumps(boolean=existed)

    def summary(self, path: str) -> bytes:
        state = self.state
        files = [each for each in state.files if each == path or is_below(each, path)]
        length = sum(len(state.files[each]) for each in files)
        return dumps(ContentSummary={"length": length, "spaceConsumed": 3 * length})

    def listing(self, path: str) -> bytes:
        names = [path] if path in self.state.files else self.below(path)
        found = [self.status(each, posixpath.relpath(each, path).strip(".")) for each in names]
        return dumps(FileStatuses={"FileStatus": found})

    def must_exist(self, path: str) -> None:
        if path not in self.state.files and path not in self.state.directories:
            raise RemoteException("FileNotFoundException", f"File {path} does not exist.", 404)

    def rename(self, source: str, target: str, option: str) -> bytes:
        files = self.state.files
        if source not in files:
            # FSDirRenameOp looks at the source first.
            raise RemoteException("FileNotFoundException", f"source {source} is not found.", 404)
        if target in files and option != "OVERWRITE":
            raise RemoteException("FileAlreadyExistsException", f"destination {target} exists.")
        files[target] = files.pop(source)
        return b""

    def below(self, path: str) -> list[str]:
        state = self.state
        return [
            each
            for each in [*state.files, *state.directories]
            if each != "/" and posixpath.dirname(each) == path
        ]

    def status(self, path: str, name: str) -> dict[str, object]:
        state = self.state
        is_file = path in state.files
        return {
            "type": "FILE" if is_file else "DIRECTORY",
            "length": len(state.files[path]) if is_file else 0,
            "modificationTime": 1500,
            "permission": "644",
            "owner": "ada",
            "group": "lab",
            "pathSuffix": name,
            "encBit": state.opaque,
            "unknown": {"to": "us"},
        }


def is_below(path: str, directory: str) -> bool:
    return path != "/" and path.startswith(directory.rstrip("/") + "/")


def dumps(**answer: object) -> bytes:
    return json.dumps(answer).encode()


def checksum(content: bytes, layout: ChecksumLayout = LAYOUT) -> dict[str, object]:
    digest = FileDigest(layout)
    digest.update(content)
    told = layout.bytes_per_crc.to_bytes(4, "big") + bytes(8) + digest.digest()
    return {"algorithm": "MD5-of-0MD5-of-512CRC32C", "bytes": told.hex(), "length": 28}


@contextlib.contextmanager
def closed_at_end(names: dict[str, Any]) -> Iterator[None]:
    """Close each connection that a module with these names opens in the block."""
    with contextlib.ExitStack() as opened, pytest.MonkeyPatch.context() as patch:

        def connect(*arguments: Any, **options: Any) -> WebHdfsConnection:
            return opened.enter_context(WebHdfsConnection(*arguments, **options))

        patch.setitem(names, "WebHdfsConnection", connect)
        yield


@contextlib.contextmanager
def loopback() -> Iterator[Loopback]:
    """Start both servers."""
    state = Loopback()
    namenode, datanode = (
        type("Server", (Handler,), {"state": state, "is_datanode": is_datanode})
        for is_datanode in (False, True)
    )
    with serving(namenode) as state.url, serving(datanode) as state.datanode:
        yield state
