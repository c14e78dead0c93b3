"""The line that tells how a transfer gets on; `format_transfer` is pure."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TextIO

from distkeras_grid.status_line import MAX_WIDTH, RecentRate, StatusLine, clock_time, fitting

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
            parts += [f"{format_bytes(transfer.rate)}/s", f"{clock_time(left)} left"]
        if transfer.failed:
            parts.insert(1, f"{transfer.failed:,} failed")
    return fitting(parts, width)


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


class TransferLine(StatusLine):
    """Counts what many threads transfer and writes it to a stream, as a context manager.

    Where lines do not move, a transfer that ends before the first is due writes none.

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
        super().__init__(stream, clock, at_once=False)
        self._began = clock()
        self._state = Transfer(phase)
        self._moved = RecentRate()

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
            self._moved = RecentRate()
            self._moved.add(self._clock(), 0)

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

    def _text(self, width: int) -> str:
        now = self._clock()
        if self._state.total_files:
            self._moved.add(now, self._state.size)
        rate = self._moved.at(now)
        return format_transfer(replace(self._state, rate=rate, seconds=now - self._began), width)


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
