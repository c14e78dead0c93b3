"""The network bandwidth that a run needs at the driver, before it starts."""

from __future__ import annotations

import math

# A link is assumed to carry this in each direction, as 10 Gb/s Ethernet does. Sockets of one host
# carried 2.5 GB/s (TCP), and more over Unix sockets, on the machine where it was measured.
NETWORK_BYTES_PER_SECOND = 1.25e9
LOOPBACK_BYTES_PER_SECOND = 2.5e9


def link_speed(bind_host: str) -> float:
    """Return the speed of the driver's link in one direction [bytes/s], from the bind address."""
    loopback = bind_host == "localhost" or bind_host.startswith("127.")
    return LOOPBACK_BYTES_PER_SECOND if loopback else NETWORK_BYTES_PER_SECOND


def bandwidth_sentence(
    vector_bytes: int, workers: int, window: int, window_seconds: float, available: float
) -> str:
    """Return the traffic of a run at the parameter server, with what to change if it is too much.

    `vector_bytes`: each exchange carries one vector up and at most one down.
    `window`: batches between two exchanges of a worker, which take it `window_seconds` [s].
    `available`: speed of the link in one direction [bytes/s].
    """
    every = "every batch" if window == 1 else f"every {window} batches"
    needed = vector_bytes * workers / window_seconds
    need = (
        f"{vector_bytes / 1e6:.3g} MB x {workers} workers {every} needs {_speed(needed)} in each "
        "direction at the driver"
    )
    if needed <= available:
        return need
    return (
        f"{need}; about {_speed(available)} can pass: raise communication_window to "
        f"{math.ceil(window * needed / available)} or more, or take fewer workers"
    )


def _speed(bytes_per_second: float) -> str:
    if bytes_per_second >= 1e9:
        return f"{bytes_per_second / 1e9:.1f} GB/s"
    return f"{bytes_per_second / 1e6:.3g} MB/s"
