"""SIGTERM ends a command or a training as Ctrl-C does: schedulers and ``kill`` send it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `KeyboardInterrupt` in the block on SIGTERM, too.

    Python would end at once and leave tasks, applications and temporary folders behind. Nothing
    changes where the program has a handler of its own, and in another thread than the main one,
    which alone can take signals.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
