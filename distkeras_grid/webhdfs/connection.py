"""One thread's way to HDFS: each method is one operation, tried again where that may help."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from distkeras_grid.errors import StorageError
from distkeras_grid.file_systems import FULL, meaning
from distkeras_grid.webhdfs.addresses import Address
from distkeras_grid.webhdfs.checksums import FileChecksum, parse_checksum
from distkeras_grid.webhdfs.refusals import PASSING, not_authenticated, refusal, unreachable

if TYPE_CHECKING:
    import requests

T = TypeVar("T")

PIECE_BYTES = 1 << 20
# Seconds; the first is also how long a piece may take to be sent.
TIMEOUTS = (20.0, 60.0)
# Seconds between tries. A NameNode hands out a dead DataNode for ten minutes; the connection is
# refused at once, and the next one that it names may live. A standby takes over within the sum.
PAUSES = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True)
class FileStatus:
    """What HDFS tells of a file or a directory.

    Parameters
    ----------
    path : str
        From the root.
    is_directory : bool
    size : int
        Bytes; 0 for a directory.
    modified : float
        Seconds since 1970.
    permission : str
        Octal, such as ``"644"``.
    owner, group : str
    opaque : bool
        Encrypted or erasure-coded: its checksum is not that of its bytes.
    """

    path: str
    is_directory: bool
    size: int
    modified: float
    permission: str
    owner: str
    group: str
    opaque: bool

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


class Connection:
    """A session with the NameNode and the DataNodes, for one thread.

    Every method raises `StorageError` with the path when HDFS refuses or cannot be reached,
    `PathNotFoundError` when the path does not exist, `NoSpaceError` when a disk or a quota is full.

    Parameters
    ----------
    address : Address
        Of the NameNodes.
    stopped : Event, optional
        Ends pauses between tries early.
    patient : bool, default False
        Whether tries are repeated before anybody has answered.

    Examples
    --------
    >>> connection = Connection(find_address(parse_path("/raw")))        # doctest: +SKIP
    >>> connection.status("/raw").is_directory                           # doctest: +SKIP
    True
    """

    def __init__(
        self, address: Address, *, stopped: threading.Event | None = None, patient: bool = False
    ) -> None:
        self.address = address
        self._stopped = stopped or threading.Event()
        # Before the first answer a refused connection means a wrong address.
        self._patient = patient
        self._client = open_client(address)

    def status(self, path: str) -> FileStatus | None:
        """Return the status of a file or a directory, None where there is none."""
        answer = self._again(
            "look up", path, lambda _: self._client._get_file_status(path, strict=False)
        )
        if not answer.ok:
            exception, message = _told_by(answer)
            if exception == "FileNotFoundException":
                return None
            raise refusal("look up", path, exception, message)
        return file_status(path, answer.json()["FileStatus"])

    def list_directory(self, path: str) -> list[FileStatus]:
        """Return what lies directly in a directory, sorted by name; of a file, its own status."""
        answer = self._again("list", path, lambda _: self._client._list_status(path))
        base = path.rstrip("/")
        found = [
            file_status(f"{base}/{each['pathSuffix']}" if each["pathSuffix"] else path, each)
            for each in answer.json()["FileStatuses"]["FileStatus"]
        ]
        return sorted(found, key=lambda each: each.path)

    def make_directory(self, path: str) -> None:
        """Make a directory and those above it; one that exists is fine."""
        self._again("make directory", path, lambda _: self._client._mkdirs(path))

    def send(self, path: str, content: Callable[[], Iterable[bytes]], name: str) -> None:
        """Write a file, in place of one that exists.

        Parameters
        ----------
        path : str
        content : callable
            Returns the pieces, from the first; called again for each try.
        name : str
            What errors call it, in place of a hidden `path`.
        """

        def attempt(excluded: str | None) -> None:
            answer = self._client._create(path, overwrite=True, excludedatanodes=excluded)
            written = self._client._request("PUT", answer.headers["location"], data=content())
            if not written.ok:
                raise _to_error(written)

        self._again("write", name, attempt)

    def fetch(self, path: str, take: Callable[[Iterator[bytes]], T]) -> T:
        """Read a file.

        Parameters
        ----------
        path : str
        take : callable
            Is given the pieces, from the first; called again for each try.

        Returns
        -------
        object
            What `take` returned.
        """

        def attempt(excluded: str | None) -> T:
            answer = self._client._open(path, excludedatanodes=excluded)
            with closing(answer):
                return take(answer.iter_content(PIECE_BYTES))

        return self._again("read", path, attempt)

    def checksum(self, path: str) -> FileChecksum | None:
        """Return HDFS' own checksum of a file; None for a kind that is not computed here."""
        answer = self._again(
            "compare",
            path,
            lambda excluded: self._client._get_file_checksum(path, excludedatanodes=excluded),
        )
        return parse_checksum(answer.json()["FileChecksum"])

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        """Rename a file in one step.

        Parameters
        ----------
        source, target : str
        overwrite : bool
            Replace a file at `target`; else one there is an `OutputExistsError`.
        """
        option = "OVERWRITE" if overwrite else "NONE"
        answer = self._again(
            "write",
            target,
            lambda _: self._client._rename(source, destination=target, renameoptions=option),
        )
        # A server that does not know the option answers as to a plain rename: true or false.
        if answer.content and not answer.json().get("boolean"):
            raise StorageError(f"cannot write {target} on HDFS: renaming {source} was refused")

    def delete(self, path: str) -> None:
        """Delete a file; one that is not there is fine."""
        self._again("delete", path, lambda _: self._client._delete(path, recursive=False))

    def discard(self, path: str, error: BaseException) -> None:
        """Delete what `error` left half written; if that fails too, add a note to `error`."""
        try:
            self.delete(path)
        except StorageError as second:
            error.add_note(f"{path} may stay behind until the same is sent again ({second})")

    def _again(self, action: str, path: str, attempt: Callable[[str | None], T]) -> T:
        """Try until it succeeds, fails for good, or the tries are used up.

        An attempt is given a DataNode that it shall not be sent to: the one that has just failed,
        at every second try, as a host may have several.
        """
        from hdfs import HdfsError
        from requests import RequestException

        excluded = None
        tries = 0
        while True:
            try:
                result = attempt(excluded)
            except (HdfsError, RequestException) as error:
                pause = PAUSES[tries] if tries < len(PAUSES) else None
                hopeless = pause is None or self._stopped.is_set() or not self._may_pass(error)
                if pause is None or hopeless:
                    raise self._ours(action, path, error) from error
                excluded = None if excluded else self._failed_datanode(error)
                tries += 1
                self._stopped.wait(pause)
            else:
                self._patient = True
                return result

    def _may_pass(self, error: Exception) -> bool:
        from hdfs import HdfsError

        if isinstance(error, HdfsError):
            full = meaning(FULL, str(error))
            return error.exception in PASSING and self._patient and not full
        return self._patient

    def _failed_datanode(self, error: Exception) -> str | None:
        host = _host_of(error)
        return host.hostname if host and host.netloc not in self._namenodes() else None

    def _namenodes(self) -> set[str]:
        return {urlsplit(url).netloc for url in self.address.urls}

    def _ours(self, action: str, path: str, error: Exception) -> StorageError:
        from hdfs import HdfsError

        if isinstance(error, HdfsError):
            if "Authentication failure" in str(error):
                return not_authenticated(action, path, kerberos=self.address.kerberos)
            return refusal(action, path, error.exception, _text(error))
        if "SPNEGO" in type(error).__name__:
            return not_authenticated(action, path, kerberos=True)
        host = _host_of(error)
        return unreachable(
            action, path, host.geturl() if host else None, self.address.urls, str(error)
        )


def open_client(address: Address) -> Any:
    """Return a client of the ``hdfs`` package.

    Raises
    ------
    ConfigurationError
        If Kerberos is asked for, and its package is not installed.
    """
    import requests
    from hdfs import Client

    session = requests.Session()
    if address.kerberos:
        from distkeras_grid.webhdfs.kerberos import ticket_authentication

        session.auth = ticket_authentication()
    else:
        session.params = {"user.name": address.user}
    # It logs the page of a failed authentication; whoever wants that gives it a handler.
    logging.getLogger("hdfs").addHandler(logging.NullHandler())
    client = Client(";".join(address.urls), session=session, timeout=TIMEOUTS)
    # Paths are whole here. Else a part "#LATEST" of a name would be replaced.
    client.resolve = lambda path: path
    return client


def file_status(path: str, answer: dict[str, Any]) -> FileStatus:
    """Return the status in an answer of WebHDFS."""
    return FileStatus(
        path,
        is_directory=answer["type"] == "DIRECTORY",
        size=int(answer["length"]),
        modified=answer["modificationTime"] / 1000,
        permission=str(answer["permission"]),
        owner=str(answer["owner"]),
        group=str(answer["group"]),
        opaque=bool(answer.get("encBit") or answer.get("ecBit")),
    )


def _told_by(answer: requests.Response) -> tuple[str | None, str]:
    """Return class and message of Java's exception in an answer."""
    error = _to_error(answer)
    return error.exception, _text(error)


def _to_error(answer: requests.Response) -> Any:
    from hdfs.client import _to_error

    return _to_error(answer)


def _text(error: Any) -> str:
    message = error.message
    return message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)


def _host_of(error: Exception) -> Any:
    request = getattr(error, "request", None)
    return urlsplit(request.url) if request is not None and request.url else None
