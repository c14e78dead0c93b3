"""The values of one feature or label column of a seat, in a local file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from distkeras_grid.errors import NoSpaceError
from distkeras_grid.feeding.arrays import (
    binary_values,
    features_from_arrow,
    is_binary,
)
from distkeras_grid.feeding.encodings import ENCODED, decode
from distkeras_grid.feeding.local_file import LocalFile
from distkeras_grid.feeding.schema import Field

# Values decoded at a time when the file is sealed, and how many bytes of them where neighbours
# are decoded faster together.
DECODE_ROWS = 64
DECODE_BYTES = 32 << 20


class FeatureFile:
    """Takes the values of a column as they arrive, and returns them by their position."""

    def __init__(self, field: Field, folder: Path, mapped_bytes: int) -> None:
        self.encoded = False
        self._field = field
        self._folder = folder
        self._mapped_bytes = mapped_bytes
        self._file = LocalFile(folder, mapped_bytes)
        self._sizes: list[NDArray[Any]] = []
        self._dtype = np.dtype(field.dtype)
        # Where the decoded values lie, by the places at which the encoded ones came.
        self._moved: NDArray[np.int64] | None = None

    def append(self, column: pa.Array) -> None:
        """Store the values of a batch."""
        if is_binary(column.type) and self._stays_encoded:
            self.encoded = True
            contents = binary_values(column, self._field.name)
            self._sizes.append(np.array([len(content) for content in contents]))
            self._file.write(b"".join(contents))
            return
        features = features_from_arrow(column, self._field)
        self._dtype = features.dtype
        self._file.write(np.ascontiguousarray(features).data)

    @property
    def _stays_encoded(self) -> bool:
        encoding = self._field.encoding
        return encoding in ENCODED and not ENCODED[encoding].same_size

    def seal(self, rows: int) -> None:
        """End the writing, after this number of rows.

        Encoded values are decoded once, here, if they take at most half of the free space then;
        other seats on the host need space, too.
        """
        self._file.seal()
        if not self.encoded:
            return
        self._ends = np.cumsum(np.concatenate(self._sizes))
        self._sizes.clear()
        if rows * self._field.nbytes <= self._file.free_bytes // 2:
            self._decode(rows)

    def gather(self, stored: NDArray[np.int64]) -> NDArray[Any]:
        """Return copies of values by their position, shape ``(*stored.shape, *field.shape)``."""
        places, shape = stored.ravel(), (*stored.shape, *self._field.shape)
        if self.encoded:
            stops = self._ends[places].tolist()
            starts = np.where(places > 0, self._ends[places - 1], 0).tolist()
            files = [self._file.read(i, j) for i, j in zip(starts, stops, strict=True)]
            return decode(files, self._field).reshape(shape)
        if self._moved is not None:
            places = self._moved[places]
        records = self._file.read_records(places, self._field.size * self._dtype.itemsize)
        return records.view(self._dtype).reshape(shape)

    def close(self) -> None:
        """Delete the file. A second call has no effect."""
        self._file.close()

    def _decode(self, rows: int) -> None:
        decoded = LocalFile(self._folder, self._mapped_bytes)
        order, count = np.arange(rows), DECODE_ROWS
        if ENCODED[self._field.encoding].grouped:
            order = self._sorted_by_content(rows)
            count = max(count, DECODE_BYTES // self._field.nbytes)
        try:
            for start in range(0, rows, count):
                decoded.write(self.gather(order[start : start + count]).data)
            decoded.seal()
        except NoSpaceError:
            # Another process has taken the space. The encoded file can be used, too.
            decoded.close()
            return
        self._file.close()
        self._file, self.encoded = decoded, False
        self._moved = np.empty(rows, np.int64)
        self._moved[order] = np.arange(rows)

    def _sorted_by_content(self, rows: int) -> NDArray[np.int64]:
        """Return the places of all encoded values in the order of their bytes."""
        ends = np.concatenate([np.zeros(1, np.int64), self._ends])
        contents = self._file.read(0, int(ends[-1]))
        column = pa.Array.from_buffers(
            pa.large_binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(contents)]
        )
        order: NDArray[np.int64] = pc.array_sort_indices(column).to_numpy().astype(np.int64)
        return order
