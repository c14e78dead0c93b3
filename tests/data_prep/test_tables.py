"""Labels, classes and paths that change after tiling: no file in a shard is written or replaced."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data_prep import TileSpec, TilingSettings, update_tiles
from data_prep.fold_command import make_folds
from data_prep.leak_check import check_leaks_of
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.dataframes import read_parquet, read_tiles

pytestmark = pytest.mark.spark


def draw(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (32, 64), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def files(data):
    return {path: path.stat().st_mtime_ns for path in Path(data).glob("shard=*/**/*")}


def told(data, *splits, **more):
    """What the rows say of each image."""
    frames = read_tiles(data, splits=splits, **more)
    return {
        row.source: (row.split, row.label, row.label_name)
        for frame in frames
        for row in frame.select("source", "split", "label", "label_name").distinct().collect()
    }


def test_a_night_with_other_labels_writes_no_tile(spark, tmp_path):
    raw = tmp_path / "raw"
    for i in range(3):
        for label in "ab":
            draw(raw / label / f"{i}.png", 10 * ord(label) + i)
    settings = TilingSettings(
        *(str(raw), str(tmp_path / "tiles"), TileSpec(32, overlap=0, angles=[0])),
        split="0.7:0.3",
        update=True,
    )
    first = update_tiles(settings, spark=spark)
    data = settings.output
    make_folds(data, "2", allow_empty=True, spark=spark)
    before, stored = told(data, "train", "test"), files(data)
    fold = told(data, "train", "validation", fold="fold_0")

    # One image lies in another class now, one in a class that was not there, one has a new name.
    shutil.move(raw / "a" / "0.png", raw / "b" / "was a.png")
    (raw / "c").mkdir()
    shutil.move(raw / "b" / "0.png", raw / "c" / "0.png")
    shutil.move(raw / "b" / "1.png", raw / "b" / "one.png")
    second = update_tiles(replace(settings, new_classes=True), spark=spark)
    assert (second.tiles, second.relabelled, second.removed, second.left_out) == (0, 2, 0, {})
    assert files(data) == stored
    after = told(data, "train", "test")
    names = {"a/0.png": "b/was a.png", "b/0.png": "c/0.png", "b/1.png": "b/one.png"}
    now = {"b/was a.png": (1, "b"), "c/0.png": (2, "c")}
    assert after == {
        names.get(path, path): (split, *now.get(names.get(path, path), rest))
        for path, (split, *rest) in before.items()
        for rest in [tuple(rest)]
    }
    whole = read_parquet(spark, data)
    assert Field.from_metadata("image", whole.schema["image"].metadata).classes == ("a", "b", "c")
    assert whole.count() == first.manifest["tiles"] == second.manifest["tiles"]
    # Folds go along, the version of the day before is as it was, and nothing leaks.
    assert {
        path: split
        for path, (split, *_) in told(data, "train", "validation", fold="fold_0").items()
    } == {names.get(path, path): split for path, (split, *_) in fold.items()}
    assert told(data, "train", "test", version=1) == before
    assert check_leaks_of(data, spark=spark).leaks == []
    # What is new to a training that goes on is what has another label.
    entries = second.manifest["sources"]
    assert {e["source"] for e in entries if e["update"] == second.manifest["last_update"]} == set(
        now
    )
    # A shard that is copied keeps what its rows have in their files, and reads the same.
    draw(raw / "a" / "1.png", 99)
    update_tiles(replace(settings, new_classes=True), spark=spark)
    assert told(data, "train", "test") == after
