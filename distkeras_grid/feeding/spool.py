"""The rows of one seat in local files, which can be read in any order in every epoch.

Spark delivers rows once. Features are written to files; labels and weights stay in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from distkeras_grid.feeding.arrays import labels_from_arrow, numbers_from_arrow
from distkeras_grid.feeding.feature_file import FeatureFile
from distkeras_grid.feeding.local_file import local_folder
from distkeras_grid.feeding.row_digest import RowDigest, hashes_of
from distkeras_grid.feeding.schema import Field
from distkeras_grid.feeding.source import Places
from distkeras_grid.rows import Block, check_places, take

# A larger file is read, not mapped.
MAPPED_BYTES = 64 << 20

# Names of the columns that are sent; features and labels have one for each input or output.
ROW, WEIGHT = "row", "weight"
FEATURES, LABEL = "features_{}", "label_{}"


class Spool:
    """Takes the rows of a seat as they arrive, and is a `Source` of them when all are there.

    Call `append` for each batch, then `seal`, then `blocks` as often as wanted. Call `close` at
    the end, or use ``with``.

    Parameters
    ----------
    fields : sequence of Field
        The feature columns.
    labels : sequence of str
        Names of the label columns, for errors.
    folder : Path, optional
        Folder of the files; by default Spark's first local directory.
    mapped_bytes : int, default 64 MiB
        A file up to this size is mapped into memory; see `LocalFile`.

    Attributes
    ----------
    fields : tuple of Field
        The feature columns; once sealed, with the types in which they came.
    label_names : tuple of str
        Names of the label columns.
    """

    def __init__(
        self,
        fields: Sequence[Field],
        labels: Sequence[str],
        folder: Path | None = None,
        mapped_bytes: int = MAPPED_BYTES,
    ) -> None:
        self.fields = tuple(fields)
        self.label_names = tuple(labels)
        self._rows = 0
        self._order: Places = np.empty(0, np.int64)
        self._all_labels: list[NDArray[Any]] = []
        self._all_weights: NDArray[Any] | None = None
        self._numbers: list[NDArray[Any]] = []
        self._labels: list[list[NDArray[Any]]] = [[] for _ in labels]
        self._weights: list[NDArray[Any]] = []
        self._digest = RowDigest()
        folder = folder or local_folder()
        self._files = [FeatureFile(field, folder, mapped_bytes) for field in fields]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def weighted(self) -> bool:
        """Whether rows have sample weights."""
        return self._all_weights is not None

    @property
    def digest(self) -> str:
        """Digest of the rows that have come, whatever their order; 16 hexadecimal digits."""
        return self._digest.hexdigest()

    def __len__(self) -> int:
        """Rows that have come."""
        return self._rows

    def append(self, batch: pa.RecordBatch) -> None:
        """Store the rows of a batch.

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            Columns ``row`` (number of the row in the data set), ``features_0``, ``features_1`` and
            so on, ``label_0`` and so on, and optionally ``weight``.

        Raises
        ------
        SchemaError
            If a column contains values that its field does not describe.
        NoSpaceError
            If the disk has no room for the features.
        """
        if batch.num_rows == 0:
            return
        # What is kept is copied. All columns of a batch come in one allocation, so that a view of
        # the smallest of them would keep the features in memory, too.
        self._numbers.append(numbers_from_arrow(batch.column(ROW), ROW).copy())
        hashes = []
        for place, (name, parts) in enumerate(zip(self.label_names, self._labels, strict=True)):
            parts.append(labels_from_arrow(batch.column(LABEL.format(place)), name).copy())
            hashes.append(hashes_of(parts[-1]))
        if WEIGHT in batch.schema.names:
            weights = numbers_from_arrow(batch.column(WEIGHT), WEIGHT)
            self._weights.append(weights.astype(np.float32))
            hashes.append(hashes_of(self._weights[-1]))
        for place, file in enumerate(self._files):
            hashes.append(file.append(batch.column(FEATURES.format(place))))
        self._digest.add(self._numbers[-1], hashes)
        self._rows += batch.num_rows

    def seal(self) -> None:
        """End the writing.

        From now on position ``i`` is the row with the i-th smallest number. The order in which
        rows arrive does not matter, because it differs when a task runs again.
        """
        self._order = np.argsort(_joined(self._numbers), kind="stable")
        self._all_labels = [_joined(parts) for parts in self._labels]
        self._all_weights = _joined(self._weights) if self._weights else None
        for parts in (self._numbers, *self._labels, self._weights):
            parts.clear()
        for file in self._files:
            file.seal(self._rows)
        if self._rows:
            self.fields = tuple(
                replace(field, dtype=file.dtype.name)
                for field, file in zip(self.fields, self._files, strict=True)
            )

    def blocks(self, window: Sequence[Places]) -> Iterator[Block]:
        """Yield the rows of a window; see `Source`."""
        for places in window:
            check_places(places, len(self._order))
            stored = self._order[places]
            weights = self._all_weights
            yield Block(
                x=tuple(self._gathered(number, stored) for number in range(len(self._files))),
                y=tuple(take(labels, stored) for labels in self._all_labels),
                weight=None if weights is None else take(weights, stored),
            )

    def close(self) -> None:
        """Delete the files. A second call has no effect."""
        for file in self._files:
            file.close()

    def _gathered(self, number: int, stored: Places) -> NDArray[Any]:
        features = self._files[number].gather(stored.ravel())
        return features.reshape(*stored.shape, *self.fields[number].shape)


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
