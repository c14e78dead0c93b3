"""A line that tells how something gets on, until it has ended.

It moves in a terminal and in a notebook; elsewhere lines come every few seconds. A thread of its
own repeats it while everybody else is busy, so that there are never 5 s of silence.
"""

from __future__ import annotations

import shutil
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TextIO

MOVING_INTERVAL = 0.1  # s; faster than the eye needs only costs time
PLAIN_INTERVAL = 4.0  # s; with the heartbeat of half a second, below 5 s of silence
HEARTBEAT = 0.5  # s
RATE_HORIZON = 15.0  # s over which a rate is averaged
MAX_WIDTH = 120  # characters


class StatusLine(ABC):
    """Writes a line to a stream when it is due, as a context manager; a subclass says what.

    Parameters
    ----------
    stream : text file, optional
        By default standard output in a notebook, where standard error is shown as an alarm, and
        standard error elsewhere.
    clock : callable
        Returns seconds.
    at_once : bool
        Whether the first line is due with the first beat of the heart, also where lines do not
        move. Else what ends within `PLAIN_INTERVAL` is silent there.
    """

    def __init__(self, stream: TextIO | None, clock: Callable[[], float], *, at_once: bool) -> None:
        in_notebook = _in_notebook()
        self._stream = stream or (sys.stdout if in_notebook else sys.stderr)
        self._moving = self._stream.isatty() or (in_notebook and stream is None)
        self._clock = clock
        self._written_at = -float("inf") if at_once else clock()
        self._written = ""
        # What was silent so far ends in silence.
        self._silent = not at_once
        # The heartbeat and others write to the same line, and tell it what has changed.
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._heart.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._heart.join()
        with self._lock:
            if kind is None and not self._silent and self._line() != self._written:
                self._show()
            if self._moving and self._written:
                self._stream.write("\n")
            self._stream.flush()

    @abstractmethod
    def _text(self, width: int) -> str:
        """Return the line, at most so wide; called with the lock held."""

    def note(self, text: str) -> None:
        """Write a line that stays.

        Parameters
        ----------
        text : str
            Without its newline.
        """
        with self._lock:
            blank = "\r" + " " * len(self._written) + "\r" if self._moving else ""
            self._stream.write(f"{blank}{text}\n")
            self._written = ""
            if self._moving:
                self._show()
            self._stream.flush()

    def tick(self) -> None:
        """Write the line again if it is due; the heartbeat calls this."""
        with self._lock:
            if self._is_due():
                self._show()

    def _beat(self) -> None:
        while not self._closing.wait(HEARTBEAT):
            self.tick()

    def _is_due(self) -> bool:
        interval = MOVING_INTERVAL if self._moving else PLAIN_INTERVAL
        return self._clock() - self._written_at >= interval

    def _line(self) -> str:
        width = MAX_WIDTH
        if self._moving:
            # One column less: a full line would wrap, and its beginning would stay for ever.
            width = min(width, shutil.get_terminal_size((MAX_WIDTH, 24)).columns - 1)
        return self._text(width)

    def _show(self) -> None:
        line = self._line()
        # Spaces, for notebooks know no escape sequence that clears a line.
        blanks = " " * (len(self._written) - len(line))
        self._stream.write(f"\r{line}{blanks}" if self._moving else f"{line}\n")
        self._stream.flush()
        self._silent = False
        self._written = line
        self._written_at = self._clock()


class RecentRate:
    """How fast a count has grown of late.

    Examples
    --------
    >>> rate = RecentRate()
    >>> rate.add(10.0, 0)
    >>> rate.add(12.0, 300)
    >>> rate.at(12.0)
    150.0
    """

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()

    def add(self, now: float, count: int) -> None:
        """Note a count at a time [s]."""
        self._counts.append((now, count))
        while len(self._counts) > 2 and self._counts[1][0] <= now - RATE_HORIZON:
            self._counts.popleft()

    def at(self, now: float) -> float:
        """Return the growth a second up to now; 0 where it is not known."""
        if not self._counts or now <= self._counts[0][0]:
            return 0.0
        began, count = self._counts[0]
        return (self._counts[-1][1] - count) / (now - began)


def fitting(parts: Sequence[str], width: int) -> str:
    """Return parts as one line; from the right they are left out, the first one is cut.

    Examples
    --------
    >>> fitting(["sending", "3 of 10 files", "0:15 left"], 25)
    'sending  3 of 10 files'
    """
    line = parts[0][:width]
    for part in parts[1:]:
        if len(line) + 2 + len(part) > width:
            break
        line += "  " + part
    return line


def clock_time(seconds: float) -> str:
    """Return a duration in hours, minutes and seconds.

    Examples
    --------
    >>> clock_time(75), clock_time(30_000)
    ('1:15', '8:20:00')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _in_notebook() -> bool:
    # IPython is looked for, not imported: whoever runs in a kernel has it loaded.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")
