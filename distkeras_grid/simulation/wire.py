"""Vectors of exchanges in simulated time: what arrives, and how many bytes are sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distkeras_grid.parameter_server.compression import (
    Bfloat16,
    Compression,
    from_changes,
    sparse_bytes,
)

if TYPE_CHECKING:
    from distkeras_grid.rules import Rule
    from distkeras_grid.weights import Vector


class SimulatedWire:
    """Compression of a run's vectors, without a connection.

    Parameters
    ----------
    compression : "bfloat16" or DeepGradientCompression, optional
        Compression of the exchanges.
    size : int
        Scalars in a vector.
    rule : Rule
        Rule of the run, which decides what the server replies.

    Examples
    --------
    >>> import numpy as np
    >>> from distkeras_grid.rules import DeepGradientCompression, DownpourRule
    >>> wire = SimulatedWire(DeepGradientCompression(), 9, DownpourRule())
    >>> wire.send(np.array([0, 0, 5, 0, 0, 0, 0, 0, 0], np.float32))
    8
    """

    def __init__(self, compression: Compression | None, size: int, rule: Rule) -> None:
        self._bfloat16 = Bfloat16(size) if compression == "bfloat16" else None
        self._sparse = compression is not None and self._bfloat16 is None
        self._tells_changes = self._sparse and rule.traits.reply_has_vector
        # The center that each seat knows, if replies have only changes.
        self._known: dict[str, Vector] = {}

    def send(self, vector: Vector) -> int:
        """Replace a vector by what arrives of it; return the number of bytes sent."""
        if self._bfloat16 is not None:
            self._bfloat16.pack(vector)
            self._bfloat16.unpack(vector)
            return 2 * vector.size
        return sparse_bytes(vector) if self._sparse else 4 * vector.size

    def greet(self, seat: int, center: Vector) -> Vector:
        """Return the center that a seat starts from; it is sent as a whole."""
        if self._tells_changes:
            self._known[str(seat)] = center.copy()
        return center

    def receive(self, seat: int, vector: Vector, size: int) -> Vector:
        """Return a seat's center after a reply that was sent in this number of bytes."""
        if self._tells_changes and size:
            from_changes(vector, self._known[str(seat)])
        elif self._bfloat16 is not None and size:
            self.send(vector)
        return vector

    def to_tree(self) -> dict[str, Any]:
        """Return everything that changes, for `distkeras_grid.simulation.saved_state.write`."""
        return dict(self._known)

    def restore(self, tree: Mapping[str, Any]) -> None:
        """Continue from what `to_tree` returned."""
        self._known = dict(tree)
