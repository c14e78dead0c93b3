"""A session with HDFS over HTTP, for one thread; an operation that fails is tried again.

`hdfs` speaks WebHDFS: requests, redirects, the second NameNode. Here is what it lacks: a DataNode
that has died is left out of the next try, a file replaces another in one step, a failure tells
which host it was, and there are tries and deadlines. `distkeras_grid/README.md` tells why no other
library serves.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from distkeras_grid.errors import PathNotFoundError, StorageError
from distkeras_grid.webhdfs import failures
from distkeras_grid.webhdfs.addresses import Address
from distkeras_grid.webhdfs.checksums import FileChecksum, parse_checksum
from distkeras_grid.webhdfs.failures import AttemptFailure, HttpError, Unreachable
from distkeras_grid.webhdfs.network import (
    PIECE_BYTES,
    close_session,
    open_session,
    read_all,
    translated,
)

T = TypeVar("T")

# Seconds to connect and between two packets; the first is also how long a piece may take to be
# sent.
TIMEOUTS = (20.0, 60.0)
# Seconds for an operation that moves no file, with all its tries.
OPERATION_SECONDS = 180.0
# Seconds in which tries to move a file may begin.
TRANSFER_SECONDS = 7 * 24 * 3600.0
# It warns where no NameNode answers; here an error tells it.
logging.getLogger("hdfs").addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class FileStatus:
    """The status of a file or a directory on HDFS; of a local one path, kind and size alone."""

    path: str  # From the root
    is_directory: bool = False
    size: int = 0  # Bytes; 0 for a directory
    modified: float = 0.0  # Seconds since 1970
    permission: str = ""  # Octal, such as ``"644"``
    owner: str = ""
    group: str = ""
    opaque: bool = False  # Encrypted or erasure-coded: its checksum is not that of its bytes

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


class WebHdfsConnection:
    """A session with the NameNodes and the DataNodes, for one thread; `close` ends it.

    Every method raises `StorageError` with the path when HDFS refuses or cannot be reached,
    `PathNotFoundError` when the path does not exist, `NoSpaceError` when a disk or a quota is full.
    `pieces` and `write` are single tries: call them through `again`.

    `stopped`: ends pauses and further tries. `patient`: try again also before any answer has come;
    else the address is probably wrong.

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
        self._session = open_session(address)
        self._client = _client(address, self._session)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the sockets. After an error they would stay until garbage is collected."""
        close_session(self._session)

    def status(self, path: str) -> FileStatus | None:
        """Return the status of a file or a directory, None where there is none."""

        def ask() -> FileStatus:
            return _file_status(path, self._client._get_file_status(path).json()["FileStatus"])

        try:
            return self._ask("look up", path, ask)
        except PathNotFoundError:
            return None

    def list_directory(self, path: str) -> list[FileStatus]:
        """Return the entries of a directory, sorted by name; for a file, its own status."""

        def ask() -> list[FileStatus]:
            listed = self._client._list_status(path).json()["FileStatuses"]["FileStatus"]
            entries = [_file_status(_below(path, each["pathSuffix"]), each) for each in listed]
            return sorted(entries, key=lambda each: each.path)

        return self._ask("list", path, ask)

    def size(self, path: str) -> int:
        """Return the bytes of a file, or of all files below a directory."""

        def ask() -> int:
            fields = self._client._get_content_summary(path).json()["ContentSummary"]
            return int(fields["length"])

        return self._ask("measure", path, ask)

    def make_directory(self, path: str) -> None:
        """Make a directory and those above it; one that exists is fine."""
        self._ask("make directory", path, lambda: self._client._mkdirs(path).json()["boolean"])

    def checksum(self, path: str) -> FileChecksum | None:
        """Return HDFS' own checksum of a file; None for a kind that is not computed here."""

        def ask() -> FileChecksum | None:
            fields = self._client._get_file_checksum(path).json()["FileChecksum"]
            return parse_checksum(fields["algorithm"], fields["bytes"])

        return self._ask("compare", path, ask)

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        """Rename a file in one step.

        If the answer is lost, the next try finds no `source`: a `PathNotFoundError`, although
        the file has its new name. The caller looks at `target` then.
        """
        option = "OVERWRITE" if overwrite else "NONE"

        def ask() -> bool:
            answer = self._client._rename(source, destination=target, renameoptions=option)
            # A server that does not know the option answers as to a plain rename: true or false.
            return not answer.content or answer.json()["boolean"]

        if not self._ask("rename", source, ask):
            raise StorageError(
                f"Cannot write {target} on HDFS: renaming {source} was refused. Check that "
                "nothing of that name is there."
            )

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file, or with `recursive` a directory; one that is not there is fine."""
        whole = "true" if recursive else "false"
        self._ask("delete", path, lambda: self._client._delete(path, recursive=whole))

    def read_range(
        self,
        path: str,
        start: int,
        count: int | None,
        *,
        seconds: float = TRANSFER_SECONDS,
    ) -> bytes:
        """Return a part of a file, with as many tries as it needs.

        `seconds`: no try begins later, and none takes longer [s].
        """

        def attempt() -> bytes:
            with self._translated():
                answer = self._client._open(path, offset=start or None, length=count)
            try:
                with closing(answer), self._translated():
                    return read_all(answer.raw.read1, seconds)
            except TimeoutError as error:
                raise Unreachable(self._client.asked, str(error), "broken") from error

        return self.again("read", path, attempt, seconds=seconds)

    @contextmanager
    def pieces(self, path: str) -> Iterator[Iterator[bytes]]:
        """Open a file, in one try."""
        with self._translated():
            answer = self._client._open(path)

        def read() -> Iterator[bytes]:
            with self._translated():
                yield from answer.iter_content(PIECE_BYTES)

        with closing(answer):
            yield read()

    def write(self, path: str, content: Iterable[bytes]) -> None:
        """Write a file in place of one that exists, in one try."""
        from hdfs.client import _to_error

        with self._translated():
            place = self._client._create(path, overwrite="true").headers["location"]
        with translated(lambda: self._client.asked):
            answer = self._client._request("PUT", place, data=content)
        with self._translated():
            if not answer:
                raise _to_error(answer)

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
        deadline = time.monotonic() + seconds
        pauses = iter(failures.PAUSES)
        last: AttemptFailure | None = None
        try:
            while True:
                try:
                    result = attempt()
                except AttemptFailure as failure:
                    # Why a DataNode was left out says more than that it was needed.
                    last = last if last and failures.is_for_exclusion(failure) else failure
                    is_transient = failures.is_transient(failure)
                    pause = next(pauses, None) if self._patient and is_transient else None
                    # A definite no is an answer, too.
                    self._patient = self._patient or not is_transient
                    is_late = pause is None or time.monotonic() + pause > deadline
                    if is_late or self._stopped.is_set():
                        raise self._explained(action, path, last) from failure
                    left_out = self._client.excluded is not None
                    self._client.excluded = None if left_out else self._datanode(failure)
                    self._stopped.wait(pause)
                else:
                    self._patient = True
                    return result
        finally:
            self._client.excluded = None

    def _ask(self, action: str, path: str, ask: Callable[[], T]) -> T:
        """Carry out an operation whose answer is short."""

        def attempt() -> T:
            with self._translated():
                return ask()

        return self.again(action, path, attempt, seconds=OPERATION_SECONDS)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn whatever an operation of `hdfs` may raise into `AttemptFailure`."""
        from hdfs import HdfsError

        try:
            with translated(lambda: self._client.asked):
                yield
        except HdfsError as error:
            text = error.message or "no message"
            message = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
            raise HttpError(self._client.asked, message, error.exception) from error
        except (KeyError, TypeError, ValueError) as error:
            raise HttpError(self._client.asked, f"{error!r}", None) from error

    def _datanode(self, failure: AttemptFailure) -> str | None:
        """Return the DataNode that failed, None if it was a NameNode."""
        host = urlsplit(failure.url)
        namenodes = {urlsplit(url).netloc for url in self.address.urls}
        return host.hostname if host.netloc not in namenodes else None

    def _explained(self, action: str, path: str, failure: AttemptFailure) -> StorageError:
        if action in ("read", "compare") and failures.may_be_lost(failure):
            try:
                with self._translated():
                    fields = self._client._get_file_block_locations(path).json()
                    blocks = fields["BlockLocations"]["BlockLocation"]
                    error = failures.lost(f"Cannot {action} {path} on HDFS", blocks)
                if error is not None:
                    return error
            except AttemptFailure:
                pass  # An older server may not know the question: the failure itself counts.
        namenodes, kerberos = self.address.urls, self.address.kerberos
        return failures.explain(action, path, failure, namenodes=namenodes, kerberos=kerberos)


def _client(address: Address, session: Any) -> Any:
    """Return a client of `hdfs` that can leave out a DataNode and knows whom it has asked.

    Its requests are used rather than its methods, which take other options and change names that
    have ``#LATEST`` in them.
    """
    import requests
    from hdfs import Client
    from hdfs.client import _Request

    class WebHdfs(Client):  # type: ignore[misc]
        excluded: str | None = None
        asked = ""
        _get_file_block_locations = _Request("GET")

        def resolve(self, hdfs_path: str) -> str:
            return hdfs_path

        def _request(self, method: str, url: str, **options: Any) -> requests.Response:
            self.asked = url
            if "params" not in options:
                # The NameNode has written into its redirect who asks.
                options |= {"params": {"user.name": None}, "stream": False}
            elif self.excluded:
                options["params"]["excludedatanodes"] = self.excluded
            answer: requests.Response = super()._request(method, url, **options)
            self.asked = answer.url
            if answer.status_code in failures.BUSY:
                reason = f"status {answer.status_code}: {answer.text}"
                raise requests.ConnectionError(reason, request=answer.request)
            if answer.status_code == 401:
                raise HttpError(answer.url, answer.text, None, 401)
            return answer

    # A NameNode that is named twice would be asked for ever.
    urls = ";".join(dict.fromkeys(address.urls))
    return WebHdfs(urls, timeout=TIMEOUTS, session=session)


def _below(path: str, name: str) -> str:
    if name in (".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"a file name in {path} is {name!r}")
    return f"{path.rstrip('/')}/{name}" if name else path


def _file_status(path: str, fields: dict[str, Any]) -> FileStatus:
    return FileStatus(
        path,
        is_directory=fields["type"] == "DIRECTORY",
        size=fields["length"],
        modified=fields["modificationTime"] / 1000,
        permission=fields["permission"],
        owner=fields["owner"],
        group=fields["group"],
        opaque=fields.get("encBit", False) or fields.get("ecBit", False),
    )
