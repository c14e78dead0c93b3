"""``--lock FILE``: one run at a time on this machine, with a lock that lasts as long as the work.

The kernel keeps the lock (``flock``) and frees it when its holder ends, however it ends. Work that
outlives the command keeps it, too: a program that got the lock's descriptor (spark-submit, or the
JVM of a session that the command builds) holds it until it ends, and an application of YARN that
`submit` has started is named in the file until somebody has seen its end.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from io import FileIO
from typing import Any

from distkeras_grid.errors import (
    UNREADABLE,
    BusyError,
    ClusterError,
    ConfigurationError,
    GridError,
    StorageError,
)
from distkeras_grid.lock_files import lock_file, open_lock_file
from distkeras_grid.spark.driver_jvm import pass_to_jvm

# What a file that was written here begins with, and how much of one is read to see it.
_MARK = '{"verb": '
_LONGEST = 4096


class Lock:
    """A lock that is held."""

    def __init__(self, file: FileIO, path: str, holder: dict[str, Any]) -> None:
        self._file = file
        self._path = path
        self._holder = holder
        self._write()

    @property
    def descriptor(self) -> int:
        """The open file: a child process that inherits it keeps the lock until it ends."""
        return self._file.fileno()

    def add_application(self, name: str) -> None:
        """Name the application of YARN that the lock guards, also if this process is killed."""
        self._holder["application"] = name
        self._write()

    def forget_application(self) -> None:
        """Note that the application has ended."""
        if self._holder.pop("application", None) is not None:
            self._write()

    def _write(self) -> None:
        try:
            # First the new content, then the new length: a holder that is killed between them
            # still names its application, and a full disk has room for what replaces the old.
            content = json.dumps(self._holder).encode() + b"\n"
            os.pwrite(self.descriptor, content, 0)
            os.ftruncate(self.descriptor, len(content))
            # An application on other machines outlives a power failure of this one.
            os.fsync(self.descriptor)
        except OSError as error:
            raise StorageError(
                f"The lock file {self._path} cannot be written: {error.strerror}. Free some space, "
                "or give another file."
            ) from error


_current: ContextVar[Lock | None] = ContextVar("lock", default=None)


def current() -> Lock | None:
    """Return the lock that the running command holds, if it was told to hold one."""
    return _current.get()


@contextmanager
def hold_lock(
    path: str, verb: str, going: Callable[[str], str | None] = lambda _: None
) -> Iterator[Lock]:
    """Hold a lock while the block runs, and until the session that it has built has ended.

    `going`: takes the id or the tag of an application; returns its id if it still runs, or None.
    Asked where the last holder has not seen the end of the one that it started.
    """
    with _seized(path) as file:
        _check_application(_content(file), path, going)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        holder = {"verb": verb, "pid": os.getpid(), "host": platform.node(), "since": now}
        lock = Lock(file, path, holder)
        token = _current.set(lock)
        try:
            with pass_to_jvm(lock.descriptor) as jvm_file:
                yield lock
        finally:
            _current.reset(token)
            if jvm_file.idle:
                # The JVM lives until this process ends, and would hold the lock for as long.
                _release(file)


def _release(file: FileIO) -> None:
    import fcntl

    fcntl.flock(file, fcntl.LOCK_UN)


def _seized(path: str) -> FileIO:
    """Lock the file, or say who has locked it; refuse what must not be overwritten."""
    file = lock_file(path)
    if file is None:
        with open_lock_file(path) as reader:
            holder = _describe(_content(reader))
        raise BusyError(f"{path} is held by {holder}. Nothing was done.")
    content = _content(file)
    if not content.strip() or content.startswith(_MARK):
        return file
    file.close()
    raise StorageError(
        f"{path} is not a lock file: it has other content, which would be lost. Give a file that "
        "does not exist yet."
    )


def _check_application(content: str, path: str, going: Callable[[str], str | None]) -> None:
    """Refuse a lock whose last holder has left an application behind that may still run."""
    from distkeras_grid.submission.applications import check_id, is_tag

    named = _holder(content).get("application")
    if named is None:
        return
    try:
        if not is_tag(str(named)):
            check_id(str(named))
    except ConfigurationError as error:
        raise StorageError(
            f"{path} names an application that is none. Received: {named!r}. Delete the file "
            "if nothing runs that it may guard."
        ) from error
    try:
        application = going(named)
    except GridError as error:
        raise ClusterError(
            f"{path} guards {named}, started by {_describe(content)}, and YARN cannot be "
            f"asked whether it still runs. Received: {error} If you know that it has ended, delete "
            f"{path}. Nothing was done."
        ) from error
    if application is not None:
        raise BusyError(
            f"{path} guards {application}, which still runs; it was started by "
            f"{_describe(content)}. Stop it: distkeras-grid cancel {application}. Nothing was done."
        )


def _content(file: FileIO) -> str:
    return os.pread(file.fileno(), _LONGEST, 0).decode(errors="replace")


def _holder(content: str) -> dict[str, Any]:
    try:
        # Behind it may stand the end of a longer one: see `Lock._write`.
        holder, _ = json.JSONDecoder().raw_decode(content)
    except UNREADABLE:
        return {}
    return holder if isinstance(holder, dict) else {}


def _describe(content: str) -> str:
    """Return who a lock file says it is held by."""
    try:
        return "{verb}, process {pid} on {host}, since {since}".format(**_holder(content))
    except KeyError:
        return "a process that has not said who it is"
