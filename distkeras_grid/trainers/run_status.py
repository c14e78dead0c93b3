"""The content of a run's progress line, which `distkeras_grid.progress` shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from distkeras_grid.progress import ProgressState, Reporter, Say, clock_time, surface

TRAINING = "training"


@dataclass(frozen=True)
class RunStatus(ProgressState):
    """The state of a run as its progress line shows it."""

    # What is being done, in words; `TRAINING` while batches are trained
    phase: str = "checking the data"
    # workers and epochs and total_samples: Planned numbers; `total_samples` is rows times epochs. 0
    # workers: not known yet.
    workers: int = 0
    epochs: int = 0
    total_samples: int = 0
    epoch: int = 1  # The center's epoch, from 1
    samples: int = 0  # Folded so far
    active: int = 0  # Workers that are ready, or at work
    # loss and staleness: Recent values; the staleness is a mean over commits
    loss: float | None = None
    staleness: float | None = None
    # What the driver does during the training, in words. The rate is then not known.
    busy_with: str = ""

    @property
    def turn(self) -> Hashable:
        """Each phase and each epoch is shown at once."""
        return self.phase, self.epoch

    @property
    def amount(self) -> int:
        """Samples folded, once batches are trained."""
        return self.samples

    def parts(self, rate: float, seconds: float) -> Sequence[str]:
        """Return what is known, in ASCII, because terminals in the C locale show nothing else.

        `rate`: recent rate [samples/s]; 0 if it is not known yet.
        `seconds`: in this phase so far [s].
        """
        if self.phase != TRAINING:
            workers = [f"{self.active} of {self.workers} workers"] if self.workers else []
            return [self.phase, *workers, f"{seconds:.0f} s"]
        return self._training_parts(rate)

    def _training_parts(self, rate: float) -> list[str]:
        parts = [f"epoch {min(self.epoch, self.epochs)}/{self.epochs}"]
        if self.total_samples:
            # Rounded down, so that 100% means that everything is folded.
            parts.append(f"{min(100, 100 * self.samples // self.total_samples)}%")
        if self.busy_with:
            parts.append(self.busy_with)
        elif rate:
            left = max(0, self.total_samples - self.samples) / rate
            parts += [f"{clock_time(left)} left", f"{rate:,.0f} samples/s"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4g}")
        parts.append(f"workers {self.active} of {self.workers}")
        if self.staleness is not None:
            parts.append(f"staleness {self.staleness:.1f}")
        return parts


RunProgress = Reporter[RunStatus]


def run_progress(to: Say | None = None, clock: Callable[[], float] = time.monotonic) -> RunProgress:
    """Return the reporter of a run, which begins by checking the data.

    The first line appears with the first heartbeat, so a run that is refused at once shows none.

    `clock`: returns seconds.
    """
    return Reporter(RunStatus(), to=surface(timed=True) if to is None else to, clock=clock)
