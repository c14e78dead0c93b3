"""The state that a worker needs besides the center to go on, and its form as bytes.

The server and the checkpoints keep the bytes. Types and shapes are checked before a returned state
is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distkeras_grid.array_tree import Packed, as_array, pack, unpack
from distkeras_grid.errors import DataError
from distkeras_grid.field_types import Count


class WorkerState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state between two windows that only the worker has."""

    # The weights from which its next window starts, shape ``(layout.size,)``
    before: np.ndarray[Any, Any]
    offset: Count  # Number of batches of earlier attempts, for the schedules of its optimizer
    # What compression has not sent yet, by the names of `Accumulator`
    residuals: dict[str, np.ndarray[Any, Any]] | None
    # The engine's state: optimizer, counters, random generators
    engine: dict[str, np.ndarray[Any, Any]]

    def to_bytes(self) -> Packed:
        """Return the state as one buffer."""
        return pack(msgspec.structs.asdict(self))

    @classmethod
    def from_bytes(cls, data: Packed) -> WorkerState:
        """Read what `to_bytes` returned."""
        try:
            return msgspec.convert(unpack(data), cls, dec_hook=as_array)
        except msgspec.ValidationError as error:
            raise DataError(f"This is not a worker's state: {error}.") from error


def copy_checked(target: Mapping[str, NDArray[Any]], source: Mapping[str, NDArray[Any]]) -> None:
    """Copy arrays into those of the same names."""
    check_same(target, source)
    for name, array in target.items():
        np.copyto(array, source[name])


def check_same(wanted: Mapping[str, NDArray[Any]], other: Mapping[str, NDArray[Any]]) -> None:
    """Refuse arrays whose names, shapes or types differ from those of other arrays."""
    due, received = _described(wanted), _described(other)
    if due != received:
        raise DataError(f"A worker's state has {due}. Received: {received}.")


def _described(arrays: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    return {name: f"{array.dtype}{array.shape}" for name, array in sorted(arrays.items())}
