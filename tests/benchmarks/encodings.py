"""Bytes per tile in each lossless encoding, beside PNG, and what reading them costs.

``python -m tests.benchmarks.encodings [FOLDER ...]`` tiles a few images of each folder by the job,
in colour where they have it and in gray; by default the sample micrographs. PNG is written by
Pillow at level 6, for tiles that are drawn at random. Reading is from Parquet files in the page
cache into NumPy: by pyarrow on one core, and by two Spark tasks into the workers' local files, as
in the first epoch of a training. Later epochs read the local file, which holds pixels whatever the
encoding was. The encodings take turns, and times are those of the processor, of all processes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from data_prep import TileSpec, TilingSettings, update_tiles
from data_prep.dataset.schema import IMAGE_COLUMN
from distkeras_grid.feeding.arrays import features_from_arrow
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.session import build_session
from tests.benchmarks.scale import measuring

SAMPLES = Path(__file__).parents[2] / "data_prep" / "samples"
SUFFIXES = (".png", ".jpg", ".tif", ".tiff")
ENCODINGS = ("raw", "difference")
SPEC = TileSpec(angles=range(0, 360, 15))
# An image smaller than two tiles is cut into small ones.
SMALL = TileSpec(128, angles=SPEC.angles)
PNG_TILES = 200
# Tiles that Spark reads at a time, as for a training.
ROWS = 256
RUNS = 3


def link(folder: Path, count: int, target: Path) -> bool:
    """Link every so many images of a folder; return whether they have colours."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    chosen = paths[:: max(1, len(paths) // count)][:count]
    (target / "images").mkdir(parents=True)
    for number, path in enumerate(chosen):
        (target / "images" / f"{number}-{path.name}").symlink_to(path.resolve())
    pixels = cv2.imread(str(chosen[0]), cv2.IMREAD_UNCHANGED)
    return pixels.ndim == 3 and bool((pixels[..., 0] != pixels[..., 1]).any())


def tile(spark: Any, root: Path, encoding: str, channels: int, spec: TileSpec) -> list[Path]:
    """Tile the images; return the files."""
    output = root / f"{encoding}-{channels}"
    settings = TilingSettings(
        *(str(root), str(output), spec),
        encoding=encoding,
        channels=str(channels),
        split="1",
        near_duplicates="off",
    )
    update_tiles(settings, spark=spark, say=lambda _: None)
    return sorted(output.glob("shard=*/split=*/*.parquet"))


def fields_of(spark: Any, files: list[Path]) -> Field:
    """Return the description of the image column."""
    column = spark.read.parquet(*map(str, files)).schema[IMAGE_COLUMN]
    return Field.from_metadata(IMAGE_COLUMN, column.metadata)


def png_bytes(files: list[Path], field: Field) -> float:
    """Return the mean bytes of a tile as PNG, of tiles drawn from the whole data set."""
    column = pa.concat_arrays(
        [
            chunk
            for file in files
            for chunk in pq.read_table(file, columns=[IMAGE_COLUMN]).column(0).chunks
        ]
    )
    drawn = np.random.default_rng(0).permutation(len(column))[:PNG_TILES]
    sizes = []
    for pixels in features_from_arrow(column.take(pa.array(drawn)), field):
        stream = BytesIO()
        Image.fromarray(pixels.squeeze()).save(stream, "PNG", compress_level=6)
        sizes.append(stream.tell())
    return statistics.mean(sizes)


def read_alone(files: list[Path], field: Field) -> int:
    """Read by pyarrow, one thread, to arrays."""
    return sum(
        len(features_from_arrow(batch.column(0), field))
        for file in files
        for batch in pq.ParquetFile(file).iter_batches(
            ROWS, columns=[IMAGE_COLUMN], use_threads=False
        )
    )


def spool(spark: Any, files: list[Path], field: Field) -> int:
    """Read by two Spark tasks into the local files of two workers."""

    # Functions inside functions travel to the tasks whole, whatever the tasks can import.
    def store(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from distkeras_grid.feeding.row_cache import RowCache

        with RowCache((field,), (Field("label", (), "int64"),)) as rows:
            count = 0
            for batch in batches:
                numbers = pa.array(range(count, count + batch.num_rows))
                columns = [numbers, batch.column(0), batch.column(1)]
                names = ["row", "features_0", "label_0"]
                rows.append(pa.RecordBatch.from_arrays(columns, names))
                count += batch.num_rows
            rows.seal()
            yield pa.RecordBatch.from_pydict({"rows": pa.array([count])})

    frame = spark.read.parquet(*map(str, files)).select(IMAGE_COLUMN, "label")
    return sum(row.rows for row in frame.mapInArrow(store, "rows long").collect())


def rates(ways: dict[str, Callable[[], int]]) -> dict[str, list[float]]:
    """Return tiles per second of the processor; the ways take turns, after one run each."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(RUNS + 1):
        for name, way in ways.items():
            with measuring() as cost:
                count = way()
            if run:
                # The time of the processor comes in steps of 10 ms.
                found[name].append(count / max(cost.processor, 0.01))
    return found


def measure(spark: Any, root: Path, name: str, channels: int, spec: TileSpec) -> None:
    """Measure one folder, in gray or in colour, and print."""
    files = {each: tile(spark, root, each, channels, spec) for each in ENCODINGS}
    fields = {each: fields_of(spark, files[each]) for each in ENCODINGS}
    counts = {
        each: sum(pq.read_metadata(file).num_rows for file in files[each]) for each in ENCODINGS
    }
    png = png_bytes(files["raw"], fields["raw"])
    print(f"{name}, {'RGB' if channels == 3 else 'gray'}, {counts['raw']:,} tiles of {spec.tile}")
    print(f"  PNG level 6: {png:,.0f} bytes a tile")
    for each in ENCODINGS:
        size = sum(file.stat().st_size for file in files[each]) / counts[each]
        print(f"  {each}: {size:,.0f} bytes a tile, {size / png:.3f} of PNG")
    for title, read in (
        ("pyarrow, one core", read_alone),
        ("two Spark tasks", partial(spool, spark)),
    ):
        ways = {each: partial(read, files[each], fields[each]) for each in ENCODINGS}
        found = rates(ways)
        ratio = statistics.median(
            after / before for after, before in zip(found["difference"], found["raw"], strict=True)
        )
        shown = ", ".join(f"{each} {statistics.median(found[each]):,.0f}" for each in ENCODINGS)
        print(f"  read by {title}, tiles/s: {shown}; difference is {ratio:.2f} times as fast")


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", default=[SAMPLES])
    parser.add_argument("--images", type=int, default=4, help="images of each folder (4)")
    arguments = parser.parse_args(words)
    spark = build_session("encodings", master="local[2]")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(ROWS))
    for folder in arguments.folders:
        with tempfile.TemporaryDirectory() as temporary:
            root = Path(temporary)
            has_colours = link(folder, arguments.images, root)
            first = next((root / "images").iterdir())
            height, width = cv2.imread(str(first)).shape[:2]
            spec = SPEC if min(height, width) >= 2 * SPEC.tile else SMALL
            for channels in (1, 3) if has_colours else (1,):
                measure(spark, root, folder.name, channels, spec)
    spark.stop()


if __name__ == "__main__":
    main()
