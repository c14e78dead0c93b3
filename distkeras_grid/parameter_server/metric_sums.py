"""The state of the metrics of an epoch's windows, added as they are folded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

_TYPE = np.dtype("<f8")


class MetricSums:
    """The sum of the states that have come since the last epoch ended.

    Examples
    --------
    >>> sums = MetricSums()
    >>> for state in ([1.0, 2.0], [0.5, 2.0]):
    ...     sums.add(np.array(state).tobytes(), {})
    >>> np.frombuffer(sums.take())
    array([1.5, 4. ])
    >>> sums.take()
    b''
    """

    def __init__(self, values: Sequence[float] = ()) -> None:
        self.values = np.array(values, _TYPE)
        self.sources: Mapping[str, str] = {}

    def takes(self, state: bytes) -> bool:
        """Whether a state has as many numbers as those before it in this epoch."""
        due = self.values.nbytes or len(state)
        return len(state) == due and due % _TYPE.itemsize == 0

    def add(self, state: bytes, sources: Mapping[str, str]) -> None:
        """Add a state that `takes` has allowed, and take over its sources."""
        if not self.values.size:
            self.values = np.zeros(len(state) // _TYPE.itemsize, _TYPE)
        # Metrics may be infinite.
        with np.errstate(all="ignore"):
            self.values += np.frombuffer(state, _TYPE)
        self.sources = sources

    def take(self) -> bytes:
        """Return the sum, and begin that of the next epoch."""
        state, self.values = self.values.tobytes(), np.empty(0, _TYPE)
        return state
