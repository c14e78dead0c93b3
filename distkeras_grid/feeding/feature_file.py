"""The values of one feature column of a seat, in a local file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from distkeras_grid.errors import NoSpaceError
from distkeras_grid.feeding.arrays import (
    binary_values,
    decode_images,
    features_from_arrow,
    is_binary,
)
from distkeras_grid.feeding.local_file import LocalFile
from distkeras_grid.feeding.schema import Field

# Images decoded at a time when the file is sealed.
DECODE_ROWS = 64


class FeatureFile:
    """Takes the values of a column as they arrive, and returns them by their position.

    Parameters
    ----------
    field : Field
        The column.
    folder : Path
        Folder of the file.
    mapped_bytes : int
        A file up to this size is mapped into memory; see `LocalFile`.

    Attributes
    ----------
    encoded : bool
        Whether the file holds image files, which each `gather` decodes.
    """

    def __init__(self, field: Field, folder: Path, mapped_bytes: int) -> None:
        self.encoded = False
        self._field = field
        self._folder = folder
        self._mapped_bytes = mapped_bytes
        self._file = LocalFile(folder, mapped_bytes)
        self._sizes: list[NDArray[Any]] = []
        self._dtype = np.dtype(field.dtype)

    def append(self, column: pa.Array) -> None:
        """Store the values of a batch.

        Raises
        ------
        SchemaError
            If the column contains values that the field does not describe.
        NoSpaceError
            If the disk has no room for it.
        """
        if is_binary(column.type) and self._field.encoding != "raw":
            self.encoded = True
            contents = binary_values(column, self._field.name)
            self._sizes.append(np.array([len(content) for content in contents]))
            self._file.write(b"".join(contents))
            return
        features = features_from_arrow(column, self._field)
        self._dtype = features.dtype
        self._file.write(np.ascontiguousarray(features).data)

    def seal(self, rows: int) -> None:
        """End the writing, after this number of rows.

        Image files are decoded once, here, if the pixels take at most half of the free space;
        other seats on the host need space, too.
        """
        self._file.seal()
        if not self.encoded:
            return
        self._ends = np.cumsum(np.concatenate(self._sizes))
        self._sizes.clear()
        if rows * self._field.nbytes <= self._file.free_bytes // 2:
            self._decode(rows)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values that `gather` returns."""
        return self._dtype

    def gather(self, stored: NDArray[np.int64]) -> NDArray[Any]:
        """Return copies of values by their position in the file, shape ``(n, *field.shape)``."""
        if self.encoded:
            stops = self._ends[stored].tolist()
            starts = np.where(stored > 0, self._ends[stored - 1], 0).tolist()
            files = [self._file.read(i, j) for i, j in zip(starts, stops, strict=True)]
            return decode_images(files, self._field)
        size = self._field.size * self._dtype.itemsize
        records = self._file.read_records(stored, size)
        return records.view(self._dtype).reshape(-1, *self._field.shape)

    def close(self) -> None:
        """Delete the file. A second call has no effect."""
        self._file.close()

    def _decode(self, rows: int) -> None:
        decoded = LocalFile(self._folder, self._mapped_bytes)
        try:
            for start in range(0, rows, DECODE_ROWS):
                stored = np.arange(start, min(start + DECODE_ROWS, rows))
                decoded.write(self.gather(stored).data)
        except NoSpaceError:
            # Another process has taken the space. The encoded file can be used, too.
            decoded.close()
            return
        decoded.seal()
        self._file.close()
        self._file, self.encoded = decoded, False
