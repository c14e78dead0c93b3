"""Images that end the process which decodes them: tried in a second process first.

A decoder in C can crash on a damaged file, or unpack it to more memory than there is. The Python
worker of the Spark task dies with it, and so would each attempt of the task, and each night. The
first attempt decodes without this care. Every later one tries each image in a process of its own
first, and leaves out those that end it.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from distkeras_grid.errors import ImageError

# Longer than the largest image takes to cut at 72 angles.
DEADLINE = 1800.0
# Seconds that a process takes to end by itself, for which nothing is left to do.
_GRACE = 5.0


class Trials:
    """A process that tries one image after the other, and is replaced when it dies.

    Parameters
    ----------
    deadline : float
        How long one image may take [s].

    Examples
    --------
    >>> with Trials() as trials:
    ...     trials.survive(len, "what does no harm")
    """

    def __init__(self, deadline: float = DEADLINE) -> None:
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

    def survive(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Do work on an image in the other process; what it returns or raises is not told.

        Parameters
        ----------
        work : callable
            A function of a module.
        *arguments
            They are sent to the process.

        Raises
        ------
        ImageError
            If the process dies of it, or does not end in time.
        """
        process, pipe = self._started()
        try:
            pipe.send((work, arguments))
            done = wait([pipe, process.sentinel], self._deadline)
            if not done:
                self._end()
                raise ImageError(
                    f"It took longer than {self._deadline:g} s, and was given up. Repair or remove "
                    "it."
                )
            pipe.recv_bytes()
        except (EOFError, OSError):
            process.join(_GRACE)
            reason = _ended(process.exitcode)
            self._end()
            raise ImageError(
                f"Decoding it ended the process ({reason}). Repair or remove it."
            ) from None

    def _started(self) -> tuple[BaseProcess, Connection]:
        if self._process is None or self._pipe is None:
            # A fresh interpreter: a fork of this one would inherit locks that its threads hold.
            context = multiprocessing.get_context("spawn")
            self._pipe, other = context.Pipe()
            self._process = context.Process(target=_try_images, args=(other,), daemon=True)
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


def _try_images(pipe: Connection) -> None:
    """Do what comes through the pipe; what the second process runs."""
    # If memory runs out, the system ends this process, and not the task's own.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    # The parent ends this process, and a keyboard does not.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError):
        while True:
            work, arguments = pipe.recv()
            # What it raises here it raises in the task, too, and there it is told.
            with suppress(Exception):
                work(*arguments)
            pipe.send_bytes(b"")


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
