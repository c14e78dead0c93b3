"""One line that tells how a run gets on.

`format_progress` decides what it says and is pure; `ProgressLine` decides when and how it is
written: a line that moves in a terminal and in a notebook, plain lines elsewhere. A thread of its
own repeats the line while the driver is busy, so that there are never 5 s of silence.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TextIO

TRAINING = "training"

MOVING_INTERVAL = 0.1  # s; faster than the eye needs only costs the driver time
PLAIN_INTERVAL = 4.0  # s; with the heartbeat of half a second, below 5 s of silence
HEARTBEAT = 0.5  # s
RATE_HORIZON = 15.0  # s over which samples per second are averaged
MAX_WIDTH = 120  # characters


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a run as its progress line shows it.

    Parameters
    ----------
    workers, epochs, total_samples : int, default 0
        Asked for; `total_samples` is rows times epochs. No workers: not yet known.
    phase : str, default "checking the data"
        What is being done, in words; `TRAINING` once batches are.
    epoch : int, default 1
        The epoch in which the center is, from 1.
    samples : int, default 0
        Folded so far.
    active : int, default 0
        Workers that are ready, or at work.
    loss, staleness : float, optional
        Of late; the staleness is a mean over commits.
    rate : float, default 0.0
        Of late [samples/s]; 0 where not yet known.
    seconds : float, default 0.0
        In this phase so far [s].
    busy_with : str, default ""
        What the driver does beside the training, in words; the rate is not known meanwhile.
    """

    workers: int = 0
    epochs: int = 0
    total_samples: int = 0
    phase: str = "checking the data"
    epoch: int = 1
    samples: int = 0
    active: int = 0
    loss: float | None = None
    staleness: float | None = None
    rate: float = 0.0
    seconds: float = 0.0
    busy_with: str = ""


def format_progress(progress: Progress, width: int = MAX_WIDTH) -> str:
    """Return the line, without parts that are not known or do not fit.

    Parameters
    ----------
    progress : Progress
        What to tell.
    width : int
        Most characters; parts are left out from the right, the first one is cut.

    Returns
    -------
    str
        ASCII, as terminals in the C locale can show no more.

    Examples
    --------
    >>> started = Progress(workers=4, epochs=2, total_samples=1000)
    >>> format_progress(replace(started, phase="getting ready", active=2, seconds=7.2))
    'getting ready  2 of 4 workers  7 s'
    >>> format_progress(replace(started, phase=TRAINING, samples=250, active=4, rate=50.0,
    ...                         loss=0.51234, staleness=2.96))
    'epoch 1/2  25%  0:15 left  50 samples/s  loss 0.5123  workers 4 of 4  staleness 3.0'
    """
    parts = _training_parts(progress) if progress.phase == TRAINING else _other_parts(progress)
    line = parts[0][:width]
    for part in parts[1:]:
        if len(line) + 2 + len(part) > width:
            break
        line += "  " + part
    return line


def _training_parts(progress: Progress) -> list[str]:
    parts = [f"epoch {min(progress.epoch, progress.epochs)}/{progress.epochs}"]
    if progress.total_samples:
        # Rounded down: 100% is said when all is folded.
        parts.append(f"{min(100, 100 * progress.samples // progress.total_samples)}%")
    if progress.busy_with:
        parts.append(progress.busy_with)
    elif progress.rate:
        left = max(0, progress.total_samples - progress.samples) / progress.rate
        parts += [f"{_format_seconds(left)} left", f"{progress.rate:,.0f} samples/s"]
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4g}")
    parts.append(f"workers {progress.active} of {progress.workers}")
    if progress.staleness is not None:
        parts.append(f"staleness {progress.staleness:.1f}")
    return parts


def _other_parts(progress: Progress) -> list[str]:
    workers = [f"{progress.active} of {progress.workers} workers"] if progress.workers else []
    return [progress.phase, *workers, f"{progress.seconds:.0f} s"]


def _format_seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class ProgressLine:
    """Writes the progress of one run to a stream, as a context manager.

    The first line comes with the first beat of its heart, so a run that is refused at once shows
    none.

    Parameters
    ----------
    stream : text file, optional
        By default standard output in a notebook, where standard error is shown as an alarm, and
        standard error elsewhere.
    clock : callable, default time.monotonic
        Returns seconds.

    Examples
    --------
    >>> with ProgressLine(stream=sys.stdout) as line:
    ...     line.expect(total_samples=1000, epochs=2, workers=4)
    ...     line.update(phase="getting ready")
    ...     line.update(phase=TRAINING, samples=250, active=4, loss=0.5)
    getting ready  0 of 4 workers  0 s
    epoch 1/2  25%  loss 0.5  workers 4 of 4
    """

    def __init__(
        self,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        in_notebook = _in_notebook()
        self._stream = stream or (sys.stdout if in_notebook else sys.stderr)
        self._moving = self._stream.isatty() or (in_notebook and stream is None)
        self._clock = clock
        self._progress = Progress()
        self._phase_began = clock()
        self._folded: deque[tuple[float, int]] = deque()
        self._written_at = -float("inf")
        self._written = ""
        # The heartbeat and the driver write to the same line.
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
            if kind is None and self._line() != self._written:
                self._show()
            if self._moving and self._written:
                self._stream.write("\n")
            self._stream.flush()

    def expect(self, *, total_samples: int, epochs: int, workers: int) -> None:
        """Tell what the run will take, once that is known.

        Parameters
        ----------
        total_samples : int
            Rows times epochs.
        epochs, workers : int
            Asked for.
        """
        with self._lock:
            self._progress = replace(
                self._progress, total_samples=total_samples, epochs=epochs, workers=workers
            )

    def update(
        self,
        *,
        phase: str | None = None,
        epoch: int | None = None,
        samples: int | None = None,
        active: int | None = None,
        loss: float | None = None,
        staleness: float | None = None,
        busy_with: str | None = None,
    ) -> None:
        """Tell what has changed; the line is written when it is due.

        A new phase and a new epoch are always due.

        Parameters
        ----------
        phase, epoch, samples, active, loss, staleness, busy_with : optional
            As in `Progress`; what is not given stays.
        """
        given: dict[str, Any] = {
            "phase": phase,
            "epoch": epoch,
            "samples": samples,
            "active": active,
            "loss": loss,
            "staleness": staleness,
            "busy_with": busy_with,
        }
        with self._lock:
            before = self._progress
            self._progress = replace(before, **{k: v for k, v in given.items() if v is not None})
            if self._progress.phase != before.phase:
                self._phase_began = self._clock()
            self._measure()
            turned = (before.phase, before.epoch) != (self._progress.phase, self._progress.epoch)
            if turned or self._is_due():
                self._show()

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

    def _measure(self) -> None:
        if self._progress.phase != TRAINING:
            return
        now = self._clock()
        self._folded.append((now, self._progress.samples))
        while len(self._folded) > 2 and self._folded[1][0] <= now - RATE_HORIZON:
            self._folded.popleft()

    def _line(self) -> str:
        now = self._clock()
        rate = 0.0
        if self._progress.phase == TRAINING and self._folded and now > self._folded[0][0]:
            began, samples = self._folded[0]
            rate = (self._progress.samples - samples) / (now - began)
        progress = replace(self._progress, rate=rate, seconds=now - self._phase_began)
        width = MAX_WIDTH
        if self._moving:
            # One column less: a full line would wrap, and its beginning would stay for ever.
            width = min(width, shutil.get_terminal_size((MAX_WIDTH, 24)).columns - 1)
        return format_progress(progress, width)

    def _show(self) -> None:
        line = self._line()
        # Spaces, for notebooks know no escape sequence that clears a line.
        blanks = " " * (len(self._written) - len(line))
        self._stream.write(f"\r{line}{blanks}" if self._moving else f"{line}\n")
        self._stream.flush()
        self._written = line
        self._written_at = self._clock()


def _in_notebook() -> bool:
    # IPython is looked for, not imported: whoever runs in a kernel has it loaded.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")
