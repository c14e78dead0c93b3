"""Finds where the parts of Parquet files are: Spark tasks read the footers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec

from distkeras_grid.errors import SchemaError
from distkeras_grid.signals import interrupts_first
from distkeras_grid.spark.worker_jobs import job_error, spark_reason
from distkeras_grid.stores.locations import open_location
from distkeras_grid.stores.tile_store import ParquetFile, locate

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

# Most footers fit into this first read; for a longer footer there is a second one.
FOOTER_BYTES = 256 << 10
MAGIC = b"PAR1"


def find_files(
    spark: SparkSession, name: str, home: str, sizes: Mapping[str, int], *, hashed: bool
) -> dict[str, ParquetFile]:
    """Return where the parts of each file are.

    `sizes`: size of each file in bytes, by its full path, quoted.
    `hashed`: whether to read the bytes of the feature column, for their SHA-256.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    tasks = max(1, min(len(sizes), int(spark.sparkContext.defaultParallelism) * 4))
    listed = spark.createDataFrame([*sizes.items()], "file string, size long").repartition(tasks)

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for row in batch.to_pylist():
                path = unquote(row["file"].removeprefix(f"{home}/"))
                parts = look_at(unquote(home), path, row["size"], name, hashed=hashed)
                record = {"file": row["file"], "parts": msgspec.json.encode(parts)}
                yield pa.RecordBatch.from_pylist([record])

    try:
        with interrupts_first():
            rows = listed.mapInArrow(look, "file string, parts binary").collect()
    except (Py4JJavaError, PySparkException) as error:
        master = str(spark.sparkContext.master)
        raise job_error("catalogue", spark_reason(error), master) from error
    return {row["file"]: msgspec.json.decode(row["parts"], type=ParquetFile) for row in rows}


def look_at(home: str, path: str, size: int, name: str, *, hashed: bool) -> ParquetFile:
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
        file = replace(file, footer=replace(file.footer, sha256=_sha256(footer)))
        if hashed:
            groups = (
                replace(piece, sha256=_sha256(location.read(path, piece.start, piece.stop)))
                for piece in file.groups
            )
            file = replace(file, groups=tuple(groups))
        return file
    finally:
        location.close()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
