"""Vectors of exchanges on their way in simulated time: through the codec, without a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distkeras_grid.parameter_server.compression import build_wire

if TYPE_CHECKING:
    from distkeras_grid.spec import CompressionName
    from distkeras_grid.weights import Vector


class SimulatedWire:
    """Carries vectors in the form in which they travel."""

    def __init__(self, compression: CompressionName | None, size: int) -> None:
        self._wire = build_wire(compression, size) if compression else None

    def carry(self, vector: Vector) -> int:
        """Make of a vector what arrives of it; return the bytes by which it travels."""
        if self._wire is None:
            return 4 * vector.size
        sent = self._wire.pack(vector).tobytes()
        self._wire.place(len(sent), vector)[:] = sent
        self._wire.unpack(vector)
        return len(sent)
