"""The network bandwidth that a run needs at the driver, before it starts."""

from __future__ import annotations

from dataclasses import dataclass

# A link is assumed to carry this in each direction, as 10 Gb/s Ethernet does. Sockets of one host
# carried 2.5 GB/s (TCP), and more over Unix sockets, on the machine where it was measured.
NETWORK_BYTES_PER_SECOND = 1.25e9
LOOPBACK_BYTES_PER_SECOND = 2.5e9


def link_speed(bind_host: str) -> float:
    """Return the speed of the driver's link in one direction [bytes/s], from the bind address."""
    loopback = bind_host == "localhost" or bind_host.startswith("127.")
    return LOOPBACK_BYTES_PER_SECOND if loopback else NETWORK_BYTES_PER_SECOND


@dataclass(frozen=True)
class BandwidthEstimate:
    """Traffic of one run at the parameter server, in one direction of the link."""

    vector_bytes: int  # Bytes of one vector. Each exchange carries one up and at most one down.
    workers: int  # Number of workers that exchange
    window: int  # Batches between two exchanges of a worker
    window_seconds: float  # Measured time of one window's batches [s]
    available: float = NETWORK_BYTES_PER_SECOND  # Speed of the link in one direction [bytes/s]

    @property
    def bytes_per_second(self) -> float:
        """Bytes that must pass the driver each second."""
        return self.vector_bytes * self.workers / self.window_seconds

    @property
    def shortest_window(self) -> float:
        """Time of a window's batches below which the link is too slow [s]."""
        return self.vector_bytes * self.workers / self.available

    def sentence(self) -> str:
        """Return the need in words, with what to change if the link is too slow."""
        every = "every batch" if self.window == 1 else f"every {self.window} batches"
        need = (
            f"{self.vector_bytes / 1e6:.3g} MB x {self.workers} workers {every} needs "
            f"{_speed(self.bytes_per_second)} in each direction at the driver"
        )
        if self.window_seconds >= self.shortest_window:
            return need
        enough = -(-self.window * self.bytes_per_second // self.available)
        return (
            f"{need}; about {_speed(self.available)} can pass: raise communication_window to "
            f"{enough:.0f} or more, or take fewer workers"
        )


def _speed(bytes_per_second: float) -> str:
    if bytes_per_second >= 1e9:
        return f"{bytes_per_second / 1e9:.1f} GB/s"
    return f"{bytes_per_second / 1e6:.3g} MB/s"
