"""What the second pass of a tiling job costs beside cutting and compressing alone.

    python -m tests.benchmarks.tiling_job [--size 4000x3000] [--angles 24] [--images 2] [--runs 3]

Generated images (2272x1704 pixels by default), tiles of 256 with half overlap at 24 angles, raw.
The job cuts them by two Spark tasks and writes Parquet; it is also run without writing. Alone, one
process on one thread cuts the same tiles and compresses them in pages as large as the job's, with
and without measuring their quality, and writes nothing. All sides take turns, and times are those
of the processor, of all processes, so that other work on the machine counts less. The share is the
part of the job's time that cutting and compressing alone take.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep import TileSpec
from data_prep.dataset.plan import TilingPlan, plan_units
from data_prep.dataset.schema import image_field
from data_prep.geometry.tiler import iter_tiles
from data_prep.geometry.tiling_config import TilingConfig
from data_prep.images.file_access import FILE, FileOpener
from data_prep.images.plane_selection import PlaneSelector
from data_prep.spark.passes import (
    PAGE_BYTES,
    ZSTD_LEVEL,
    inspect_images,
    tile_frame,
    write_tiles,
)
from data_prep.spark.scan import Reader, one_image_a_batch
from distkeras_grid.dataset.manifest import TILED, ImageRecord
from distkeras_grid.spark.session import build_session, task_slots
from tests.benchmarks.scale import measuring
from tests.benchmarks.tables import print_head, print_row
from tests.benchmarks.tiling import SIZE, make_image

ANGLES = range(0, 360, 15)
SPEC = TileSpec(angles=ANGLES)
IMAGES, RUNS = 2, 3
COLORS = {"gray": 1, "RGB": 3}

Pixels = NDArray[np.uint8]


def pictures(channels: int, size: tuple[int, int], count: int) -> list[Pixels]:
    """Return images that differ."""
    image = make_image(channels, size)
    return [np.roll(image, 97 * number, axis=1) for number in range(count)]


def compress(images: list[Pixels], spec: TileSpec, white: int | None) -> int:
    """Cut images, and compress their tiles page by page."""
    zstd, count = pa.Codec("zstd", ZSTD_LEVEL), 0
    for image in images:
        page: list[bytes] = []
        for tile in iter_tiles(image, spec, white=white):
            page.append(tile.pixels.tobytes())
            count += 1
            if sum(map(len, page)) >= PAGE_BYTES:
                zstd.compress(b"".join(page), asbytes=True)
                page.clear()
        zstd.compress(b"".join(page), asbytes=True)
    return count


def cut(images: list[Pixels], spec: TileSpec) -> int:
    """Cut images."""
    return sum(1 for image in images for _ in iter_tiles(image, spec))


class Job:
    """The second pass over images that the first pass has seen."""

    def __init__(self, spark: Any, root: Path, images: list[Pixels], spec: TileSpec) -> None:
        channels = images[0].shape[2]
        self._spark, self._root, self._runs = spark, root, 0
        (root / "images").mkdir()
        for number, image in enumerate(images):
            cv2.imwrite(str(root / "images" / f"{number}.tif"), image[:, :, ::-1])
        self._cutting = TilingConfig(
            spec, "raw", 90, channels, PlaneSelector(), root=f"file:{root}"
        )
        # Tasks open the files themselves, so Spark reads no contents.
        self._reader = Reader(FileOpener(FILE), lambda _: spark.createDataFrame([], "path string"))
        lengths = {
            f"file:{path}": path.stat().st_size for path in sorted(root.glob("images/*.tif"))
        }
        scans = {
            each.uri[-5:]: each
            for each in inspect_images(spark, lengths, self._reader, self._cutting)
        }
        sources = tuple(
            ImageRecord(path, TILED, each.tiles, sha256=each.sha256, label="a", split="train")
            for path, each in scans.items()
        )
        plan = TilingPlan(sources, scans, ("a",), len(spec.angles), spec.tile**2 * channels)
        self._field = image_field(spec, channels, "uint8", "raw", ("a",), 8)
        self._units = plan_units(plan, task_slots(spark))
        self._tiles = plan.tiles

    def write(self) -> int:
        """Write the tiles as the job does."""
        self._runs += 1
        folder = str(self._root / f"tiles-{self._runs}")
        write_tiles(self._spark, self._frame(), self._field, folder)
        return self._tiles

    def drop(self) -> int:
        """Cut the tiles and hand them to the JVM, which drops them."""
        with one_image_a_batch(self._spark):
            self._frame().write.format("noop").mode("overwrite").save()
        return self._tiles

    def _frame(self) -> Any:
        return tile_frame(self._spark, self._units, self._reader, self._field, self._cutting)


def measure(ways: dict[str, Callable[[], int]], runs: int) -> dict[str, list[float]]:
    """Return microseconds of the processor a tile; all ways take turns, after one run each."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(runs + 1):
        for name, way in ways.items():
            with measuring() as cost:
                count = way()
            if run:
                found[name].append(cost.processor / count * 1e6)
    return found


def _size(text: str) -> tuple[int, int]:
    width, height = (int(part) for part in text.split("x"))
    return width, height


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=_size, default=SIZE, metavar="WIDTHxHEIGHT", help="pixels")
    parser.add_argument("--angles", type=int, help="turns of each image, evenly (24)")
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--runs", type=int, default=RUNS, help="of each side, after a first one")
    parser.add_argument("--colors", nargs="+", choices=COLORS, default=tuple(COLORS))
    return parser


def main(words: Sequence[str] = ()) -> None:
    """Measure and print."""
    options = _parser().parse_args(words)
    spec = SPEC
    if options.angles:
        spec = replace(SPEC, angles=[360 * turn / options.angles for turn in range(options.angles)])
    cv2.setNumThreads(1)
    spark = build_session("tiling job", master="local[2]")
    width, height = options.size
    print(
        f"{options.images} images of {width}x{height}, {len(spec.angles)} angles, raw; "
        f"microseconds of the processor a tile, medians of {options.runs} runs, load before the "
        f"start {os.getloadavg()[0]:.2f}"
    )
    print_head(("", "way", "us a tile", "of the job", "range"))
    for name in options.colors:
        images = pictures(COLORS[name], options.size, options.images)
        with tempfile.TemporaryDirectory() as temporary:
            job = Job(spark, Path(temporary), images, spec)
            found = measure(
                {
                    "job": job.write,
                    "job without writing": job.drop,
                    "cut": partial(cut, images, spec),
                    "cut, compress": partial(compress, images, spec, None),
                    "cut, measure quality, compress": partial(compress, images, spec, 255),
                },
                options.runs,
            )
        for way, costs in found.items():
            shares = [cost / whole for cost, whole in zip(costs, found["job"], strict=True)]
            print_row(
                (
                    *(name, way, f"{statistics.median(costs):.0f}"),
                    f"{statistics.median(shares):.2f}",
                    f"{min(shares):.2f} to {max(shares):.2f}",
                )
            )
    spark.stop()


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
