"""The rows of one seat in a local file, for reading in any order in every epoch.

Spark delivers rows once. Features go to a file, labels and weights stay in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from distkeras_grid.errors import NoSpaceError
from distkeras_grid.feeding.arrays import (
    binary_values,
    decode_images,
    features_from_arrow,
    is_binary,
    labels_from_arrow,
    numbers_from_arrow,
)
from distkeras_grid.feeding.local_file import LocalFile, local_folder
from distkeras_grid.feeding.schema import Field

# A larger file is not mapped but read.
MAPPED_BYTES = 64 << 20
# Images decoded at a time when the spool is sealed.
DECODE_ROWS = 64


@dataclass(frozen=True)
class Rows:
    """Some rows of a seat.

    Parameters
    ----------
    features : ndarray
        Shape ``(n, *shape)``, in the type in which they are stored.
    labels : ndarray
        Shape ``(n,)`` or ``(n, k)``.
    weights : ndarray, optional
        Sample weights, shape ``(n,)``, ``float32``.
    """

    features: NDArray[Any]
    labels: NDArray[Any]
    weights: NDArray[np.float32] | None


class Spool:
    """Takes the rows of a seat as they arrive, gives them back by place.

    Use: `append` each batch, `seal`, then `gather` as often as wanted; `close`, or ``with``.

    Parameters
    ----------
    field : Field
        The feature column.
    folder : Path, optional
        Where the file lies; Spark's first local directory if not given.
    mapped_bytes : int, default 64 MiB
        A file up to this size is mapped into memory; see `LocalFile`.

    Attributes
    ----------
    rows : int
        Rows that have come.
    encoded : bool
        Whether the file holds image files, which each `gather` decodes.

    Notes
    -----
    Image files are decoded once, by `seal`, if that takes at most half of the free space: other
    seats of the host want theirs.
    """

    def __init__(
        self, field: Field, folder: Path | None = None, mapped_bytes: int = MAPPED_BYTES
    ) -> None:
        self.rows = 0
        self.encoded = False
        self._field = field
        self._folder = folder or local_folder()
        self._mapped_bytes = mapped_bytes
        self._file = LocalFile(self._folder, mapped_bytes)
        self._numbers: list[NDArray[Any]] = []
        self._labels: list[NDArray[Any]] = []
        self._weights: list[NDArray[Any]] = []
        self._sizes: list[NDArray[Any]] = []
        self._dtype = np.dtype(field.dtype)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def append(self, batch: pa.RecordBatch) -> None:
        """Store the rows of a batch.

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            Columns ``row`` (number of the row in the data set), ``features``, ``label`` and
            perhaps ``weight``.

        Raises
        ------
        SchemaError
            If a column holds what the field does not describe.
        NoSpaceError
            If the disk has no room for the features.
        """
        if batch.num_rows == 0:
            return
        self._numbers.append(numbers_from_arrow(batch.column("row"), "row"))
        self._labels.append(labels_from_arrow(batch.column("label"), "label"))
        if "weight" in batch.schema.names:
            weights = numbers_from_arrow(batch.column("weight"), "weight")
            self._weights.append(weights.astype(np.float32, copy=False))
        self._append_features(batch.column("features"))
        self.rows += batch.num_rows

    def seal(self) -> None:
        """End the writing.

        Place ``i`` is from now on the row with the i-th smallest number, in whatever order they
        came: a task that runs again gets the rows in another order.
        """
        self._file.seal()
        self._order = np.argsort(_joined(self._numbers), kind="stable")
        self._all_labels = _joined(self._labels)
        self._all_weights = _joined(self._weights) if self._weights else None
        self._ends = np.cumsum(_joined(self._sizes))
        for parts in (self._numbers, self._labels, self._weights, self._sizes):
            parts.clear()
        if self.encoded and self.rows * self._field.nbytes <= self._file.free_bytes // 2:
            self._decode()

    def gather(self, indices: NDArray[np.int64]) -> Rows:
        """Return copies of rows.

        Parameters
        ----------
        indices : ndarray
            Places, shape ``(n,)``, each from 0 to ``rows - 1``.
        """
        stored = self._order[indices]
        weights = None if self._all_weights is None else self._all_weights[stored]
        return Rows(self._features(stored), self._all_labels[stored], weights)

    def close(self) -> None:
        """Drop the file; a second call changes nothing."""
        self._file.close()

    def _append_features(self, column: pa.Array) -> None:
        if is_binary(column.type) and self._field.encoding != "raw":
            self.encoded = True
            contents = binary_values(column, self._field.name)
            self._sizes.append(np.array([len(content) for content in contents]))
            self._file.write(b"".join(contents))
            return
        features = features_from_arrow(column, self._field)
        self._dtype = features.dtype
        self._file.write(np.ascontiguousarray(features).data)

    def _decode(self) -> None:
        decoded = LocalFile(self._folder, self._mapped_bytes)
        try:
            for start in range(0, self.rows, DECODE_ROWS):
                stored = np.arange(start, min(start + DECODE_ROWS, self.rows))
                decoded.write(self._features(stored).data)
        except NoSpaceError:
            # Others have taken the space meanwhile: the encoded file serves as well.
            decoded.close()
            return
        decoded.seal()
        self._file.close()
        self._file, self.encoded = decoded, False

    def _features(self, stored: NDArray[np.int64]) -> NDArray[Any]:
        """Return features by their place in the file."""
        if self.encoded:
            stops = self._ends[stored].tolist()
            starts = np.where(stored > 0, self._ends[stored - 1], 0).tolist()
            files = [self._file.read(i, j) for i, j in zip(starts, stops, strict=True)]
            return decode_images(files, self._field)
        size = self._field.size * self._dtype.itemsize
        records = self._file.read_records(stored, size)
        return records.view(self._dtype).reshape(-1, *self._field.shape)


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
