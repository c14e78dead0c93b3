"""The line that tells how a transfer gets on; `format_transfer` is pure."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self, TextIO

MOVING_INTERVAL = 0.2  # s
PLAIN_INTERVAL = 4.0  # s; below 5 s of silence
RATE_HORIZON = 15.0  # s over which bytes per second are averaged
MAX_WIDTH = 120  # characters

_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


@dataclass(frozen=True, slots=True)
class Transfer:
    """The state of a transfer as its line shows it.

    Parameters
    ----------
    phase : str
        What is being done, in words; shown until `total_files` is known.
    files, total_files : int, default 0
        Complete, and all; those that were there already are complete, too.
    size, total_size : int, default 0
        The same in bytes.
    failed : int, default 0
        Files.
    rate : float, default 0.0
        Of late [bytes/s]; 0 where not yet known.
    seconds : float, default 0.0
        So far [s].
    """

    phase: str
    files: int = 0
    total_files: int = 0
    size: int = 0
    total_size: int = 0
    failed: int = 0
    rate: float = 0.0
    seconds: float = 0.0


def format_transfer(transfer: Transfer, width: int = MAX_WIDTH) -> str:
    """Return the line, without parts that are not known or do not fit.

    Examples
    --------
    >>> format_transfer(Transfer("looking at what is there", seconds=7.2))
    'looking at what is there  7 s'
    >>> format_transfer(Transfer("sending", 12, 3000, 1_200_000_000, 45_000_000_000, rate=110e6))
    'sending  12 of 3,000 files  1.2 GB of 45 GB  110 MB/s  6:38 left'
    """
    parts = [transfer.phase]
    if not transfer.total_files:
        parts += [f"{transfer.files:,} files"] if transfer.files else []
        parts.append(f"{transfer.seconds:.0f} s")
    else:
        parts.append(f"{transfer.files:,} of {transfer.total_files:,} files")
        parts.append(f"{format_bytes(transfer.size)} of {format_bytes(transfer.total_size)}")
        if transfer.rate > 0:
            left = max(0, transfer.total_size - transfer.size) / transfer.rate
            parts += [f"{format_bytes(transfer.rate)}/s", f"{_format_seconds(left)} left"]
        if transfer.failed:
            parts.insert(1, f"{transfer.failed:,} failed")
    line = parts[0][:width]
    for part in parts[1:]:
        if len(line) + 2 + len(part) > width:
            break
        line += "  " + part
    return line


def format_bytes(size: float) -> str:
    """Return a number of bytes with two or three digits.

    Examples
    --------
    >>> format_bytes(999), format_bytes(12_345), format_bytes(1_999_999)
    ('999 bytes', '12 kB', '2.0 MB')
    """
    unit = 0
    while size >= 999.5 and unit + 1 < len(_UNITS):
        size /= 1000
        unit += 1
    digits = 1 if unit and size < 9.95 else 0
    return f"{size:.{digits}f} {_UNITS[unit]}"


def _format_seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class TransferLine:
    """Counts what many threads transfer and writes it to a stream, as a context manager.

    The line moves in a terminal and in a notebook; elsewhere lines come every 4 s. A transfer that
    ends before the first is due writes none.

    Parameters
    ----------
    phase : str
        The first one.
    stream : text file, optional
        By default standard output in a notebook, where standard error is shown as an alarm, and
        standard error elsewhere.
    clock : callable, default time.monotonic
        Returns seconds.
    """

    def __init__(
        self,
        phase: str,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        in_notebook = _in_notebook()
        self._stream = stream or (sys.stdout if in_notebook else sys.stderr)
        self._moving = self._stream.isatty() or (in_notebook and stream is None)
        self._clock = clock
        self._began = clock()
        self._state = Transfer(phase)
        self._moved: deque[tuple[float, int]] = deque()
        self._written = ""
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
        if self._moving and self._written:
            self.show()
            self._stream.write("\n")
            self._stream.flush()

    @property
    def state(self) -> Transfer:
        """What has been transferred so far."""
        with self._lock:
            return replace(self._state, seconds=self._clock() - self._began)

    def begin(self, phase: str, *, files: int = 0, size: int = 0) -> None:
        """Start a phase.

        Parameters
        ----------
        phase : str
            In words.
        files, size : int
            What it will take, where that is known.
        """
        with self._lock:
            self._state = Transfer(phase, total_files=files, total_size=size)
            self._moved.clear()
            self._moved.append((self._clock(), 0))

    def move(self, size: int) -> None:
        """Count bytes; a negative number takes back what a try that failed has counted."""
        with self._lock:
            self._state = replace(self._state, size=self._state.size + size)

    def end_file(self, *, failed: bool = False) -> None:
        """Count a file."""
        with self._lock:
            before = self._state
            self._state = replace(
                before, files=before.files + (not failed), failed=before.failed + failed
            )

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
            self._stream.flush()
            self._written = ""

    def show(self) -> None:
        """Write the line; the heartbeat calls this."""
        with self._lock:
            line = self._line()
            # Spaces, for notebooks know no escape sequence that clears a line.
            blanks = " " * (len(self._written) - len(line))
            self._stream.write(f"\r{line}{blanks}" if self._moving else f"{line}\n")
            self._stream.flush()
            self._written = line

    def _line(self) -> str:
        width = MAX_WIDTH
        if self._moving:
            # One column less: a full line would wrap, and its beginning would stay for ever.
            width = min(width, shutil.get_terminal_size((MAX_WIDTH, 24)).columns - 1)
        seconds = self._clock() - self._began
        return format_transfer(replace(self._state, rate=self._rate(), seconds=seconds), width)

    def _beat(self) -> None:
        while not self._closing.wait(MOVING_INTERVAL if self._moving else PLAIN_INTERVAL):
            self.show()

    def _rate(self) -> float:
        if not self._moved:
            return 0.0
        now = self._clock()
        self._moved.append((now, self._state.size))
        while len(self._moved) > 2 and self._moved[1][0] <= now - RATE_HORIZON:
            self._moved.popleft()
        began, size = self._moved[0]
        return (self._state.size - size) / (now - began) if now > began else 0.0


class Meter:
    """What one file has added to a line, so that it can be taken back.

    Parameters
    ----------
    line : TransferLine
    """

    def __init__(self, line: TransferLine) -> None:
        self._line = line
        self._size = 0

    def add(self, size: int) -> None:
        """Count bytes."""
        self._size += size
        self._line.move(size)

    def reset(self) -> None:
        """Take back all that was counted."""
        self.add(-self._size)


def _in_notebook() -> bool:
    # IPython is looked for, not imported: whoever runs in a kernel has it loaded.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")
