"""Rows per second from Parquet into NumPy: our way beside rows of ML vectors and pyarrow alone.

60,000 rows of 784 numbers, two tasks. Each Spark figure holds the cost of one job (0.1 to 0.3 s),
so the fast ways are quicker than they look.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from distkeras_grid.feeding.arrays import features_from_arrow
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.session import build_session

ROWS, NUMBERS, TASKS, RUNS = 60_000, 784, 2, 2
FIELD = Field("features", (NUMBERS,))


def write_data(folder: Path, spark) -> None:
    """Write the rows as bytes, as lists of floats and as ML vectors."""
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    values = np.random.default_rng(0).integers(0, 256, (ROWS, NUMBERS), dtype=np.uint8)
    numbers = pa.array(range(ROWS))
    for part in range(TASKS):
        rows = slice(part, None, TASKS)
        table = {"row": numbers[rows], "label_0": numbers[rows]}
        contents = pa.array([value.tobytes() for value in values[rows]])
        lists = pa.FixedSizeListArray.from_arrays(
            values[rows].astype(np.float32).ravel(), NUMBERS
        ).cast(pa.list_(pa.float32()))
        for kind, column in (("bytes", contents), ("floats", lists)):
            (folder / kind).mkdir(exist_ok=True)
            pq.write_table(
                pa.table({**table, "features_0": column}), folder / kind / f"{part}.parquet"
            )
    floats = spark.read.parquet(str(folder / "floats"))
    vectors = floats.withColumn(
        "features_0", array_to_vector(F.col("features_0").cast("array<double>"))
    )
    vectors.write.parquet(str(folder / "vectors"))


def read_vectors(spark, folder: Path) -> int:
    """Rows of ML vectors, as dist-keras reads them."""

    # Functions inside functions travel to the tasks whole, whatever the tasks can import.
    def count(rows: Iterator) -> Iterator[int]:
        import numpy as np

        yield int(np.stack([row.features_0.toArray() for row in rows]).shape[0])

    return sum(spark.read.parquet(str(folder / "vectors")).rdd.mapPartitions(count).collect())


def read_arrow(kind: str, field: Field, spool: bool = False) -> Callable[..., int]:
    """Arrow batches as arrays, or on to the spool and back once in random order."""

    def read(spark, folder: Path) -> int:
        def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            from distkeras_grid.feeding.arrays import features_from_arrow

            rows = sum(len(features_from_arrow(b.column("features_0"), field)) for b in batches)
            yield pa.RecordBatch.from_pydict({"rows": pa.array([rows])})

        def store(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import numpy as np
            import pyarrow as pa

            from distkeras_grid.feeding.row_cache import RowCache

            with RowCache((field,), (Field("label", (), "int64"),)) as rows:
                for batch in batches:
                    rows.append(batch)
                rows.seal()
                order = np.random.default_rng(0).permutation(len(rows))
                for places in np.array_split(order[:, np.newaxis], 100):
                    next(rows.blocks([places]))
                yield pa.RecordBatch.from_pydict({"rows": pa.array([len(rows)])})

        frame = spark.read.parquet(str(folder / kind))
        counts = frame.mapInArrow(store if spool else count, "rows long").collect()
        return sum(row.rows for row in counts)

    return read


def read_alone(_, folder: Path) -> int:
    """Pyarrow without Spark, one process."""
    return sum(
        len(features_from_arrow(batch.column("features_0"), FIELD))
        for part in sorted((folder / "bytes").iterdir())
        for batch in pq.ParquetFile(part).iter_batches(10_000)
    )


WAYS: dict[str, Callable[..., int]] = {
    "Spark rows of ML vectors": read_vectors,
    "mapInArrow, array<float>": read_arrow("floats", Field("features", (NUMBERS,), "float32")),
    "mapInArrow, binary uint8": read_arrow("bytes", FIELD),
    "  the same, spooled and shuffled": read_arrow("bytes", FIELD, spool=True),
    "pyarrow alone, binary uint8": read_alone,
}


def main() -> None:
    """Print the table."""
    spark = build_session("feeding", master=f"local[{TASKS}]")
    print(f"{ROWS:,} rows of {NUMBERS} numbers, {TASKS} tasks, best of {RUNS} after one")
    print(f"{'way':<34}{'rows/s':>10}{'times':>8}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder, spark)
        slowest = 0.0
        for way, read in WAYS.items():
            times = []
            for _ in range(RUNS + 1):
                began = time.perf_counter()
                rows = read(spark, folder)
                times.append(time.perf_counter() - began)
                if rows != ROWS:
                    raise SystemExit(f"{way}: {rows} rows instead of {ROWS}")
            seconds = min(times[1:])
            slowest = slowest or seconds
            print(f"{way:<34}{ROWS / seconds:>10,.0f}{slowest / seconds:>8.1f}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
