"""The paces of all devices, observed while they work."""

from __future__ import annotations

import statistics
from collections import defaultdict, deque

from distkeras_grid.model_parallel.time_model import Pace

#: Number of passes in a median. The first pass of a measurement is warm-up and does not count.
OBSERVATIONS = 5


class Pacing:
    """Medians of the last passes, for each layer and device.

    Examples
    --------
    >>> pacing = Pacing()
    >>> for seconds in (9.0, 1.0, 1.0, 1.0, 1.0):
    ...     pacing.observe("c", 0, 10, seconds, 2 * seconds)
    >>> pacing.pace("c", 0)
    Pace(forward=0.1, backward=0.2)
    """

    def __init__(self) -> None:
        self._seen: defaultdict[tuple[str, int], deque[Pace]] = defaultdict(
            lambda: deque(maxlen=OBSERVATIONS)
        )
        self._known: dict[tuple[str, int], Pace] = {}

    def observe(self, layer: str, device: int, units: int, forward: float, backward: float) -> None:
        """Add a pass of a layer on a device.

        Parameters
        ----------
        layer : str
            Name of the layer.
        device : int
            Number of the device, 0 for the master.
        units : int
            Number of units that it computed, at least 1.
        forward, backward : float
            Time of computing, forward and backward [s].
        """
        # A clock that does not move would make a device infinitely fast.
        seconds = max(forward, 1e-9), max(backward, 1e-9)
        seen = self._seen[layer, device]
        seen.append(Pace(forward=seconds[0] / units, backward=seconds[1] / units))
        if len(seen) == OBSERVATIONS:
            self._known[layer, device] = _median(seen)

    def pace(self, layer: str, device: int) -> Pace | None:
        """Return the last known pace; None before there are enough observations."""
        return self._known.get((layer, device))

    def is_fresh(self, layer: str, shares: tuple[int, ...]) -> bool:
        """Whether all devices with a share of a layer have been observed since `forget`."""
        return all(
            len(self._seen[layer, device]) == OBSERVATIONS
            for device, units in enumerate(shares)
            if units
        )

    def forget(self, layer: str) -> None:
        """Observe a layer anew, for example after a change of its shares; known paces stay."""
        for (name, _), seen in self._seen.items():
            if name == layer:
                seen.clear()


def _median(seen: deque[Pace]) -> Pace:
    return Pace(
        forward=statistics.median(pace.forward for pace in seen),
        backward=statistics.median(pace.backward for pace in seen),
    )
