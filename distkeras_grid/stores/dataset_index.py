"""Finds, with Spark, the tiles of a data set of Parquet files and where they are.

One job reads the columns of labels, images and splits, and no pixels. A second one reads
the files' footers and, if there are mirrors, every byte of the feature column for its SHA-256.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np

from distkeras_grid.errors import SchemaError, SplitLeakError
from distkeras_grid.local_sets.tile_index import Numbers, TileIndex
from distkeras_grid.spark.columns import Columns
from distkeras_grid.stores.locations import scheme_of
from distkeras_grid.stores.parquet_footers import find_files
from distkeras_grid.stores.row_runs import SOURCE_COLUMN, find_runs, numbered
from distkeras_grid.stores.tile_store import ParquetStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, eq=False)
class DatasetIndex:
    """A data set, divided into splits."""

    store: ParquetStore  # The tiles and where they are; it is sent to the workers
    # The split of each run of the store's pool; empty strings if the data have no splits
    splits: tuple[str, ...]

    def pool_of(self, split: str) -> TileIndex:
        """Return the tiles of a split; they keep their numbers in the store."""
        mine = np.array([each == split for each in self.splits], np.bool_)
        if not mine.any():
            known = ", ".join(sorted(set(self.splits) - {""})) or "none"
            raise SchemaError(
                f"The data have no split {split!r}. Their splits: {known}. Choose from these "
                "(split and test_split of LocalSets)."
            )
        return self.store.pool.select(mine)


def catalogue(
    frame: DataFrame,
    columns: Columns,
    root: str,
    mirrors: Sequence[str] = (),
) -> DatasetIndex:
    """Return the catalogue of a DataFrame that is read from Parquet files.

    `frame`: the files' rows. They may be filtered or joined, but not moved to other files.
    """
    runs = find_runs(frame, columns)
    file_of, paths = numbered(runs["file"])
    image_of, images = numbered(runs["source"])
    if SOURCE_COLUMN not in frame.columns:
        # Each row is an image of its own.
        image_of, images = np.arange(runs.num_rows), ()
    labels, splits = runs["label"].to_numpy(), tuple(runs["split"].to_pylist())
    _check_sides(image_of, images, splits)
    home = root_of(paths, root) if root else common_folder(paths)
    for location in (home, *mirrors):
        scheme_of(location)
    name = columns.features[0].name
    first = np.unique(file_of, return_index=True)[1]
    sizes = dict(zip(paths, runs["size"].to_numpy()[first].tolist(), strict=True))
    files = find_files(frame.sparkSession, name, home, sizes, hashed=bool(mirrors))
    store = ParquetStore(
        pool=TileIndex.of(runs["tiles"].to_numpy(), image_of, labels, int(labels.max()) + 1),
        field=columns.features[0],
        locations=tuple(mirrors) or (unquote(home),),
        files=tuple(files[path] for path in paths),
        file_of=file_of,
        row_of=runs["row"].to_numpy(),
    )
    return DatasetIndex(store, splits)


def common_folder(files: Sequence[str]) -> str:
    """Return the folder of all files, above the folders that name a value of a column.

    Examples
    --------
    >>> common_folder(["file:///d/shard=0/split=train/a.parquet", "file:///d/shard=0/b.parquet"])
    'file:///d'
    """
    ends = (min(files).split("/")[:-1], max(files).split("/")[:-1])
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*ends, strict=False))
    return "/".join(part for part, _ in itertools.takewhile(lambda pair: "=" not in pair[0], same))


def root_of(files: Sequence[str], path: str) -> str:
    """Return the folder that a path names, as the files below it spell it.

    `path`: the folder as a user gave it, with or without scheme and host.

    Examples
    --------
    >>> root_of(["hdfs://grid:8020/tiles/shard=0/a.parquet"], "hdfs:///tiles/")
    'hdfs://grid:8020/tiles'
    """
    wanted = path.rsplit("://", maxsplit=1)[-1].rstrip("/").rpartition("/")[2]
    folders = files[0].split("/")[:-1]
    places = [place for place, name in enumerate(folders) if unquote(name) == wanted]
    if not places:
        return common_folder(files)
    return "/".join(folders[: places[-1] + 1])


def _check_sides(image_of: Numbers, images: Sequence[str], splits: Sequence[str]) -> None:
    """Refuse images that have tiles in two splits."""
    sides: dict[int, str] = {}
    for image, split in zip(image_of.tolist(), splits, strict=True):
        if sides.setdefault(image, split) != split:
            raise SplitLeakError(
                f"The image {images[image]!r} has tiles in two splits, {sides[image]!r} and "
                f"{split!r}. Divide whole images: see distkeras-grid check-leaks."
            )
