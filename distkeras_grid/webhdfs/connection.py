"""A session with HDFS over HTTP, for one thread; an operation that fails is tried again.

This speaks WebHDFS by `requests`, not by the `hdfs` package. The public methods of ``hdfs.Client``
(2.7) can neither leave out a DataNode that has died (``excludedatanodes``) nor replace a file in
one step (``renameoptions=OVERWRITE``), and do not say which host failed, so a transfer would need
its private ones. `fsspec`'s client has no timeouts and no second NameNode, and PyArrow's needs
Hadoop's own library and a JVM. Nine documented requests remain. The sandbox, which
needs none of that, uses `hdfs`; so do the tests, as a second opinion.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import quote, urlsplit

from distkeras_grid.errors import PathNotFoundError, StorageError
from distkeras_grid.webhdfs.addresses import PREFIX, Address
from distkeras_grid.webhdfs.checksums import FileChecksum
from distkeras_grid.webhdfs.error_messages import explain, lost, may_be_lost
from distkeras_grid.webhdfs.network import close_session, open_session, proxy_of, translated
from distkeras_grid.webhdfs.responses import (
    FileStatus,
    Summary,
    decode_blocks,
    decode_checksum,
    decode_error,
    decode_listing,
    decode_status,
    decode_summary,
    decode_truth,
)
from distkeras_grid.webhdfs.retry_policy import (
    AttemptFailure,
    HttpError,
    NetworkErrorKind,
    Unreachable,
    is_for_exclusion,
    is_transient,
    next_pause,
    try_other_namenode,
)

if TYPE_CHECKING:
    import requests

T = TypeVar("T")

PIECE_BYTES = 1 << 20
# Seconds to connect and between two packets; the first is also how long a piece may take to be
# sent.
TIMEOUTS = (20.0, 60.0)
# Seconds for an operation that moves no file, with all its tries.
OPERATION_SECONDS = 180.0
# Seconds in which tries to move a file may begin.
TRANSFER_SECONDS = 7 * 24 * 3600.0
# What is answered from blocks.
READING = ("read", "compare")
# The NameNode sends to a DataNode, HttpFS to itself; nothing is sent further.
MOST_REDIRECTS = 3
# The NameNode writes into its redirects who asks.
NO_USER: dict[str, None] = {"user.name": None}


class WebHdfsConnection:
    """A session with the NameNodes and the DataNodes, for one thread; `close` ends it.

    Every method raises `StorageError` with the path when HDFS refuses or cannot be reached,
    `PathNotFoundError` when the path does not exist, `NoSpaceError` when a disk or a quota is full.
    `pieces` and `write` are single tries: call them through `again`.

    Examples
    --------
    >>> connection = WebHdfsConnection(find_address(parse_path("/raw")))        # doctest: +SKIP
    >>> connection.status("/raw").is_directory                           # doctest: +SKIP
    True
    """

    def __init__(
        self, address: Address, *, stopped: threading.Event | None = None, patient: bool = False
    ) -> None:
        self.address = address
        self._stopped = stopped or threading.Event()
        self._patient = patient
        self._namenodes = deque(address.urls)  # the one that answered last comes first
        self._excluded: str | None = None
        self._session = open_session(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the sockets. After an error they would stay until garbage is collected."""
        close_session(self._session)

    def status(self, path: str) -> FileStatus | None:
        """Return the status of a file or a directory, None where there is none."""
        try:
            return self._ask(
                "look up", path, "GET", "GETFILESTATUS", lambda answer: decode_status(path, answer)
            )
        except PathNotFoundError:
            return None

    def list_directory(self, path: str) -> list[FileStatus]:
        """Return the entries of a directory, sorted by name; for a file, its own status."""
        return self._ask(
            "list", path, "GET", "LISTSTATUS", lambda answer: decode_listing(path, answer)
        )

    def summary(self, path: str) -> Summary:
        """Return the space that a file, or a directory with all below it, takes."""
        return self._ask(
            "measure", path, "GET", "GETCONTENTSUMMARY", lambda answer: decode_summary(path, answer)
        )

    def make_directory(self, path: str) -> None:
        """Make a directory and those above it; one that exists is fine."""
        self._ask("make directory", path, "PUT", "MKDIRS", decode_truth)

    def checksum(self, path: str) -> FileChecksum | None:
        """Return HDFS' own checksum of a file; None for a kind that is not computed here."""
        return self._ask("compare", path, "GET", "GETFILECHECKSUM", decode_checksum)

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        """Rename a file in one step.

        If the answer is lost, the next try finds no `source`: a `PathNotFoundError`, although
        the file has its new name. The caller looks at `target` then.
        """
        parameters = {
            "destination": target,
            "renameoptions": "OVERWRITE" if overwrite else "NONE",
        }
        # A server that does not know the option answers as to a plain rename: true or false.
        if not self._ask("rename", source, "PUT", "RENAME", decode_truth, parameters):
            raise StorageError(
                f"Cannot write {target} on HDFS: renaming {source} was refused. Check that "
                "nothing of that name is there."
            )

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file, or with `recursive` a directory; one that is not there is fine."""
        parameters = {"recursive": "true" if recursive else "false"}
        self._ask("delete", path, "DELETE", "DELETE", decode_truth, parameters)

    def read_range(self, path: str, start: int, count: int) -> bytes:
        """Return a part of a file, with as many tries as it needs."""

        def attempt() -> bytes:
            with self.pieces(path, start, count) as pieces:
                return b"".join(pieces)

        return self.again("read", path, attempt)

    @contextmanager
    def pieces(
        self, path: str, start: int = 0, count: int | None = None
    ) -> Iterator[Iterator[bytes]]:
        """Open a file, in one try.

        `count`: so many bytes; default: up to the end.
        """
        parameters = {"op": "OPEN"}
        if start or count is not None:
            parameters["offset"] = str(start)
        if count is not None:
            parameters["length"] = str(count)
        answer = self._followed("GET", self._namenode("GET", path, parameters))
        with closing(answer):
            yield _read(answer)

    def write(self, path: str, content: Iterable[bytes]) -> None:
        """Write a file in place of one that exists, in one try."""
        place = self._namenode("PUT", path, {"op": "CREATE", "overwrite": "true"})
        with closing(place):
            if not place.is_redirect:
                raise HttpError(place.url, "no DataNode is named", None, place.status_code)
        with closing(self._request("PUT", place.headers["location"], NO_USER, content)) as answer:
            _read_all(answer, time.monotonic() + TIMEOUTS[1])

    def again(
        self,
        action: str,
        path: str,
        attempt: Callable[[], T],
        *,
        seconds: float = TRANSFER_SECONDS,
    ) -> T:
        """Try until it succeeds, fails for good, or the tries are used up.

        A DataNode that has just failed is left out, at every second try, as a host may have
        several.

        `seconds`: no try begins later [s].
        """
        began = time.monotonic()
        tries = 0
        last: AttemptFailure | None = None
        try:
            while True:
                try:
                    result = attempt()
                except AttemptFailure as failure:
                    tries += 1
                    # Why a DataNode was left out says more than that it was needed.
                    last = last if last and is_for_exclusion(failure) else failure
                    pause = next_pause(
                        failure,
                        tries=tries,
                        seconds=time.monotonic() - began,
                        budget=seconds,
                        patient=self._patient,
                    )
                    # A definite no is an answer, too.
                    self._patient = self._patient or not is_transient(failure)
                    if pause is None or self._stopped.is_set():
                        raise self._explained(action, path, last) from failure
                    self._excluded = None if self._excluded else self._datanode(failure)
                    self._stopped.wait(pause)
                else:
                    self._patient = True
                    return result
        finally:
            self._excluded = None

    def _ask(
        self,
        action: str,
        path: str,
        method: str,
        operation: str,
        decode: Callable[[bytes], T],
        parameters: dict[str, str] | None = None,
    ) -> T:
        """Carry out an operation whose answer is short."""
        deadline = time.monotonic() + OPERATION_SECONDS

        def attempt() -> T:
            answer = self._namenode(method, path, {"op": operation, **(parameters or {})})
            with closing(self._followed(method, answer)) as answer:
                content = _read_all(answer, deadline)
            try:
                return decode(content)
            except ValueError as error:
                raise HttpError(answer.url, f"{error}", None, answer.status_code) from error

        return self.again(action, path, attempt, seconds=OPERATION_SECONDS)

    def _namenode(self, method: str, path: str, parameters: dict[str, str]) -> requests.Response:
        """Ask the NameNodes in turn; return the first answer, its content unread."""
        if self._excluded:
            parameters = {**parameters, "excludedatanodes": self._excluded}
        left = len(self._namenodes)
        while True:
            try:
                return self._request(
                    method, f"{self._namenodes[0]}{PREFIX}{quote(path)}", parameters
                )
            except AttemptFailure as failure:
                left -= 1
                if not try_other_namenode(failure):
                    raise
                self._namenodes.rotate(-1)
                if not left:
                    raise

    def _followed(self, method: str, answer: requests.Response) -> requests.Response:
        """Follow a redirect; return the answer there, its content unread."""
        for _ in range(MOST_REDIRECTS):
            if not answer.is_redirect:
                return answer
            answer = self._request(method, answer.headers["location"], NO_USER)
        answer.close()
        raise HttpError(answer.url, "too many redirects", None, answer.status_code)

    def _request(
        self,
        method: str,
        url: str,
        parameters: dict[str, str] | dict[str, None],
        data: Iterable[bytes] | None = None,
    ) -> requests.Response:
        """Send one request; return an answer that is not an error, its content unread."""
        with translated(url):
            answer = self._session.request(
                method,
                url,
                params=parameters,
                data=data,
                timeout=TIMEOUTS,
                allow_redirects=False,
                stream=True,
            )
        if answer.status_code < 300:
            return answer
        if answer.is_redirect:
            # The connection is kept where all of an answer has been read.
            _read_all(answer, time.monotonic() + TIMEOUTS[1])
            return answer
        with closing(answer):
            content = _read_all(answer, time.monotonic() + TIMEOUTS[1])
        reply = decode_error(content)
        message = reply.message if reply else content.decode("utf-8", "replace")
        raise HttpError(url, message, reply.exception if reply else None, answer.status_code)

    def _datanode(self, failure: AttemptFailure) -> str | None:
        """Return the DataNode that failed, None if it was a NameNode."""
        host = urlsplit(failure.url)
        namenodes = {urlsplit(url).netloc for url in self.address.urls}
        return host.hostname if host.netloc not in namenodes else None

    def _explained(self, action: str, path: str, failure: AttemptFailure) -> StorageError:
        if action in READING and may_be_lost(failure) and (error := self._lost(action, path)):
            return error
        return explain(
            action,
            path,
            failure,
            namenodes=self.address.urls,
            proxy=proxy_of(failure.url, self.address),
            kerberos=self.address.kerberos,
        )

    def _lost(self, action: str, path: str) -> StorageError | None:
        """Return the error for a block that nobody can read, if the NameNode knows one."""
        try:
            answer = self._namenode("GET", path, {"op": "GETFILEBLOCKLOCATIONS"})
            with closing(answer):
                content = _read_all(answer, time.monotonic() + TIMEOUTS[1])
            return lost(action, path, decode_blocks(content))
        except (AttemptFailure, ValueError):
            # An older server may not know the question. The failure itself is told then.
            return None


def _read(answer: requests.Response) -> Iterator[bytes]:
    pieces = answer.iter_content(PIECE_BYTES)
    while True:
        with translated(answer.url):
            piece = next(pieces, None)
        if piece is None:
            return
        yield piece


def _read_all(answer: requests.Response, deadline: float) -> bytes:
    """Return a short answer, which has to be complete at the deadline."""
    content = bytearray()
    with translated(answer.url):
        # Whatever has arrived, for a slow server may send one byte at a time.
        while piece := answer.raw.read1(PIECE_BYTES):
            content += piece
            if time.monotonic() > deadline:
                raise Unreachable(answer.url, "the answer took too long", NetworkErrorKind.SILENT)
    return bytes(content)
