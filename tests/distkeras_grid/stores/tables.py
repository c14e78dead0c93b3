"""Data sets of Parquet files for tests, written without Spark, and their stores."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from distkeras_grid.feeding.schema import Field
from distkeras_grid.local_sets.tile_index import TileIndex
from distkeras_grid.stores.parquet_footers import look_at
from distkeras_grid.stores.tile_store import ParquetStore

IMAGES, EACH, CLASSES = 6, 20, 3
FIELD = Field("image", (6, 5, 1), scale=1 / 255)


#: All tiles in their order.
PIXELS = np.random.default_rng(0).integers(0, 256, (IMAGES * EACH, *FIELD.shape), np.uint8)


def write_tiles(folder: Path, encoding="raw"):
    """Write the tiles to two files of small row groups; return the folder."""
    if encoding == "raw":
        values = [tile.tobytes() for tile in PIXELS]
        column = pa.array(values, pa.binary())
    else:
        values = [cv2.imencode(".png", tile)[1].tobytes() for tile in PIXELS]
        column = pa.array([{"bytes": value, "path": "x"} for value in values])
    other = pa.array(range(len(PIXELS)))
    half = len(PIXELS) // 2
    for number in range(2):
        part = slice(number * half, (number + 1) * half)
        table = pa.table({"number": other[part], "image": column[part]})
        pq.write_table(table, folder / f"part {number}.parquet", row_group_size=7)
    return folder


def store_of(folder: Path, locations=(), encoding="raw"):
    """Return the store of what `write_tiles` wrote."""
    field = FIELD if encoding == "raw" else Field("image", FIELD.shape, encoding="png")
    files = []
    for name in ("part 0.parquet", "part 1.parquet"):
        size = (folder / name).stat().st_size
        files.append(look_at(str(folder), name, size, "image", hashed=True))
    runs = np.arange(IMAGES)
    return ParquetStore(
        TileIndex.of([EACH] * IMAGES, runs, runs % CLASSES, CLASSES),
        field,
        tuple(locations) or (str(folder),),
        tuple(files),
        runs // (IMAGES // 2),
        runs % (IMAGES // 2) * EACH,
    )
