"""What a run asks of the network at the driver, in bytes per second, before it starts."""

from __future__ import annotations

from dataclasses import dataclass

# One way and both ways of a link count alike here. 10 Gb/s Ethernet carries 1.25 GB/s each way;
# sockets of one host carried 2.5 GB/s (TCP) and more over Unix sockets where it was measured.
NETWORK_BYTES_PER_SECOND = 1.25e9
LOOPBACK_BYTES_PER_SECOND = 2.5e9


def link_speed(bind_host: str) -> float:
    """Return what can pass the driver one way [bytes/s], by the address the server listens on."""
    loopback = bind_host == "localhost" or bind_host.startswith("127.")
    return LOOPBACK_BYTES_PER_SECOND if loopback else NETWORK_BYTES_PER_SECOND


@dataclass(frozen=True)
class NetworkNeed:
    """Traffic of one run at the parameter server.

    Parameters
    ----------
    vector_bytes : int
        Bytes of one vector; each exchange carries one up and, unless replies are empty, one down.
    workers : int
        Workers that exchange.
    window : int
        Batches between two exchanges of a worker.
    window_seconds : float
        Measured time of one window's batches [s].
    available : float
        What the link carries one way [bytes/s].
    empty_reply : bool, default False
        Whether the server sends nothing back, as its rule says.
    """

    vector_bytes: int
    workers: int
    window: int
    window_seconds: float
    available: float = NETWORK_BYTES_PER_SECOND
    empty_reply: bool = False

    @property
    def ways(self) -> int:
        """Ways of the link that are used: up, and down unless replies are empty."""
        return 1 if self.empty_reply else 2

    @property
    def bytes_per_second(self) -> float:
        """Bytes that must pass the driver each second, all ways together."""
        return self.ways * self.vector_bytes * self.workers / self.window_seconds

    @property
    def fits(self) -> bool:
        """Whether the link carries it, with up and down at the same time."""
        return self.bytes_per_second / self.ways <= self.available

    @property
    def shortest_window(self) -> float:
        """How long a window's batches must take at least, or the link holds them up [s]."""
        return self.vector_bytes * self.workers / self.available

    def sentence(self) -> str:
        """Return the need in words, with what to change if it does not fit.

        Examples
        --------
        >>> print(NetworkNeed(19_200_000, 20, 12, 0.24).sentence())
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
