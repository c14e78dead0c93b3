"""``--lock FILE``: one run at a time on this machine.

The kernel keeps the lock (``flock``) and frees it when its holder ends, however it ends. A program
that inherits the descriptor, such as spark-submit, holds it until it ends, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from distkeras_grid.errors import BusyError
from distkeras_grid.lock_files import lock_file

_descriptors: ContextVar[tuple[int, ...]] = ContextVar("lock_descriptors", default=())


def descriptors() -> tuple[int, ...]:
    """Return what a child process has to inherit to hold the command's lock, if it has one."""
    return _descriptors.get()


@contextmanager
def hold_lock(path: str) -> Iterator[None]:
    """Hold a lock while the block runs; the file's content stays as it is."""
    file = lock_file(path)
    if file is None:
        raise BusyError(f"{path} is held by another command. Nothing was done.")
    with file:
        token = _descriptors.set((file.fileno(),))
        try:
            yield
        finally:
            _descriptors.reset(token)
