"""Decode the answers of WebHDFS: pure functions on bytes.

https://hadoop.apache.org/docs/stable/hadoop-project-dist/hadoop-hdfs/WebHDFS.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import msgspec

from distkeras_grid.errors import UNREADABLE
from distkeras_grid.webhdfs.checksums import FileChecksum, parse_checksum

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileStatus:
    """The status of a file or a directory on HDFS."""

    path: str  # From the root
    is_directory: bool
    size: int  # Bytes; 0 for a directory
    modified: float  # Seconds since 1970
    permission: str  # Octal, such as ``"644"``
    owner: str
    group: str
    opaque: bool  # Encrypted or erasure-coded: its checksum is not that of its bytes

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Summary:
    """The space that a file, or a directory with all below it, takes on HDFS."""

    path: str  # From the root
    length: int  # Bytes of all files
    space: int  # Bytes that they take on the DataNodes' disks, all replicas counted
    files: int  # files and directories: How many; a directory counts itself
    directories: int
    space_quota: int | None  # Bytes that `space` may reach here, None without a limit


@dataclass(frozen=True, slots=True)
class FileBlock:
    """A block of a file on HDFS."""

    offset: int  # Its first byte in the file
    hosts: tuple[str, ...]  # The DataNodes with a copy that the NameNode believes to be alive
    is_corrupt: bool  # Whether all its copies are damaged, as far as readers have reported


@dataclass(frozen=True, slots=True)
class RemoteError:
    """An exception of Java that an answer carries."""

    exception: str  # Class name, without its package
    message: str


# Names of fields are those of the answers.
class _Status(msgspec.Struct):
    type: str
    length: int
    modificationTime: int
    permission: str
    owner: str
    group: str
    pathSuffix: str = ""
    encBit: bool = False
    ecBit: bool = False


class _OneStatus(msgspec.Struct):
    FileStatus: _Status


class _Statuses(msgspec.Struct):
    FileStatus: list[_Status]


class _Listing(msgspec.Struct):
    FileStatuses: _Statuses


class _Summary(msgspec.Struct):
    length: int
    spaceConsumed: int
    fileCount: int
    directoryCount: int
    spaceQuota: int = -1


class _SummaryAnswer(msgspec.Struct):
    ContentSummary: _Summary


class _Checksum(msgspec.Struct):
    algorithm: str
    bytes: str


class _ChecksumAnswer(msgspec.Struct):
    FileChecksum: _Checksum


class _Block(msgspec.Struct):
    offset: int
    hosts: list[str]
    corrupt: bool = False


class _Blocks(msgspec.Struct):
    BlockLocation: list[_Block]


class _BlocksAnswer(msgspec.Struct):
    BlockLocations: _Blocks


class _Truth(msgspec.Struct):
    boolean: bool


class _Exception(msgspec.Struct):
    exception: str
    message: str | None = None


class _ErrorAnswer(msgspec.Struct):
    RemoteException: _Exception


def decode_status(path: str, answer: bytes) -> FileStatus:
    """Return the status in an answer to ``GETFILESTATUS``."""
    return _file_status(path, _decode(answer, _OneStatus).FileStatus)


def decode_listing(path: str, answer: bytes) -> list[FileStatus]:
    """Return what an answer to ``LISTSTATUS`` lists, sorted by path."""
    base = path.rstrip("/")
    entries = []
    for each in _decode(answer, _Listing).FileStatuses.FileStatus:
        name = each.pathSuffix
        if name in (".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"a file name in {path} is {name!r}")
        entries.append(_file_status(f"{base}/{name}" if name else path, each))
    return sorted(entries, key=lambda each: each.path)


def decode_checksum(answer: bytes) -> FileChecksum | None:
    """Return the checksum in an answer to ``GETFILECHECKSUM``; None for an unknown kind."""
    checksum = _decode(answer, _ChecksumAnswer).FileChecksum
    return parse_checksum({"algorithm": checksum.algorithm, "bytes": checksum.bytes})


def decode_blocks(answer: bytes) -> list[FileBlock]:
    """Return the blocks in an answer to ``GETFILEBLOCKLOCATIONS``."""
    blocks = _decode(answer, _BlocksAnswer).BlockLocations.BlockLocation
    return [FileBlock(each.offset, tuple(each.hosts), each.corrupt) for each in blocks]


def decode_summary(path: str, answer: bytes) -> Summary:
    """Return the space in an answer to ``GETCONTENTSUMMARY``."""
    summary = _decode(answer, _SummaryAnswer).ContentSummary
    quota = summary.spaceQuota if summary.spaceQuota >= 0 else None
    return Summary(
        path,
        summary.length,
        summary.spaceConsumed,
        summary.fileCount,
        summary.directoryCount,
        quota,
    )


def decode_truth(answer: bytes) -> bool:
    """Return the truth value in an answer; an empty answer is true."""
    return not answer or _decode(answer, _Truth).boolean


def decode_error(answer: bytes) -> RemoteError | None:
    """Return the exception in an answer, None where it has none.

    Examples
    --------
    >>> decode_error(b'{"RemoteException": {"exception": "IOException", "message": "full"}}')
    RemoteError(exception='IOException', message='full')
    >>> decode_error(b"<html>")
    """
    try:
        remote = _decode(answer, _ErrorAnswer).RemoteException
    except UNREADABLE:
        return None
    return RemoteError(remote.exception, remote.message or "no message")


def _decode(answer: bytes, kind: type[T]) -> T:
    # msgspec's errors are ValueErrors.
    return msgspec.json.decode(answer, type=kind)


def _file_status(path: str, answer: _Status) -> FileStatus:
    return FileStatus(
        path,
        is_directory=answer.type == "DIRECTORY",
        size=answer.length,
        modified=answer.modificationTime / 1000,
        permission=answer.permission,
        owner=answer.owner,
        group=answer.group,
        opaque=answer.encBit or answer.ecBit,
    )
