"""The rows of one seat in local files, which can be read in any order in every epoch.

Spark delivers rows once. Features and labels are written to files; weights stay in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from distkeras_grid.feeding.arrays import numbers_from_arrow
from distkeras_grid.feeding.feature_file import FeatureFile
from distkeras_grid.feeding.local_file import local_folder
from distkeras_grid.feeding.schema import Field
from distkeras_grid.feeding.source import Places
from distkeras_grid.rows import RowBlock, check_places, take

# A larger file is read, not mapped.
MAPPED_BYTES = 64 << 20

# Names of the columns that are sent. `HASH` is that of all others, which Spark computes.
ROW, WEIGHT, HASH = "row", "weight", "hash"


def sent_names(
    fields: Sequence[Field], labels: Sequence[Field]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the columns that are sent, of features and of labels.

    A label that is one of the features is sent once.

    Examples
    --------
    >>> image, kind = Field("image", (8, 8, 1)), Field("kind", (), "int64")
    >>> sent_names([image], [image, kind])
    (('features_0',), ('features_0', 'label_1'))
    """
    features = tuple(f"features_{place}" for place in range(len(fields)))
    return features, tuple(
        features[list(fields).index(label)] if label in fields else f"label_{place}"
        for place, label in enumerate(labels)
    )


class RowCache:
    """Takes the rows of a seat as they arrive, and is a `RowSource` of them when all are there.

    Call `append` for each batch, then `seal`, then `blocks` as often as wanted. Call `close` at
    the end, or use ``with``.
    """

    def __init__(
        self,
        fields: Sequence[Field],
        labels: Sequence[Field],
        folder: Path | None = None,
        mapped_bytes: int = MAPPED_BYTES,
    ) -> None:
        self._rows = 0
        self._order: Places = np.empty(0, np.int64)
        self._all_weights: NDArray[Any] | None = None
        self._numbers: list[NDArray[Any]] = []
        self._weights: list[NDArray[Any]] = []
        self._hashes = 0
        folder = folder or local_folder()
        self._sent = sent_names(fields, labels)
        described = zip(chain(*self._sent), (*fields, *labels), strict=True)
        self._files = {
            name: FeatureFile(field, folder, mapped_bytes)
            for name, field in dict(described).items()
        }

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
    def digest(self) -> str:
        """Digest of the rows that have come, 16 hexadecimal digits.

        It is the sum of their hashes, as they come in another order in each attempt. It shows rows
        that were numbered anew, and files that were changed.
        """
        return f"{self._hashes:016x}"

    def __len__(self) -> int:
        """Rows that have come."""
        return self._rows

    def append(self, batch: pa.RecordBatch) -> None:
        """Store the rows of a batch."""
        if batch.num_rows == 0:
            return
        # What is kept is copied. All columns of a batch come in one allocation, so that a view of
        # the smallest of them would keep the features in memory, too.
        self._numbers.append(numbers_from_arrow(batch.column(ROW), ROW).copy())
        for name, file in self._files.items():
            file.append(batch.column(name))
        if WEIGHT in batch.schema.names:
            weights = numbers_from_arrow(batch.column(WEIGHT), WEIGHT)
            self._weights.append(weights.astype(np.float32))
        hashes = numbers_from_arrow(batch.column(HASH), HASH).view(np.uint64)
        self._hashes = (self._hashes + int(hashes.sum(dtype=np.uint64))) % 2**64
        self._rows += batch.num_rows

    def seal(self) -> None:
        """End the writing.

        From now on position ``i`` is the row with the i-th smallest number. The order in which
        rows arrive does not matter, because it differs when a task runs again.
        """
        self._order = np.argsort(_joined(self._numbers), kind="stable")
        self._all_weights = _joined(self._weights) if self._weights else None
        for parts in (self._numbers, self._weights):
            parts.clear()
        for file in self._files.values():
            file.seal(self._rows)

    def blocks(self, window: Sequence[Places]) -> Iterator[RowBlock]:
        """Yield the rows of a window; see `RowSource`."""
        for places in window:
            check_places(places, len(self._order))
            yield self._block(self._order[places])

    def close(self) -> None:
        """Delete the files. A second call has no effect."""
        for file in self._files.values():
            file.close()

    def _block(self, stored: Places) -> RowBlock:
        arrays = {name: file.gather(stored) for name, file in self._files.items()}
        x, y = (tuple(arrays[name] for name in names) for names in self._sent)
        weights = self._all_weights
        return RowBlock(x, y, None if weights is None else take(weights, stored))


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
