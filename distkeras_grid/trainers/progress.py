"""One line that tells how a run gets on.

`format_progress` decides what it says and is pure; `ProgressLine` takes in what has changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TextIO

from distkeras_grid.status_line import MAX_WIDTH, RecentRate, StatusLine, clock_time, fitting

TRAINING = "training"


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
    return fitting(parts, width)


def _training_parts(progress: Progress) -> list[str]:
    parts = [f"epoch {min(progress.epoch, progress.epochs)}/{progress.epochs}"]
    if progress.total_samples:
        # Rounded down: 100% is said when all is folded.
        parts.append(f"{min(100, 100 * progress.samples // progress.total_samples)}%")
    if progress.busy_with:
        parts.append(progress.busy_with)
    elif progress.rate:
        left = max(0, progress.total_samples - progress.samples) / progress.rate
        parts += [f"{clock_time(left)} left", f"{progress.rate:,.0f} samples/s"]
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4g}")
    parts.append(f"workers {progress.active} of {progress.workers}")
    if progress.staleness is not None:
        parts.append(f"staleness {progress.staleness:.1f}")
    return parts


def _other_parts(progress: Progress) -> list[str]:
    workers = [f"{progress.active} of {progress.workers} workers"] if progress.workers else []
    return [progress.phase, *workers, f"{progress.seconds:.0f} s"]


class ProgressLine(StatusLine):
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
    >>> import sys
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
        super().__init__(stream, clock, at_once=True)
        self._progress = Progress()
        self._phase_began = clock()
        self._folded = RecentRate()

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

    def _measure(self) -> None:
        if self._progress.phase == TRAINING:
            self._folded.add(self._clock(), self._progress.samples)

    def _text(self, width: int) -> str:
        now = self._clock()
        rate = self._folded.at(now) if self._progress.phase == TRAINING else 0.0
        progress = replace(self._progress, rate=rate, seconds=now - self._phase_began)
        return format_progress(progress, width)
