"""Data sets of Parquet files, which workers read one row group at a time.

The store knows where each row group's bytes are, so a worker reads only ranges of the files and
parses each footer once. It travels with a worker's task: some 100 bytes for each image and each
row group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field as hidden
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import SchemaError
from distkeras_grid.feeding.arrays import features_from_arrow
from distkeras_grid.feeding.schema import Field
from distkeras_grid.local_sets.tile_index import Numbers, TileIndex
from distkeras_grid.stores.mirrors import ByteRange, MirrorReader, Mirrors
from distkeras_grid.stores.range_reader import RangeReader

if TYPE_CHECKING:
    import pyarrow as pa

# Number of parsed footers that a reader keeps.
MAX_FOOTERS = 1000


@dataclass(frozen=True)
class ParquetFile:
    """Where the parts of a file are."""

    footer: ByteRange  # The metadata at the end of the file
    groups: tuple[ByteRange, ...]  # The feature column in each row group
    rows: tuple[int, ...]  # Number of rows in each row group


@dataclass(frozen=True, eq=False)
class ParquetStore:
    """A data set of Parquet files; see `distkeras_grid.local_sets.store.TileStore`."""

    pool: TileIndex  # All tiles
    field: Field  # The feature column
    # Folders with the same files; each worker chooses among them
    locations: tuple[str, ...] = hidden(repr=False)
    files: tuple[ParquetFile, ...] = hidden(repr=False)
    # file_of and row_of: The file of each run of the pool, and its first row there, shape
    # ``(runs,)``, int64
    file_of: Numbers = hidden(repr=False)
    row_of: Numbers = hidden(repr=False)

    def open(self, node: int) -> ParquetReader:
        """Return a reader for a node."""
        return ParquetReader(self, Mirrors.of_node(self.locations, node))

    def describe_reading(self, places: Numbers) -> str:
        """Return what a worker reads for some tiles."""
        return f"row groups of {self.bytes_of(places) / 1e6:,.1f} MB"

    def bytes_of(self, places: Numbers) -> int:
        """Return how many bytes of row groups hold some tiles."""
        return sum(
            piece.stop - piece.start
            for file, groups in self.groups_of(places).items()
            for piece in (self.files[file].groups[group] for group in groups)
        )

    def groups_of(self, places: Numbers) -> dict[int, dict[int, tuple[Numbers, Numbers]]]:
        """Return, by file and row group, which tiles are in it and in which of its rows."""
        ordered = np.sort(places)
        runs = self.pool.runs_of(ordered)
        rows = self.row_of[runs] + ordered - self.pool.starts[runs]
        files = self.file_of[runs]
        by_file: dict[int, dict[int, tuple[Numbers, Numbers]]] = {}
        for number in np.unique(files).tolist():
            mine = files == number
            ends = np.cumsum(self.files[number].rows)
            groups = np.searchsorted(ends, rows[mine], side="right")
            starts = ends - self.files[number].rows
            by_file[number] = {
                group: (
                    ordered[mine][groups == group],
                    (rows[mine] - starts[group])[groups == group],
                )
                for group in np.unique(groups).tolist()
            }
        return by_file


class ParquetReader(MirrorReader):
    """Reads tiles of a `ParquetStore`; see `distkeras_grid.local_sets.store.TileReader`."""

    def __init__(self, store: ParquetStore, mirrors: Mirrors) -> None:
        super().__init__(mirrors)
        self._store = store
        self._footers: dict[int, Any] = {}

    def read(self, places: Numbers) -> Iterator[tuple[Numbers, NDArray[Any]]]:
        """Read tiles, one row group at a time."""
        for number, groups in self._store.groups_of(places).items():
            for group, (tiles, rows) in groups.items():
                column = self._column(number, group)
                yield tiles, features_from_arrow(column.take(rows), self._store.field)

    def _column(self, number: int, group: int) -> pa.Array:
        import pyarrow as pa
        import pyarrow.parquet as pq

        file, name = self._store.files[number], self._store.field.name
        if number not in self._footers:
            if len(self._footers) >= MAX_FOOTERS:
                self._footers.pop(next(iter(self._footers)))
            content = self._mirrors.fetch(file.footer)
            self._footers[number] = pq.read_metadata(pa.BufferReader(content))
        metadata, piece = self._footers[number], file.groups[group]
        content = self._mirrors.fetch(piece)
        ranges = RangeReader(partial(part_of, content, piece.start), file.footer.stop)
        stream = pa.PythonFile(ranges, mode="r")
        with pq.ParquetFile(stream, metadata=metadata, pre_buffer=False) as opened:
            leaf = leaf_of(metadata, name)
            table = opened.read_row_group(group, columns=[leaf], use_threads=False)
        column = table.column(0).combine_chunks()
        return column.field("bytes") if pa.types.is_struct(column.type) else column


def part_of(known: bytes, first: int, at: int, count: int) -> bytes:
    """Return a range of a file of which some bytes are known, from position `first`."""
    if at < first or at + count > first + len(known):
        raise SchemaError(
            f"A Parquet file needs the bytes {at} to {at + count}, which its footer does not name "
            "for this column. Write the data set again."
        )
    return known[at - first : at - first + count]


def leaf_of(metadata: Any, name: str) -> str:
    """Return the path of the column that holds a feature: the column, or its field ``bytes``."""
    paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    for path in (name, f"{name}.bytes", f"{name}.list.element"):
        if path in paths:
            return str(path)
    raise SchemaError(
        f"Column {name!r} must hold bytes or an array of numbers. Received: the columns "
        f"{', '.join(paths)}."
    )


def locate(metadata: Any, path: str, size: int, footer_bytes: int, name: str) -> ParquetFile:
    """Return where the parts of a file are, from its footer.

    `size, footer_bytes`: size in bytes of the file, and of its footer with length and magic.
    """
    leaf = leaf_of(metadata, name)
    groups, rows = [], []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunk = next(
            each
            for each in (group.column(place) for place in range(group.num_columns))
            if each.path_in_schema == leaf
        )
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
            start = min(start, chunk.dictionary_page_offset)
        groups.append(ByteRange(path, start, start + chunk.total_compressed_size))
        rows.append(group.num_rows)
    return ParquetFile(ByteRange(path, size - footer_bytes, size), tuple(groups), tuple(rows))
