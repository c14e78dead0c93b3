"""Vectors of exchanges on their way in simulated time: what arrives of them, and their bytes."""

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
    """What the connections of a run know of their vectors, without a connection.

    Parameters
    ----------
    compression : "bfloat16" or DeepGradientCompression, optional
        How exchanges are compressed.
    size : int
        Scalars in a vector.
    rule : Rule
        Says what the server replies.

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
        # What seats know of the center, where replies tell only what has changed.
        self._known: dict[str, Vector] = {}

    def send(self, vector: Vector) -> int:
        """Make of a vector what arrives of it; return the bytes by which it travels."""
        if self._bfloat16 is not None:
            self._bfloat16.pack(vector)
            self._bfloat16.unpack(vector)
            return 2 * vector.size
        return sparse_bytes(vector) if self._sparse else 4 * vector.size

    def greet(self, seat: int, center: Vector) -> Vector:
        """Return the center that a seat starts from; it travels whole."""
        if self._tells_changes:
            self._known[str(seat)] = center.copy()
        return center

    def receive(self, seat: int, vector: Vector, size: int) -> Vector:
        """Return what a seat makes of a reply that travelled by so many bytes."""
        if self._tells_changes and size:
            from_changes(vector, self._known[str(seat)])
        elif self._bfloat16 is not None and size:
            self.send(vector)
        return vector

    def to_tree(self) -> dict[str, Any]:
        """Return all that changes, for `distkeras_grid.simulation.saved_state.write`."""
        return dict(self._known)

    def restore(self, tree: Mapping[str, Any]) -> None:
        """Go on from what `to_tree` returned."""
        self._known = dict(tree)
