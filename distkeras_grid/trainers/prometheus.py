"""The parameter server's figures as Prometheus text, on loopback, while a run lasts.

The driver knows them from the server's events, which it polls anyway, so the server itself does
nothing for them and opens no further port.
"""

from __future__ import annotations

import math
import time
from collections import Counter as Counts
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Self

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.parameter_server.messages import CenterUpdate
from distkeras_grid.progress import RecentRate
from distkeras_grid.records import Event, LateRecord, SkippedRecord, WindowRecord

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram

#: Nobody but this host may read them: they are not protected.
LOOPBACK = "127.0.0.1"
#: Upper ends of the buckets of the staleness.
STALENESS = (0, 1, 2, 4, 8, 16, 32, 64, 128)
#: Statuses of a worker, in the order of its life.
STATUSES = ("absent", "joined", "ready", "running", "finished", "failed", "lost")


class PrometheusExporter:
    """What a run tells a Prometheus server, at ``http://127.0.0.1:PORT/metrics``.

    `memory`: returns the resident memory of the servers' processes [bytes]; NaN if one is not
    there.
    """

    def __init__(self, port: int, memory: Callable[[], float]) -> None:
        from prometheus_client import CollectorRegistry

        self.port = port
        self._registry = CollectorRegistry()
        self._folded = RecentRate()
        self._samples_folded = 0
        self._samples = self._counter("samples", "Rows folded into the center.", "worker")
        self._commits = self._counter("commits", "Commits by what became of them.", "outcome")
        self._bytes = self._counter("bytes", "Bytes of commits (up) and replies.", "direction")
        self._workers = self._gauge("workers", "Workers by their status.", "status")
        self._version = self._gauge("version", "Version of the center.")
        self._loss = self._gauge("loss", "Mean loss of the newest folded window.")
        rate = self._gauge("samples_per_second", "Rows folded in a second, over the last 15 s.")
        rate.set_function(lambda: self._folded.at(time.monotonic()))
        resident = self._gauge("server_memory_bytes", "Resident memory of the parameter server.")
        resident.set_function(memory)
        self._staleness = self._histogram("staleness", "Folds of others since the last reply.")

    def __enter__(self) -> Self:
        from prometheus_client import start_http_server

        try:
            self._server, self._thread = start_http_server(
                self.port, addr=LOOPBACK, registry=self._registry
            )
        except OSError as error:
            raise ConfigurationError(
                f"metrics_port must be a free port of this host. Received: {self.port} ({error})."
            ) from error
        self.port = self._server.server_port
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, event: Event) -> None:
        """Count what has happened."""
        if isinstance(event, WindowRecord):
            self._samples.labels(str(event.worker)).inc(event.samples)
            self._commits.labels("folded").inc()
            self._bytes.labels("up").inc(event.bytes_up)
            self._bytes.labels("down").inc(event.bytes_down)
            self._staleness.observe(event.staleness)
            if event.loss is not None:
                self._loss.set(event.loss)
            self._samples_folded += event.samples
            self._folded.add(time.monotonic(), self._samples_folded)
        elif isinstance(event, LateRecord):
            self._commits.labels("late").inc()
        elif isinstance(event, SkippedRecord):
            self._commits.labels("skipped").inc()

    def see(self, update: CenterUpdate) -> None:
        """Show the workers and the center as they are."""
        counts = Counts(seat.status for seat in update.seats)
        for status in STATUSES:
            self._workers.labels(status).set(counts[status])
        self._version.set(update.version)

    def _counter(self, name: str, text: str, label: str) -> Counter:
        from prometheus_client import Counter

        return Counter(f"distkeras_grid_{name}", text, (label,), registry=self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        from prometheus_client import Gauge

        return Gauge(f"distkeras_grid_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        from prometheus_client import Histogram

        registry = self._registry
        return Histogram(f"distkeras_grid_{name}", text, buckets=STALENESS, registry=registry)


def memory_of(processes: Callable[[], Iterable[int]]) -> Callable[[], float]:
    """Return a function of the resident memory of processes [bytes], by their present numbers.

    It returns NaN if one has ended.
    """
    import psutil

    def resident() -> float:
        try:
            return float(sum(psutil.Process(each).memory_info().rss for each in processes()))
        except psutil.Error:
            return math.nan

    return resident
