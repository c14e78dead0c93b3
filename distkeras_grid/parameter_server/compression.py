"""Vectors as fewer bytes, for exchanges over slow links.

``bfloat16`` (Wang and Kanwar, "BFloat16: the secret to high performance on Cloud TPUs", 2019) keeps
the range of float32 and the first eight bits of its precision: half the bytes, and a relative error
of at most 2^-8. That is little for what a window has changed and much for weights that are to be
kept, so rules that send changes or gradients may be compressed (`Rule.sends_changes`), and the
center itself stays float32.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.weights import Vector

COMPRESSIONS = ("bfloat16",)


def check_compression(name: Any) -> str | None:
    """Return the name of a compression; None stays None.

    Raises
    ------
    ConfigurationError
        If there is none of that name.
    """
    if name is not None and name not in COMPRESSIONS:
        raise ConfigurationError(
            f"compression must be one of {', '.join(map(repr, COMPRESSIONS))}, or None, "
            f"{name!r} came in."
        )
    return str(name) if name else None


class Bfloat16:
    """A vector on its way, as bfloat16, rounded to the nearest.

    Parameters
    ----------
    size : int
        Scalars in the vector.

    Examples
    --------
    >>> wire, vector = Bfloat16(2), np.array([1.0, 1.001], np.float32)
    >>> data = wire.pack(vector)
    >>> wire.unpack(vector)
    >>> len(data), vector.tolist()
    (4, [1.0, 1.0])
    """

    def __init__(self, size: int) -> None:
        self._values = np.empty(size, ml_dtypes.bfloat16)

    @property
    def memory(self) -> memoryview:
        """The bytes that travel."""
        return self._values.view(np.uint8).data

    def pack(self, vector: Vector) -> memoryview:
        """Return the bytes of a vector; valid until the next `pack` or receipt."""
        np.copyto(self._values, vector, casting="unsafe")
        return self.memory

    def unpack(self, vector: Vector) -> None:
        """Fill a vector with what `memory` holds."""
        np.copyto(vector, self._values)
