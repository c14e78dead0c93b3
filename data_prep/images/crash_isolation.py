"""Images that crash the process which decodes them are tried in a second process first.

A decoder in C can crash on a damaged file, or unpack it to more memory than there is. The Python
worker of the Spark task dies with it, and so would each attempt of the task, in every update. The
first attempt decodes without isolation, and ends itself if one image takes too long. Every later
attempt first tries each image in a process of its own, and leaves out those that crash it or never
finish.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from inspect import isgenerator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self, TypeVar

from distkeras_grid.errors import ImageError, UnreadableImageError

# Longer than it takes to read the largest image, or to cut some of its tiles [s].
DEADLINE = 1800.0
# The process sends `_ALIVE` while its work goes on. Any other message is its last one: an empty
# message, or one of the other letters and the reason why the image cannot be used.
_ALIVE, _REFUSED, _UNREADABLE = b".", b"!", b"?"
# Seconds that a process with nothing left to do may take to end by itself.
_GRACE = 5.0
# The descriptor of standard error, whatever `sys.stderr` is now.
_STDERR = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class IsolationPolicy:
    """When images are tried first."""

    # Whether images are always tried. Otherwise they are only tried in a task that runs again.
    always: bool = False
    # Memory that one image may take in the trial, MB. Default: as much as the system gives.
    memory_mb: int | None = None
    deadline: float = DEADLINE  # Time that work on an image may take without a sign of life [s]

    @contextmanager
    def trials(self) -> Iterator[DecodeSandbox | None]:
        """Yield where the images of a task are tried, None if they are not.

        A task runs again if its process died, and an image may be the reason.
        """
        from pyspark import TaskContext

        context = TaskContext.get()
        if self.always or (context is not None and context.attemptNumber() > 0):
            with DecodeSandbox(self.memory_mb, self.deadline) as trials:
                yield trials
        else:
            yield None

    @contextmanager
    def in_time(self) -> Iterator[None]:
        """End this process if the ``with`` block takes too long.

        A decoder in C may hold the lock of the interpreter, so no Python thread could notice.
        Spark runs the task again, which tries its images, and leaves out the one that takes too
        long.
        """
        faulthandler.dump_traceback_later(self.deadline, exit=True, file=_STDERR)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def each_in_time(self, items: Iterator[T]) -> Iterator[T]:
        """Yield the items of an iterator; only the time that the iterator takes counts."""
        while True:
            with self.in_time():
                item = next(items, None)
            if item is None:
                return
            yield item


#: Only tasks that run again try their images.
LATER = IsolationPolicy()


class DecodeSandbox:
    """A process that tries one image after another, and is replaced when it dies.

    `deadline`: time that work may take without a sign of life [s].

    Examples
    --------
    >>> with DecodeSandbox() as trials:
    ...     trials.survive("0.png", len, "what does no harm")
    """

    def __init__(self, memory_mb: int | None = None, deadline: float = DEADLINE) -> None:
        self._memory_mb = memory_mb
        self._deadline = deadline
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    def __enter__(self) -> Self:
        """Return itself; the process starts with the first image."""
        return self

    def __exit__(self, *exception: object) -> None:
        """End the process."""
        self._end()

    def survive(self, name: str, work: Callable[..., Any], *arguments: Any) -> None:
        """Do work on an image in the other process; its result is discarded."""
        process, pipe = self._started()
        try:
            pipe.send((name, work, arguments))
            reply = _ALIVE
            while reply == _ALIVE:
                if not wait([pipe, process.sentinel], self._deadline):
                    self._end()
                    raise ImageError(
                        f"{name} took longer than {self._deadline:g} s, and was given up. Repair "
                        "or remove it."
                    )
                reply = pipe.recv_bytes()
        except (EOFError, OSError):
            process.join(_GRACE)
            reason = _ended(process.exitcode)
            self._end()
            raise ImageError(
                f"{name} ended the process that decoded it ({reason}). Repair or remove it."
            ) from None
        if reply.startswith(_UNREADABLE):
            raise UnreadableImageError(reply[1:].decode())
        if reply:
            raise ImageError(reply[1:].decode())

    def _started(self) -> tuple[BaseProcess, Connection]:
        if self._process is None or self._pipe is None:
            # A fresh interpreter: a fork of this one would inherit locks that its threads hold.
            context = multiprocessing.get_context("spawn")
            self._pipe, other = context.Pipe()
            self._process = context.Process(
                target=_try_images, args=(other, self._memory_mb), daemon=True
            )
            self._process.start()
            # Otherwise the pipe would stay open when the process ends.
            other.close()
        return self._process, self._pipe

    def _end(self) -> None:
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if pipe is not None:
            pipe.close()
        if process is not None:
            process.kill()
            process.join(_GRACE)


def _try_images(pipe: Connection, memory_mb: int | None) -> None:
    """Do the work that comes through the pipe; the second process runs this."""
    # If memory runs out, the system kills this process, and not the task's own.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    # The parent ends this process; Ctrl+C does not.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError):
        while True:
            name, work, arguments = pipe.recv()
            if memory_mb is not None:
                # Limited once: what was imported for the work stays in memory.
                _limit(memory_mb)
                memory_mb = None
            pipe.send_bytes(_last_message(pipe, name, work, arguments))


def _last_message(
    pipe: Connection, name: str, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> bytes:
    """Do work; return the last message: why the image cannot be used, or an empty one."""
    try:
        done = work(*arguments)
        if isgenerator(done):
            for _ in done:
                pipe.send_bytes(_ALIVE)
    except ImageError as error:
        kind = _UNREADABLE if isinstance(error, UnreadableImageError) else _REFUSED
        return kind + str(error).encode()
    except MemoryError:
        # The task itself has no limit: it would be killed.
        reason = f"{name} needs more memory than there is. Give the tasks more memory."
        return _UNREADABLE + reason.encode()
    except Exception:  # noqa: BLE001
        # The image is not at fault. The task meets the same error, and reports it.
        return b""
    return b""


def _limit(memory_mb: int) -> None:
    """Limit the memory that this process can allocate in addition to what it has."""
    import psutil

    most = psutil.Process().memory_info().vms + (memory_mb << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _ended(code: int | None) -> str:
    """Return in words how a process ended.

    Examples
    --------
    >>> _ended(-9), _ended(3)
    ('signal SIGKILL', 'exit code 3')
    """
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"
