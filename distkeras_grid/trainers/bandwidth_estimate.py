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
    """Traffic of one run at the parameter server."""

    # Bytes of one vector. Each exchange carries one up and, unless replies are empty, one down.
    vector_bytes: int
    workers: int  # Number of workers that exchange
    window: int  # Batches between two exchanges of a worker
    window_seconds: float  # Measured time of one window's batches [s]
    available: float = NETWORK_BYTES_PER_SECOND  # Speed of the link in one direction [bytes/s]
    empty_reply: bool = False  # Whether the server's replies have no vector

    @property
    def ways(self) -> int:
        """Directions of the link that are used: up, and down unless replies are empty."""
        return 1 if self.empty_reply else 2

    @property
    def bytes_per_second(self) -> float:
        """Bytes that must pass the driver each second, both directions together."""
        return self.ways * self.vector_bytes * self.workers / self.window_seconds

    @property
    def fits(self) -> bool:
        """Whether the link is fast enough, with up and down at the same time."""
        return self.bytes_per_second / self.ways <= self.available

    @property
    def shortest_window(self) -> float:
        """Time of a window's batches below which the link is too slow [s]."""
        return self.vector_bytes * self.workers / self.available

    def sentence(self) -> str:
        """Return the need in words, with what to change if the link is too slow.

        Examples
        --------
        >>> print(BandwidthEstimate(19_200_000, 20, 12, 0.24).sentence())
        19.2 MB x 20 workers every 12 batches needs 3.2 GB/s on the driver; about 2.5 GB/s can \
pass: raise communication_window to 16 or more, or take fewer workers
        """
        every = "every batch" if self.window == 1 else f"every {self.window} batches"
        need = (
            f"{self.vector_bytes / 1e6:.3g} MB x {self.workers} workers {every} needs "
            f"{_speed(self.bytes_per_second)} on the driver"
        )
        if self.fits:
            return need
        passing = self.ways * self.available
        enough = -(-self.window * self.bytes_per_second // passing)
        return (
            f"{need}; about {_speed(passing)} can pass: raise communication_window to "
            f"{enough:.0f} or more, or take fewer workers"
        )


def _speed(bytes_per_second: float) -> str:
    if bytes_per_second >= 1e9:
        return f"{bytes_per_second / 1e9:.1f} GB/s"
    return f"{bytes_per_second / 1e6:.3g} MB/s"
