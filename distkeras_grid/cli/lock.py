"""``--lock FILE``: one run at a time on this machine, with a lock that dies with its holder."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from distkeras_grid.errors import BusyError, StorageError


@contextmanager
def held(path: str, verb: str) -> Iterator[None]:
    """Hold a lock while the block runs.

    The kernel keeps it (``flock``) and frees it when the process ends, however it ends. The file
    stays; what stands in it names the present or the last holder.

    Parameters
    ----------
    path : str
        A file of this machine; made where it is missing.
    verb : str
        What runs, for whoever finds the lock held.

    Raises
    ------
    BusyError
        If another process holds it; names it.
    StorageError
        If the file cannot be opened.
    """
    import fcntl

    try:
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise StorageError(
            f"the lock file {path} cannot be opened: {error.strerror}; give a file in a directory "
            "of this machine that you may write to"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise BusyError(
                f"{path} is held by {_describe(file.read())}; nothing was done"
            ) from error
        file.truncate(0)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        holder = {"verb": verb, "pid": os.getpid(), "host": platform.node(), "since": now}
        file.write(json.dumps(holder) + "\n")
        file.flush()
        yield


def _describe(content: str) -> str:
    """Return who a lock file says it is held by."""
    try:
        holder = json.loads(content)
        return "{verb}, process {pid} on {host}, since {since}".format(**holder)
    except (ValueError, KeyError, TypeError):
        return "a process that has not said who it is"
