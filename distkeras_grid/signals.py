"""SIGTERM ends a command or a training as Ctrl-C does: schedulers and ``kill`` send it.

An interrupt in the middle of a call into Spark's JVM has to be told from an error of that call.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from distkeras_grid.errors import GridError


@contextmanager
def terminable() -> Iterator[None]:
    """Do in the block on SIGTERM what is done on SIGINT: raise `KeyboardInterrupt`.

    Python would end at once and leave tasks, applications and temporary folders behind. PySpark's
    handler of SIGINT cancels all jobs, without which an interrupted call waits for the end of its
    job. A program's own handler of SIGTERM stays. Nothing changes in another thread than the main
    one, which alone can take signals.

    An interrupt that comes in a finalizer is raised again: Python can only ignore it there, and
    Py4J has many, which tell the JVM of objects that are gone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hook = sys.unraisablehook
    sys.unraisablehook = lambda ignored: _raise_again(ignored, hook)
    ours = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.unraisablehook = hook


def _raise_again(
    ignored: sys.UnraisableHookArgs, hook: Callable[[sys.UnraisableHookArgs], object]
) -> None:
    if not issubclass(ignored.exc_type, KeyboardInterrupt):
        hook(ignored)
        return
    # A moment later, when the finalizer has ended: it would take this one, too.
    main = threading.main_thread().ident or 0
    threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()


def _interrupt(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(number, frame)


@contextmanager
def interrupts_first() -> Iterator[None]:
    """Let an interrupt win over the error that it brings in the block.

    An interrupt cancels Spark's jobs, and the error of a cancelled job comes in its place. Who
    turns errors of Spark into others does it around such a block. Work that begins while an
    interrupt is handled, such as the deleting of files, has errors of its own.
    """
    handled = sys.exc_info()[1]
    try:
        yield
    except Exception as error:
        if not isinstance(error, GridError) and is_interrupt(error, handled):
            raise KeyboardInterrupt from error
        raise


def is_interrupt(error: BaseException, handled: BaseException | None = None) -> bool:
    """Whether an error is an interrupt, or has come while one was handled.

    What was handled already when the work began, and all before it, does not count.

    An interrupt in the middle of what Py4J sends or receives breaks its connection, so that an
    error of Py4J may come in its place.

    Examples
    --------
    >>> is_interrupt(KeyboardInterrupt()), is_interrupt(OSError())
    (True, False)
    """
    cause: BaseException | None = error
    while cause is not None and cause is not handled:
        if isinstance(cause, KeyboardInterrupt):
            return True
        cause = cause.__context__
    return False


@contextmanager
def no_traces_of_py4j() -> Iterator[None]:
    """Leave out the tracebacks that Py4J logs of interrupts before it raises them."""
    root, own = logging.getLogger(), logging.getLogger("py4j")
    before = own.propagate
    own.propagate = False
    root.addFilter(_is_not_of_py4j)
    try:
        yield
    finally:
        root.removeFilter(_is_not_of_py4j)
        own.propagate = before


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    # Nothing but such tracebacks goes to the root logger there.
    return record.module != "java_gateway"
