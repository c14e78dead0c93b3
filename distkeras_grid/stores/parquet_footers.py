"""Finds where the parts of Parquet files are: Spark tasks read the footers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from distkeras_grid.errors import SchemaError
from distkeras_grid.signals import interrupts_first
from distkeras_grid.spark.worker_jobs import job_error, spark_reason
from distkeras_grid.stores.locations import open_location
from distkeras_grid.stores.mirrors import ByteRange
from distkeras_grid.stores.tile_store import ParquetFile, locate

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

# Most footers fit into this first read; for a longer footer there is a second one.
FOOTER_BYTES = 256 << 10
MAGIC = b"PAR1"
_FILES = (
    "file string, footer_bytes long, footer_sha256 string, "
    "starts array<long>, stops array<long>, rows array<long>, sha256s array<string>"
)


def find_files(
    spark: SparkSession, name: str, home: str, sizes: Mapping[str, int], *, hashed: bool
) -> dict[str, ParquetFile]:
    """Return where the parts of each file are.

    `sizes`: size of each file in bytes, by its full path, quoted.
    `hashed`: whether to read the bytes of the feature column, for their SHA-256.
    """
    from pyspark.errors import PySparkException

    tasks = max(1, min(len(sizes), int(spark.sparkContext.defaultParallelism) * 4))
    listed = spark.createDataFrame([*sizes.items()], "file string, size long").repartition(tasks)

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for row in batch.to_pylist():
                path = unquote(row["file"].removeprefix(f"{home}/"))
                footer = look_at(unquote(home), path, row["size"], name, hashed=hashed)
                yield pa.RecordBatch.from_pylist([{"file": row["file"], **footer}])

    try:
        with interrupts_first():
            rows = listed.mapInArrow(look, _FILES).collect()
    except PySparkException as error:
        master = str(spark.sparkContext.master)
        raise job_error("catalogue", spark_reason(error), master) from error
    footers = {row["file"]: row for row in rows}
    return {
        file: file_of(footers[file], unquote(file.removeprefix(f"{home}/")), size)
        for file, size in sizes.items()
    }


def look_at(home: str, path: str, size: int, name: str, *, hashed: bool) -> dict[str, Any]:
    """Read a file's footer and return where its parts are; a Spark task calls this.

    `size`: size of the file in bytes.
    `hashed`: whether to read the bytes of the feature column, for their SHA-256.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    location = open_location(home)
    try:
        content = location.read(path, max(0, size - FOOTER_BYTES), size)
        footer_bytes = int.from_bytes(content[-8:-4], "little") + 8
        if content[-4:] != MAGIC or footer_bytes > size:
            raise SchemaError(f"{path} is not a Parquet file: it does not end as one.")
        if footer_bytes > len(content):
            content = location.read(path, size - footer_bytes, size)
        footer = content[-footer_bytes:]
        try:
            metadata = pq.read_metadata(pa.BufferReader(footer))
        except pa.ArrowInvalid as error:
            raise SchemaError(f"{path} is not a Parquet file: {error}.") from error
        file = locate(metadata, path, size, footer_bytes, name)
        digests = [
            hashlib.sha256(location.read(path, piece.start, piece.stop)).hexdigest()
            if hashed
            else ""
            for piece in file.groups
        ]
    finally:
        location.close()
    return {
        "footer_bytes": footer_bytes,
        "footer_sha256": hashlib.sha256(footer).hexdigest(),
        "starts": [piece.start for piece in file.groups],
        "stops": [piece.stop for piece in file.groups],
        "rows": list(file.rows),
        "sha256s": digests,
    }


def file_of(row: Any, path: str, size: int) -> ParquetFile:
    """Build a `ParquetFile` from what `look_at` returned."""
    footer = ByteRange(path, size - row["footer_bytes"], size, row["footer_sha256"])
    parts = zip(row["starts"], row["stops"], row["sha256s"], strict=True)
    groups = tuple(ByteRange(path, start, stop, digest) for start, stop, digest in parts)
    return ParquetFile(footer, groups, tuple(row["rows"]))
