"""A night's worth of tiles on generated images, and what it says of 4,559,688 tiles.

The tiles are those of the first source: 256x256, half overlap, 72 angles, 6,972 of a gray image of
2272x1704 pixels; 654 images make 4,559,688. Four images are tiled by the job as users run it, then
one more, then nothing new, and all rows are read. Time and memory of ten times the images are
measured at fewer angles, each amount in a process of its own. Planning, publishing and the search
for near-duplicates are measured on 100,000 images that are not there.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cv2
import numpy as np
import psutil

from data_prep import TileSpec, TilingSettings, update_tiles
from data_prep.dataset import shards
from data_prep.dataset.commit import read_head
from data_prep.dataset.diff import FileInfo, diff_folder
from data_prep.dataset.plan import pluralize
from data_prep.dataset.update import make_plan
from data_prep.dataset.update_plan import Fingerprints, Listing, UpdatePlan, plan_update
from data_prep.images.open_image import decode_image
from data_prep.spark.passes import ImageScan
from data_prep.splits.fingerprint import HEADER
from data_prep.splits.fingerprint_cache import FingerprintFile
from data_prep.splits.fingerprint_store import load_fingerprints
from data_prep.splits.labels import annotate_each
from data_prep.splits.near_duplicates import find_near_duplicates
from distkeras_grid.progress import format_bytes
from distkeras_grid.spark.dataframes import read_parquet
from distkeras_grid.spark.session import build_session, task_slots
from distkeras_grid.spark.storage import Storage

SPEC = TileSpec(256, angles=range(0, 360, 5), mode="inscribed", include_original=True)
SIZE = (2272, 1704)
SOURCE_TILES, SOURCE_IMAGES = 4_559_688, 654
SAMPLE_SECONDS = 0.1
# Images at an amount and at its tenfold, and the angles at which they are cut.
AMOUNTS, FEWER_ANGLES = (10, 100), range(0, 360, 30)
# Frames of one place, in the search for near-duplicates.
BURST = 20
PARTS = ("nights", "tenfold", "planning", "likeness")


@dataclass
class Cost:
    """What something took."""

    seconds: float = 0.0  # Wall time
    processor: float = 0.0  # Seconds of all cores, of this process and those below it
    # Most bytes at a moment, of all these processes. Pages that several share count once (Linux'
    # PSS): the JVM forks to run commands, and would count twice.
    memory: int = 0

    def __str__(self) -> str:
        return (
            f"{self.seconds:7.1f} s, {self.processor:7.1f} s of processor, at most "
            f"{format_bytes(self.memory)}"
        )


@contextmanager
def measuring() -> Iterator[Cost]:
    """Measure the body of a ``with`` statement."""
    cost, stopped = Cost(), threading.Event()

    def watch() -> None:
        while not stopped.wait(SAMPLE_SECONDS):
            cost.memory = max(cost.memory, int(_of_all(_memory)))

    watcher = threading.Thread(target=watch, daemon=True)
    before, began = _of_all(_seconds), time.monotonic()
    watcher.start()
    try:
        yield cost
    finally:
        cost.seconds, cost.processor = time.monotonic() - began, _of_all(_seconds) - before
        stopped.set()
        watcher.join()


def _of_all(look: Callable[[psutil.Process], float]) -> float:
    """Add up a figure of this process and of those below it that still run."""
    me, total = psutil.Process(), 0.0
    for each in (me, *me.children(recursive=True)):
        # One may end between the list and the look at it.
        with suppress(psutil.Error):
            total += look(each)
    return total


def _memory(process: psutil.Process) -> float:
    return float(process.memory_full_info().pss)


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    # Of children that have ended their parent has the times.
    return float(times.user + times.system + times.children_user + times.children_system)


def draw(folder: Path, count: int, first: int = 0) -> None:
    """Enlarge samples, and add the noise of a sensor, which enlarging takes away."""
    samples = sorted((Path(__file__).parents[2] / "data_prep" / "samples").glob("*/*.png"))
    for number in range(first, first + count):
        path = samples[number * 7 % len(samples)]
        gray = cv2.resize(decode_image(path.read_bytes(), path.name), SIZE, interpolation=3)
        noise = np.random.default_rng(number).normal(0, 2, gray.shape)
        target = folder / "ab"[number % 2] / f"{number:03}.tif"
        target.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(target), np.clip(gray + noise, 0, 255).astype(np.uint8))


def nights(spark: Any, root: Path, images: int) -> None:
    """Tile, add, do nothing, compact and read; then extrapolate."""
    raw = root / "raw"
    warm_up(spark, root)
    draw(raw, images)
    settings = TilingSettings(
        *(str(raw), str(root / "tiles"), SPEC), split="1", near_duplicates="report", update=True
    )
    with measuring() as first:
        done = update_tiles(settings, spark=spark)
    tiles, files = done.tiles, _files(root)
    size = sum(file.stat().st_size for file in files)
    print(f"first night, {pluralize(images, 'image')}, {pluralize(tiles, 'tile')}: {first}")
    print(
        f"  {format_bytes(size)} in {pluralize(len(files), 'file')}: "
        f"{size / tiles:,.0f} bytes a tile"
    )
    draw(raw, 1, images)
    with measuring() as second:
        update_tiles(settings, spark=spark)
    print(f"second night, one image more: {second}")
    with measuring() as idle:
        update_tiles(settings, spark=spark)
    print(f"third night, nothing new: {idle}")
    with measuring() as reading:
        read_parquet(spark, settings.output).write.format("noop").mode("overwrite").save()
    print(f"reading all rows: {reading}")
    spent = Cost(first.seconds - idle.seconds, first.processor - idle.processor)
    extrapolate(tiles, spent, size, len(files), task_slots(spark))


def warm_up(spark: Any, root: Path) -> None:
    """Let Spark and its workers start, which takes as long for one image as for many."""
    draw(root / "warm", 1)
    small = replace(SPEC, angles=[0], include_original=False)
    settings = TilingSettings(str(root / "warm"), str(root / "warm tiles"), small, split="1")
    update_tiles(settings, spark=spark)


def amount(spark: Any, root: Path, images: int) -> None:
    """Tile so many images in a first night, and print what it takes."""
    warm_up(spark, root)
    draw(root / "raw", images)
    spec = replace(SPEC, angles=FEWER_ANGLES)
    settings = TilingSettings(str(root / "raw"), str(root / "tiles"), spec, split="1", update=True)
    began = time.monotonic()
    plan, _ = make_plan(spark, settings, lambda _: None)
    looked = time.monotonic() - began
    promised = looked + sum(plan.seconds(task_slots(spark)))
    with measuring() as cost:
        done = update_tiles(settings, spark=spark)
    with measuring() as idle:
        update_tiles(settings, spark=spark)
    print(f"{pluralize(images, 'image')}, {pluralize(done.tiles, 'tile')}: {cost}")
    print(
        f"  without what a night with nothing new takes: {cost.seconds - idle.seconds:.1f} s, "
        f"{cost.processor - idle.processor:.1f} s of processor; each tile "
        f"{(cost.processor - idle.processor) / done.tiles * 1e3:.3f} ms of it"
    )
    print(
        f"  the plan promised {promised:.1f} s on {pluralize(task_slots(spark), 'task slot')}; the "
        f"processor's time is {cost.processor / task_slots(spark) / promised:.2f} of that",
        flush=True,
    )


def _files(root: Path) -> list[Path]:
    return sorted((root / "tiles").glob("shard=*/split=*/*.parquet"))


def extrapolate(tiles: int, spent: Cost, size: int, files: int, slots: int) -> None:
    """Say what the figures mean for the tiles of the source, and what that assumes."""
    times = SOURCE_TILES / tiles
    hours, processor = spent.seconds * times / 3600, spent.processor * times / 3600
    print(f"\n{SOURCE_TILES:,} tiles of {SOURCE_IMAGES} such images:")
    print(f"  {hours:.1f} hours on {slots} task slots as busy as here; {processor:.1f} hours of")
    print(f"  processor: {processor / slots:.2f} on {slots} cores that do nothing else")
    print(f"  {format_bytes(size * times)} in about {files * times:,.0f} files")
    print("assumed: time and bytes grow with the tiles (each image is cut by itself); images like")
    print("these; a night without changes is the cost of starting, and is counted once; slots do")
    print("not wait for disks or network, nor for one another.")


def _cut_nothing(spark: Any, *cut: Any) -> tuple[set[str], dict[str, int]]:
    """Return what cutting the tiles of a shard returns."""
    *_, folder, _ = cut
    Storage(spark).make_dirs(folder)
    return set(), {}


def planning(spark: Any, root: Path, images: int) -> None:
    """Decide and publish a night of images that are not there, and one image more."""
    # A few images, as in a trial, would not fill three splits.
    settings = TilingSettings(
        *("/raw", str(root / "planned"), SPEC), labels="folder:1", update=True, allow_empty=True
    )
    storage = Storage(spark)
    print(f"{format_bytes(int(_of_all(_memory)))} of Python and the JVM before the first image")
    for night, count in (("a first", images), ("another", images + 1)):
        with measuring() as cost:
            planned = _planned(spark, count, settings)
            _search(storage, planned, settings.output)
            with patch.object(shards, "cut_tiles", _cut_nothing):
                writer = shards.Shards(spark, storage, settings, None, lambda _: None, planned)
                content = writer.publish()
        new = len(planned.actions.to_tile) - len(planned.actions.replaced)
        print(
            f"planning, searching and publishing {night} night of {count:,} images, {new:,} new: "
            f"{cost}"
        )
    manifest = Path(settings.output, "_versions", f"{content['last_update']}.json").stat().st_size
    print(
        f"  a manifest of {format_bytes(manifest)}, written {content['last_update'] + 1} times; "
        f"{len(content['shards']):,} shards"
    )


def _planned(spark: Any, images: int, settings: TilingSettings) -> UpdatePlan:
    before = read_head(Storage(spark), settings.output)
    records = before.entries if before else {}
    names = [f"class{i % 5}/specimen{i // 50:05}/{i:06}.tif" for i in range(images)]
    files = {name: FileInfo(f"hdfs://namenode:8020/raw/{name}", 7_000_000, 1) for name in names}
    labels, problems = annotate_each(names, settings.labels, str, r"/(?P<group>specimen\d+)/")
    classes = before.image.classes if before else ()
    diff = diff_folder(records, files, labels, problems, classes, prune=False)
    scans = {
        name: ImageScan(
            files[name].uri,
            hashlib.sha256(name.encode()).hexdigest(),
            *(*SIZE, 1, "uint8", 15_600.0, None),
            pixel_sha256=hashlib.sha256(f"pixels {name}".encode()).hexdigest(),
            bits=8,
            tiles=6972,
        )
        for name in diff.to_scan
    }
    listing = Listing(files, {}, labels, labels, problems)
    fingerprints = Fingerprints({}, {})
    return plan_update(before, before, records, listing, diff, scans, fingerprints, settings)


def _search(storage: Storage, night: UpdatePlan, root: str) -> None:
    """Look for near-duplicates as a night does, with fingerprints of pictures nobody has taken."""
    prints = load_fingerprints(storage, root)
    stored = frozenset(prints)
    rng = np.random.default_rng(len(stored))
    for each in night.planned:
        prints.add(each.pixel_sha256, _fingerprint(rng))
    night.new_fingerprints = prints.subset(name for name in prints if name not in stored)
    night.pairs = find_near_duplicates(prints, night.new_fingerprints.keys()).pairs


def likeness(images: int) -> None:
    """Look for near-duplicates among fingerprints of pictures that nobody has taken."""
    for frames in (1, BURST):
        rng = np.random.default_rng(0)
        prints = FingerprintFile()
        for number in range(0, images, frames):
            place = _fingerprint(rng)
            for frame in range(frames):
                prints.add(f"{number + frame:06}", place if frames == 1 else _changed(place, rng))
        before = psutil.Process().memory_info().rss
        with measuring() as cost:
            pairs = find_near_duplicates(prints).pairs
        kind = "no two alike" if frames == 1 else f"in bursts of {frames}"
        print(f"near-duplicates among {images:,} images, {kind} ({len(pairs):,} pairs): {cost}")
        print(f"  {format_bytes(before)} before the search")


def _changed(fingerprint: bytes, rng: np.random.Generator) -> bytes:
    """Return the fingerprint of another frame of one place: a fifth of its features are others."""
    changed = bytearray(fingerprint)
    descriptors = np.frombuffer(changed, np.uint8)[-192 * 32 :].reshape(192, 32)
    others = rng.random(192) < 0.2
    descriptors[others] = rng.integers(0, 256, (int(others.sum()), 32), np.uint8)
    return bytes(changed)


def _fingerprint(rng: np.random.Generator) -> bytes:
    header = HEADER.pack(1, 1, 192, *SIZE) + rng.bytes(8)
    return header + rng.bytes(256) + rng.bytes(192 * 4) + rng.bytes(192 * 32)


def main(words: Sequence[str] | None = None) -> int:
    """Measure each part in a process of its own, so that none inherits another's memory."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.scale", description=__doc__)
    add: Callable[..., Any] = parser.add_argument
    add("--images", type=int, default=4, help="images of the first night (4)")
    add("--planned", type=int, default=100_000, help="images that are only planned (100000)")
    add("--part", choices=(*PARTS, "amount"), help="only this part")
    flags = parser.parse_args(words)
    command = [sys.executable, "-m", "tests.benchmarks.scale"]
    if flags.part is None:
        given = ["--images", str(flags.images), "--planned", str(flags.planned)]
        ended = [subprocess.run([*command, *given, "--part", part], check=False) for part in PARTS]
        return sum(each.returncode != 0 for each in ended)
    if flags.part == "tenfold":
        each = [*command, "--part", "amount", "--images"]
        return sum(subprocess.run([*each, str(n)], check=False).returncode != 0 for n in AMOUNTS)
    if flags.part == "likeness":
        likeness(flags.planned)
        return 0
    spark = build_session("scale", master=f"local[{os.cpu_count() or 1}]")
    with tempfile.TemporaryDirectory(prefix="dkg-scale-") as folder:
        if flags.part == "planning":
            planning(spark, Path(folder), flags.planned)
        elif flags.part == "amount":
            amount(spark, Path(folder), flags.images)
        else:
            nights(spark, Path(folder), flags.images)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
