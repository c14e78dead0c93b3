"""Images that end the process which decodes them: tried in a second process first.

A decoder in C can crash on a damaged file, or unpack it to more memory than there is. The Python
worker of the Spark task dies with it, and so would each attempt of the task, and each night. The
first attempt decodes without this care, and ends itself if one image takes too long. Every later
one tries each image in a process of its own first, and leaves out those that end it or never end.
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
from types import TracebackType
from typing import Any, Self, TypeVar

from distkeras_grid.errors import ImageError

# Longer than it takes to read the largest image, or to cut some of its tiles.
DEADLINE = 1800.0
# The process sends this while its work goes on; anything else ends it.
_ALIVE = b"."
# Seconds that a process takes to end by itself, for which nothing is left to do.
_GRACE = 5.0
# Whatever `sys.stderr` is now.
_STDERR = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Care:
    """When images are tried first.

    Parameters
    ----------
    always : bool, default False
        Otherwise only in a task that runs again.
    memory_mb : int, optional
        What one image may take of memory then. By default as much as the system gives.
    deadline : float
        How long work on an image may give no sign [s].
    """

    always: bool = False
    memory_mb: int | None = None
    deadline: float = DEADLINE

    @contextmanager
    def trials(self) -> Iterator[Trials | None]:
        """Yield where the images of a task are tried, None if there is no need.

        A task runs again if its process died, and maybe of an image.
        """
        from pyspark import TaskContext

        context = TaskContext.get()
        if self.always or (context is not None and context.attemptNumber() > 0):
            with Trials(self.memory_mb, self.deadline) as trials:
                yield trials
        else:
            yield None

    @contextmanager
    def in_time(self) -> Iterator[None]:
        """End this process if what is done meanwhile does not end.

        A decoder in C may hold the lock of the interpreter, so nothing in Python could notice.
        Spark runs the task again, which tries its images, and leaves out the one that takes too
        long.
        """
        faulthandler.dump_traceback_later(self.deadline, exit=True, file=_STDERR)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def each_in_time(self, items: Iterator[T]) -> Iterator[T]:
        """Yield what an iterator does; only the time that it takes itself counts."""
        while True:
            with self.in_time():
                item = next(items, None)
            if item is None:
                return
            yield item


#: Only tasks that run again try images.
LATER = Care()


class Trials:
    """A process that tries one image after the other, and is replaced when it dies.

    Parameters
    ----------
    memory_mb : int, optional
        What one image may take of memory. By default as much as the system gives.
    deadline : float
        How long work may give no sign [s].

    Examples
    --------
    >>> with Trials() as trials:
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self._end()

    def survive(self, name: str, work: Callable[..., Any], *arguments: Any) -> None:
        """Do work on an image in the other process; what it returns is not told.

        Parameters
        ----------
        name : str
            The image, named in errors.
        work : callable
            A function of a module. If it is a generator, each item is a sign that it goes on.
        *arguments
            They are sent to the process.

        Raises
        ------
        ImageError
            If the process dies of it or does not end in time, or what `work` raised as such.
        """
        process, pipe = self._started()
        try:
            pipe.send((work, arguments))
            told = _ALIVE
            while told == _ALIVE:
                if not wait([pipe, process.sentinel], self._deadline):
                    self._end()
                    raise ImageError(
                        f"{name} took longer than {self._deadline:g} s, and was given up. Repair "
                        "or remove it."
                    )
                told = pipe.recv_bytes()
        except (EOFError, OSError):
            process.join(_GRACE)
            reason = _ended(process.exitcode)
            self._end()
            raise ImageError(
                f"{name} ended the process that decoded it ({reason}). Repair or remove it."
            ) from None
        if told:
            raise ImageError(told.decode())

    def _started(self) -> tuple[BaseProcess, Connection]:
        if self._process is None or self._pipe is None:
            # A fresh interpreter: a fork of this one would inherit locks that its threads hold.
            context = multiprocessing.get_context("spawn")
            self._pipe, other = context.Pipe()
            self._process = context.Process(
                target=_try_images, args=(other, self._memory_mb), daemon=True
            )
            self._process.start()
            # Or the end of the process would not end the pipe.
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
    """Do what comes through the pipe; what the second process runs."""
    # If memory runs out, the system ends this process, and not the task's own.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    # The parent ends this process, and a keyboard does not.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError):
        while True:
            work, arguments = pipe.recv()
            if memory_mb is not None:
                # Once: what was imported to do the work stays.
                _limit(memory_mb)
                memory_mb = None
            pipe.send_bytes(_told(pipe, work, arguments).encode())


def _told(pipe: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """Do work; return why the image cannot be used, or nothing."""
    try:
        done = work(*arguments)
        if isgenerator(done):
            for _ in done:
                pipe.send_bytes(_ALIVE)
    except ImageError as error:
        return str(error)
    except Exception:  # noqa: BLE001
        # It is no fault of the image. The task meets it, too, and tells it.
        return ""
    return ""


def _limit(memory_mb: int) -> None:
    """Let this process take so much memory more, and no more: what asks for it is refused."""
    import psutil

    most = psutil.Process().memory_info().vms + (memory_mb << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _ended(code: int | None) -> str:
    """Tell how a process ended.

    Examples
    --------
    >>> _ended(-9), _ended(3)
    ('signal SIGKILL', 'exit code 3')
    """
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"
