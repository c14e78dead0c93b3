"""``--lock FILE``: one run at a time on this machine, with a lock that lasts as long as the work.

The kernel keeps the lock (``flock``) and frees it when its holder ends, however it ends. Work that
outlives the command keeps it, too: a program that got the lock's descriptor holds it until it ends,
and an application of YARN is named in the file until somebody has seen its end.
"""

from __future__ import annotations

import json
import os
import platform
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

from distkeras_grid.errors import BusyError, StorageError

# What a file that was written here begins with, and how much of one is read to see it.
_MARK = '{"verb": '
_LONGEST = 4096


class Lock:
    """A lock that is held.

    Parameters
    ----------
    file : file
        Open and locked.
    holder : dict
        Who holds it, as the file tells it.
    """

    def __init__(self, file: TextIO, holder: dict[str, Any]) -> None:
        self._file = file
        self._holder = holder
        self._write()

    @property
    def descriptor(self) -> int:
        """The open file: a child process that inherits it keeps the lock until it ends."""
        return self._file.fileno()

    def add_application(self, identifier: str) -> None:
        """Name the application of YARN that the lock guards, also if this process is killed."""
        self._holder["application"] = identifier
        self._write()

    def forget_application(self) -> None:
        """Note that the application has ended."""
        if self._holder.pop("application", None) is not None:
            self._write()

    def _write(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps(self._holder) + "\n")
        self._file.flush()


_current: ContextVar[Lock | None] = ContextVar("lock", default=None)


def current() -> Lock | None:
    """Return the lock that the running command holds, if it was told to hold one."""
    return _current.get()


@contextmanager
def held(
    path: str, verb: str, still_runs: Callable[[str], bool] = lambda _: False
) -> Iterator[Lock]:
    """Hold a lock while the block runs.

    Parameters
    ----------
    path : str
        A file of this machine; made where it is missing. It stays; what stands in it names the
        present or the last holder.
    verb : str
        What runs, for whoever finds the lock held.
    still_runs : callable, optional
        Whether an application still runs, by its id: asked where the last holder has not seen the
        end of the one that it started.

    Raises
    ------
    BusyError
        If another process holds it, or the last holder's application still runs; names it.
    StorageError
        If the file cannot be opened, is a link, or has content that is not a lock's.
    """
    import fcntl

    with _opened(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(
                f"{path} is held by {_describe(_content(file))}; nothing was done"
            ) from error
        content = _content(file)
        application = _holder(content).get("application")
        if isinstance(application, str) and still_runs(application):
            raise BusyError(
                f"{path} guards {application}, which still runs; it was started by "
                f"{_describe(content)}. Stop it: distkeras-grid cancel {application}. Nothing was "
                "done"
            )
        now = datetime.now(UTC).isoformat(timespec="seconds")
        lock = Lock(file, {"verb": verb, "pid": os.getpid(), "host": platform.node(), "since": now})
        token = _current.set(lock)
        try:
            yield lock
        finally:
            _current.reset(token)


def _opened(path: str) -> TextIO:
    """Open the file for a lock; refuse what must not be overwritten."""
    try:
        # A link may name a file of somebody else's choice, a pipe or a device would block.
        descriptor = os.open(
            path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644
        )
    except OSError as error:
        reason = "it is a link" if os.path.islink(path) else error.strerror
        raise StorageError(
            f"the lock file {path} cannot be opened: {reason}; give a file in a directory of this "
            "machine that you may write to"
        ) from error
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        file = os.fdopen(descriptor, "r+", encoding="utf-8", errors="replace")
        content = _content(file)
        if not content.strip() or content.startswith(_MARK):
            return file
        file.close()
    else:
        os.close(descriptor)
    raise StorageError(
        f"{path} is no lock file: it has other content, which would be lost. Give a file that does "
        "not exist yet"
    )


def _content(file: TextIO) -> str:
    file.seek(0)
    return file.read(_LONGEST)


def _holder(content: str) -> dict[str, Any]:
    try:
        holder = json.loads(content)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _describe(content: str) -> str:
    """Return who a lock file says it is held by."""
    try:
        return "{verb}, process {pid} on {host}, since {since}".format(**_holder(content))
    except KeyError:
        return "a process that has not said who it is"
