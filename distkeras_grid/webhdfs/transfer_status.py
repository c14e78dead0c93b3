"""The progress line of a transfer, which `distkeras_grid.progress` shows."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from distkeras_grid.progress import Reporter, Status, clock_time, format_bytes


@dataclass(frozen=True, slots=True)
class TransferStatus:
    """The state of a transfer as its line shows it.

    Examples
    --------
    >>> TransferStatus("looking at what is there").status(rate=0.0, seconds=7.2).line()
    'looking at what is there  7 s'
    >>> sending = TransferStatus("sending", 12, 3000, 1_200_000_000, 45_000_000_000)
    >>> sending.status(rate=110e6, seconds=11).line()
    'sending  12 of 3,000 files  1.2 GB of 45 GB  110 MB/s  6:38 left'
    """

    phase: str  # What is being done, in words; shown until `total_files` is known
    # files and total_files: Complete, and all; those that were there already are complete, too
    files: int = 0
    total_files: int = 0
    size: int = 0  # size and total_size: The same in bytes
    total_size: int = 0
    failed: int = 0  # Files

    @property
    def turn(self) -> Hashable:
        """Nothing is told before it is due: a short transfer is silent."""
        return None

    @property
    def amount(self) -> int:
        """Bytes so far."""
        return self.size

    def status(self, rate: float, seconds: float) -> Status:
        """Return what is known.

        `rate`: recent speed [bytes/s]; 0 where not yet known.
        `seconds`: in this phase so far [s].
        """
        if not self.total_files:
            files = [f"{self.files:,} files"] if self.files else []
            return Status([self.phase, *files, f"{seconds:.0f} s"])
        parts = [self.phase]
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        parts.append(f"{self.files:,} of {self.total_files:,} files")
        parts.append(f"{format_bytes(self.size)} of {format_bytes(self.total_size)}")
        if rate > 0:
            left = max(0, self.total_size - self.size) / rate
            parts += [f"{format_bytes(rate)}/s", f"{clock_time(left)} left"]
        return Status(parts, min(1.0, self.size / max(1, self.total_size)))


TransferProgress = Reporter[TransferStatus]


def transfer_progress(phase: str, to: Callable[[str], object] | None = None) -> TransferProgress:
    """Return the reporter of a transfer; on plain lines one that soon ends is silent."""
    return Reporter(TransferStatus(phase), to=to, at_once=False)


class Meter:
    """Counts the bytes of one file, so that they can be taken back."""

    def __init__(self, progress: TransferProgress) -> None:
        self._progress = progress
        self._size = 0

    def add(self, size: int) -> None:
        """Count bytes."""
        self._size += size
        self._progress.add(size=size)

    def reset(self) -> None:
        """Take back all counted bytes."""
        self.add(-self._size)
