"""Planning, publishing and the search for near-duplicates, of 100,000 images that are not there."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil

from data_prep import TileSpec, TilingSettings
from data_prep.dataset import shards
from data_prep.dataset.commit import read_head
from data_prep.dataset.diff import FileInfo, diff_folder
from data_prep.dataset.update_plan import Fingerprints, Listing, UpdatePlan, plan_update
from data_prep.spark.passes import ImageScan
from data_prep.splits.fingerprint import HEADER
from data_prep.splits.fingerprint_cache import FingerprintFile
from data_prep.splits.fingerprint_store import load_fingerprints
from data_prep.splits.labels import annotate_each
from data_prep.splits.near_duplicates import find_near_duplicates
from distkeras_grid.progress import format_bytes
from distkeras_grid.spark.session import build_session
from distkeras_grid.spark.storage import Storage

SPEC = TileSpec.paper()
SIZE = (2272, 1704)
SAMPLE_SECONDS = 0.1
# Frames of one place, in the search for near-duplicates.
BURST = 20
PARTS = ("planning", "likeness")


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


def _cut_nothing(spark: Any, *cut: Any) -> tuple[dict[str, str], dict[str, int]]:
    """Return what cutting the tiles of a shard returns."""
    *_, folder, _ = cut
    Storage(spark).make_dirs(folder)
    return {}, {}


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
    print(f"  a manifest of {format_bytes(manifest)}; {len(content['shards']):,} shards")


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
    add("--planned", type=int, default=100_000, help="images that are only planned (100000)")
    add("--part", choices=PARTS, help="only this part")
    flags = parser.parse_args(words)
    command = [sys.executable, "-m", "tests.benchmarks.scale"]
    if flags.part is None:
        given = ["--planned", str(flags.planned)]
        ended = [subprocess.run([*command, *given, "--part", part], check=False) for part in PARTS]
        return sum(each.returncode != 0 for each in ended)
    if flags.part == "likeness":
        likeness(flags.planned)
        return 0
    spark = build_session("scale", master=f"local[{os.cpu_count() or 1}]")
    with tempfile.TemporaryDirectory(prefix="dkg-scale-") as folder:
        planning(spark, Path(folder), flags.planned)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
