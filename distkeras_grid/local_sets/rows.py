"""The tiles of local sets on a worker: fetched for a window, and held only for that window."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import GridError
from distkeras_grid.feeding.local_file import LocalFile, local_folder
from distkeras_grid.feeding.row_cache import MAPPED_BYTES
from distkeras_grid.feeding.source import Places
from distkeras_grid.local_sets.store import TileReader, TileStore
from distkeras_grid.local_sets.tile_index import Numbers
from distkeras_grid.rows import RowBlock, check_places, take


class LocalRows:
    """All tiles of a data set as a `distkeras_grid.feeding.source.RowSource`, fetched when needed.

    `blocks` fetches the tiles of a window before it returns, each once, into a local file without
    a name. It drops them when the next window comes.

    `seconds`: time spent fetching tiles so far [s].
    """

    def __init__(
        self,
        store: TileStore,
        reader: TileReader,
        folder: Path | None = None,
        mapped_bytes: int = MAPPED_BYTES,
    ) -> None:
        self._store, self._reader = store, reader
        self._folder, self._mapped_bytes = folder or local_folder(), mapped_bytes
        self._file: LocalFile | None = None
        self._numbers: Numbers = np.empty(0, np.int64)
        self._stored: Numbers = np.empty(0, np.int64)
        self.seconds = 0.0

    def __len__(self) -> int:
        """Return the number of tiles in the data set."""
        return self._store.pool.end

    def blocks(self, window: Sequence[Places]) -> Iterator[RowBlock]:
        """Fetch the tiles of a window, and yield them; see `RowSource`."""
        for places in window:
            check_places(places, len(self))
        if window:
            self._fetch(np.unique(np.concatenate([places.ravel() for places in window])))
        return self._blocks(window)

    def close(self) -> None:
        """Drop the tiles that are held. A second call has no effect."""
        if self._file is not None:
            self._file.close()
        self._file, self._numbers = None, np.empty(0, np.int64)

    def _blocks(self, window: Sequence[Places]) -> Iterator[RowBlock]:
        for places in window:
            label = self._store.pool.labels[self._store.pool.runs_of(places.ravel())]
            yield RowBlock(
                x=(self._gathered(places),),
                y=(take(label, np.arange(label.size).reshape(places.shape)),),
            )

    def _gathered(self, places: Places) -> NDArray[Any]:
        wanted, field = places.ravel(), self._store.field
        order = np.searchsorted(self._numbers, wanted)
        hits = order < len(self._numbers)
        hits[hits] = self._numbers[order[hits]] == wanted[hits]
        if self._file is None or not hits.all():
            raise GridError(
                "The tiles of this window have been given up. Ask for its blocks again."
            )
        records = self._file.read_records(self._stored[order], field.nbytes)
        return records.view(field.dtype).reshape(*places.shape, *field.shape)

    def _fetch(self, wanted: Numbers) -> None:
        """Fetch these tiles, sorted by number, in place of those of the former window."""
        if np.array_equal(wanted, self._numbers):
            return
        self.close()
        clock, file = time.perf_counter(), LocalFile(self._folder, self._mapped_bytes)
        stored = np.full(len(wanted), -1, np.int64)
        try:
            count = 0
            for tiles, pixels in self._reader.read(wanted):
                # Pixels of a column of numbers may come in another type than the field's.
                ready = np.ascontiguousarray(pixels, self._store.field.dtype)
                file.write(ready.reshape(-1).view(np.uint8).data)
                stored[np.searchsorted(wanted, tiles)] = np.arange(count, count + len(tiles))
                count += len(tiles)
            file.seal()
        except BaseException:
            file.close()
            raise
        if count != len(wanted) or stored.min() < 0:
            file.close()
            raise GridError(f"{count} of {len(wanted)} tiles came. The data have changed.")
        self._file, self._numbers, self._stored = file, wanted, stored
        self.seconds += time.perf_counter() - clock
