"""The cluster of a simulated run: the speed of its workers, its network and its failures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from distkeras_grid.errors import ConfigurationError


@dataclass(frozen=True)
class Outage:
    """A worker that is lost, and comes back as another attempt on its seat.

    Parameters
    ----------
    worker : int
        The worker, from 0.
    at : float
        When it is lost [s since the run began].
    seconds : float, default infinity
        Time until another attempt has its rows and is ready. Infinity: it never comes back.
    """

    worker: int
    at: float
    seconds: float = math.inf

    def __post_init__(self) -> None:
        if not (0 <= self.at < math.inf and self.seconds >= 0):
            raise ConfigurationError(
                f"An outage begins at a finite time and lasts at least 0 s. Received: {self!r}."
            )


@dataclass(frozen=True)
class Cluster:
    """Workers, their speeds and their network; all times in seconds, all sizes in bytes.

    Parameters
    ----------
    workers : int
        Number of workers.
    batch_seconds : float, optional
        Time of one batch on a worker of speed 1 [s]. With None it is measured on this machine, for
        a Keras model.
    speeds : sequence of float, default ()
        Relative speed of each worker; if empty, 1 for all.
    times : {"deterministic", "exponential"}, default "deterministic"
        Whether a window takes exactly its mean time, or a time drawn from the exponential
        distribution with that mean.
    straggler_probability : float, default 0
        Share of the windows, drawn at random, that take `straggler_factor` times as long.
    straggler_factor : float, default 10
        Factor of the time of those windows.
    latency : float, default 0
        Time of a message from a worker to the server, or back [s].
    bandwidth : float, default infinity
        Bandwidth of each worker's link, in each direction [bytes/s].
    server_bandwidth : float, default infinity
        Bandwidth of the server's link, in each direction [bytes/s]. It carries one message after
        the other.
    late : mapping of int to float, optional
        Seconds until a worker arrives, for workers that are not there at 0. As on a real cluster,
        no worker starts before all have arrived; the trainer's ``start_timeout`` ends the wait.
    outages : sequence of Outage, default ()
        Workers that are lost.
    seed : int, default 0
        Seed of all random numbers. Each worker draws its own, and they are the same for every
        trainer.

    Raises
    ------
    ConfigurationError
        If a field is out of its range. The message names it.

    Examples
    --------
    >>> Cluster(workers=3, batch_seconds=0.01, speeds=(1, 1, 0.5)).window_seconds(2, steps=4)
    0.08
    """

    workers: int
    batch_seconds: float | None = None
    speeds: tuple[float, ...] = ()
    times: Literal["deterministic", "exponential"] = "deterministic"
    straggler_probability: float = 0.0
    straggler_factor: float = 10.0
    latency: float = 0.0
    bandwidth: float = math.inf
    server_bandwidth: float = math.inf
    late: Mapping[int, float] = field(default_factory=dict)
    outages: tuple[Outage, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        # Users give lists, but a frozen value needs tuples.
        object.__setattr__(self, "speeds", tuple(self.speeds))
        object.__setattr__(self, "outages", tuple(self.outages))
        self._check_numbers()
        self._check_workers()

    def window_seconds(self, worker: int, steps: int) -> float:
        """Return the mean time of a window of so many batches, without stragglers [s]."""
        if self.batch_seconds is None:
            raise ConfigurationError("batch_seconds must be given: nothing here can measure it.")
        return steps * self.batch_seconds / self._speed(worker)

    def to_json(self) -> dict[str, Any]:
        """Return the cluster as plain JSON values, except infinity."""
        late = {str(worker): seconds for worker, seconds in self.late.items()}
        return {**asdict(self), "speeds": list(self.speeds), "late": late}

    def _speed(self, worker: int) -> float:
        return self.speeds[worker] if self.speeds else 1.0

    def _check_numbers(self) -> None:
        ranges = {
            "workers": _is_whole(self.workers, 1),
            "batch_seconds": self.batch_seconds is None or _is_positive(self.batch_seconds),
            "speeds": all(map(_is_positive, self.speeds)),
            "times": self.times in ("deterministic", "exponential"),
            "straggler_probability": _is_within(self.straggler_probability, 0, 1),
            "straggler_factor": _is_within(self.straggler_factor, 1),
            "latency": _is_within(self.latency, 0),
            "bandwidth": self.bandwidth == math.inf or _is_positive(self.bandwidth),
            "server_bandwidth": self.server_bandwidth == math.inf
            or _is_positive(self.server_bandwidth),
            "late": all(_is_within(seconds, 0) for seconds in self.late.values()),
            "seed": _is_whole(self.seed, 0),
        }
        for name, right in ranges.items():
            if not right:
                raise ConfigurationError(
                    f"Cluster.{name} is out of its range. Received: {getattr(self, name)!r}."
                )

    def _check_workers(self) -> None:
        if self.speeds and len(self.speeds) != self.workers:
            raise ConfigurationError(
                f"speeds must have one number for each of {self.workers} workers. "
                f"Received: {len(self.speeds)}."
            )
        for worker in (*self.late, *(outage.worker for outage in self.outages)):
            if not 0 <= worker < self.workers:
                raise ConfigurationError(
                    f"late and outages must name workers from 0 to {self.workers - 1}. Received: "
                    f"{worker}."
                )


def _is_within(value: Any, low: float, high: float = math.inf) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and low <= value <= high and value < math.inf


def _is_positive(value: Any) -> bool:
    return _is_within(value, 0) and value > 0


def _is_whole(value: Any, low: int) -> bool:
    return isinstance(value, int) and _is_within(value, low)
