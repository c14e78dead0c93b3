"""SIGTERM ends a command as Ctrl-C does: schedulers and ``kill`` send it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `KeyboardInterrupt` in the block on SIGTERM, too.

    Python would end at once and leave tasks, applications and temporary folders behind. In another
    thread than the main one, which alone can take signals, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
