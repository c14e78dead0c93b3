"""Two nights in a row, with new, changed, removed and broken images in between, on real Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data_prep import TileSpec, TilingSettings, job, tile_images, update_tiles
from data_prep.images import decode_image
from data_prep.leak_check import check_leaks_of
from distkeras_grid.errors import ConfigurationError, EmptyDataError, OutputExistsError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.dataframes import read_parquet, read_tiles

pytestmark = pytest.mark.spark

SPEC = TileSpec(32, angles=[0, 40])
IDENTITY = ("source", "source_sha256", "angle", "x", "y", "label", "tile_id")


def draw(path: Path, seed: int, size: tuple[int, int] = (64, 48)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def folder(tmp_path):
    """Eight micrographs of two classes, with characters in names that mean patterns elsewhere."""
    for i in range(4):
        draw(tmp_path / "raw images" / "a" / f"{i} [x].png", i)
        draw(tmp_path / "raw images" / "b" / f"{i}.png", 10 + i)
    return tmp_path / "raw images"


@pytest.fixture
def settings(folder, tmp_path):
    output = str(tmp_path / "tiles")
    return TilingSettings(str(folder), output, SPEC, split="0.5:0.5", update=True)


@pytest.fixture
def cut(monkeypatch):
    """The paths of all images that were really tiled."""
    seen: list[str] = []
    plan_units = job.plan_units

    def watched(plan, groups, slots):
        seen.extend(source.source for source in plan.sources)
        return plan_units(plan, groups, slots)

    monkeypatch.setattr(job, "plan_units", watched)
    return seen


def rows_of(spark, path):
    """Identity and pixels of all tiles, without the split."""
    return Counter(
        (*(row[name] for name in IDENTITY), bytes(row.image))
        for row in spark.read.parquet(path).select("image", *IDENTITY).collect()
    )


def splits_of(spark, path):
    rows = spark.read.parquet(path).select("source", "split").distinct().collect()
    assert len(rows) == len({row.source for row in rows})
    return {row.source: row.split for row in rows}


def visible(settings):
    return sorted(path.name for path in Path(settings.output).iterdir() if path.name[0] not in "._")


def hidden(settings):
    return sorted(path.name for path in Path(settings.output).iterdir() if path.name[0] == "_")


def test_two_nights(spark, settings, folder, tmp_path, cut):
    first = update_tiles(settings, spark=spark)
    assert (first.new, first.changed, first.left_out) == (8, 0, {})
    assert visible(settings) == ["shard=0"]
    before = splits_of(spark, settings.output)
    assert Counter(before.values()) == {"train": 4, "test": 4}
    cut.clear()

    # The day between: two new, one of them a copy, one changed, one removed, two broken.
    draw(folder / "a" / "new.png", 20)
    (folder / "a" / "0 copy.png").write_bytes((folder / "a" / "0 [x].png").read_bytes())
    draw(folder / "b" / "1.png", 21)
    (folder / "b" / "2.png").unlink()
    (folder / "b" / "cut.png").write_bytes((folder / "b" / "3.png").read_bytes()[:200])
    draw(folder / "a" / "small.png", 22, (20, 20))
    (folder / "b" / "3.png").touch()

    said = []
    second = update_tiles(settings, spark=spark, say=said.append)
    assert sorted(cut) == ["a/new.png", "b/1.png"]
    assert (second.new, second.changed, second.removed) == (1, 1, 1)
    assert set(second.left_out) == {"b/cut.png", "a/small.png"}
    assert any("left out: b/cut.png" in line for line in said)
    # Of the first shard there is a copy without the changed image.
    assert visible(settings) == ["shard=1", "shard=2"]
    assert hidden(settings) == ["_dataset.json", "_likeness"]

    # What a fresh tiling of the same images gives, and the removed one; splits are kept.
    fresh = replace(settings, output=str(tmp_path / "fresh"), update=False, on_error="skip")
    tile_images(fresh, spark=spark)
    now = rows_of(spark, settings.output)
    assert now == rows_of(spark, fresh.output) + Counter(
        {row: n for row, n in now.items() if row[0] == "b/2.png"}
    )
    assert len({row[0] for row in now}) == 9
    after = splits_of(spark, settings.output)
    assert {path: split for path, split in after.items() if path in before} == before

    # Our reader, the metadata, and the manifest.
    train, test = read_tiles(settings.output)
    assert train.count() + test.count() == sum(now.values())
    assert Field.from_metadata("image", train.schema["image"].metadata).classes == ("a", "b")
    written = json.loads((Path(settings.output) / "_dataset.json").read_text())
    assert written == second.manifest
    assert written["tiles"] == sum(now.values())
    entries = {entry["source"]: entry for entry in written["sources"]}
    assert entries["a/0 copy.png"]["reason"] == "the same bytes as a/0 [x].png"
    assert [(entries[f"b/{i}.png"]["shard"], entries[f"b/{i}.png"]["update"]) for i in (1, 3)] == [
        (2, 1),
        (1, 0),
    ]


def test_a_night_without_changes_looks_at_what_was_broken_and_at_nothing_else(
    spark, settings, folder, cut, monkeypatch
):
    (folder / "b" / "cut.png").write_bytes(b"no image")
    update_tiles(settings, spark=spark)
    cut.clear()
    looked = []
    inspect = job.inspect_images

    def watched(spark, images, cutting):
        found = inspect(spark, images, cutting)
        looked.extend(each.uri.rsplit("/", 1)[-1] for each in found)
        return found

    monkeypatch.setattr(job, "inspect_images", watched)
    idle = update_tiles(settings, spark=spark)
    assert (looked, cut, set(idle.left_out)) == (["cut.png"], [], {"b/cut.png"})
    assert (idle.new, idle.changed, idle.unchanged) == (0, 0, 8)

    # Mended, it is tiled; spoilt, an image keeps its former tiles and is listed.
    draw(folder / "b" / "cut.png", 30)
    (folder / "a" / "0 [x].png").write_bytes(b"spoilt")
    mended = update_tiles(settings, spark=spark)
    assert (cut, mended.new) == (["b/cut.png"], 1)
    assert "its former tiles are kept" in mended.left_out["a/0 [x].png"]
    assert "a/0 [x].png" in splits_of(spark, settings.output)


def test_prune_drops_and_an_image_that_comes_back_has_its_split(spark, settings, folder, cut):
    update_tiles(settings, spark=spark)
    before = splits_of(spark, settings.output)
    content = (folder / "b" / "2.png").read_bytes()
    (folder / "b" / "2.png").unlink()
    pruned = update_tiles(replace(settings, prune=True), spark=spark)
    assert (pruned.removed, pruned.tiles) == (1, 0)
    assert set(splits_of(spark, settings.output)) == set(before) - {"b/2.png"}
    cut.clear()
    (folder / "b" / "again.png").write_bytes(content)
    update_tiles(settings, spark=spark)
    assert cut == ["b/again.png"]
    assert splits_of(spark, settings.output)["b/again.png"] == before["b/2.png"]


def test_a_data_set_that_was_written_at_once_is_taken_over(spark, settings, folder, cut):
    tile_images(replace(settings, update=False), spark=spark)
    before, splits = rows_of(spark, settings.output), splits_of(spark, settings.output)
    cut.clear()
    draw(folder / "a" / "new.png", 20)
    update_tiles(settings, spark=spark)
    assert cut == ["a/new.png"]
    assert visible(settings) == ["shard=0", "shard=1"]
    now = rows_of(spark, settings.output)
    assert before <= now
    assert {
        path: split for path, split in splits_of(spark, settings.output).items() if path in splits
    } == splits
    # ... and can be replaced as a whole.
    manifest = tile_images(replace(settings, update=False, overwrite=True), spark=spark)
    assert manifest["tiles"] == now.total()


def test_what_does_not_fit_the_data_set_is_refused(spark, settings, folder, tmp_path):
    update_tiles(settings, spark=spark)
    with pytest.raises(ConfigurationError, match=r"overlap 0\.5, and this update says 0\.25"):
        update_tiles(replace(settings, spec=replace(SPEC, overlap=0.25)), spark=spark)
    with pytest.raises(ConfigurationError, match="with seed 0"):
        update_tiles(replace(settings, seed=1), spark=spark)
    draw(folder / "c" / "0.png", 40)
    Image.new("RGB", (64, 48), (200, 0, 0)).save(folder / "a" / "red.png")
    found = update_tiles(settings, spark=spark)
    assert "class 'c'" in found.left_out["c/0.png"]
    assert "3 channels" in found.left_out["a/red.png"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(EmptyDataError):
        update_tiles(replace(settings, input=str(tmp_path / "empty"), prune=True), spark=spark)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(OutputExistsError):
        update_tiles(replace(settings, output=str(tmp_path / "mine")), spark=spark)


def test_fields_of_view_that_overlap_stay_in_one_split_over_nights(
    spark, settings, folder, samples
):
    paths = sorted(samples.glob("*/*.png"))[:12:2]
    for path in folder.rglob("*.png"):
        path.unlink()
    for i, path in enumerate(paths):
        (folder / "ab"[i % 2] / f"{i}.png").write_bytes(path.read_bytes())
    first = update_tiles(settings, spark=spark)
    assert first.manifest["near_duplicates"] == []
    before = splits_of(spark, settings.output)

    for i, path in enumerate(paths):
        pixels = decode_image(path.read_bytes(), path.name)[:250, 100:, 0]
        Image.fromarray(pixels).save(folder / "ab"[i % 2] / f"{i} crop.jpg", quality=90)
    second = update_tiles(settings, spark=spark)
    found = {(pair["one"], pair["other"]) for pair in second.manifest["near_duplicates"]}
    after = splits_of(spark, settings.output)
    crops = {f"{'ab'[i % 2]}/{i} crop.jpg": f"{'ab'[i % 2]}/{i}.png" for i in range(len(paths))}
    assert found == set(crops.items())
    assert {crop: after[crop] for crop in crops} == {c: before[s] for c, s in crops.items()}
    proof = check_leaks_of(settings.output, spark=spark)
    assert proof.leaks == []
    assert sum(proof.pictures.values()) == 12

    # The list is remembered.
    third = update_tiles(settings, spark=spark)
    assert third.manifest["near_duplicates"] == second.manifest["near_duplicates"]


NIGHT = """
import sys
from data_prep import TileSpec, TilingSettings, update, update_tiles
from distkeras_grid.spark.session import build_session

step, folder, output = sys.argv[1:]
update.SHARD_BYTES = 1  # a shard for each image
class Stops:
    '''Says so before the step, and stays there until it is killed.'''

    def __init__(self, storage):
        self._storage, self._renames = storage, 0

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def rename(self, *names):
        self._renames += 1
        self._wait(f"rename {self._renames}")
        self._storage.rename(*names)

    def write_text(self, uri, *rest, **more):
        self._wait(uri.rsplit("/", 1)[-1])
        self._storage.write_text(uri, *rest, **more)

    def _wait(self, name):
        if name == step:
            print("here", flush=True)
            sys.stdin.read()

storage = update.Storage
update.Storage = lambda spark: Stops(storage(spark))
settings = TilingSettings(folder, output, TileSpec(32, angles=[0, 40]), split="0.5:0.5", update=1)
update_tiles(settings, spark=build_session("night", master="local[1]"))
"""


@pytest.mark.parametrize(
    "step",
    [
        "rename 2",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("_update.json", "_dataset.json")),
    ],
)
def test_a_killed_night_is_finished_by_the_next(spark, settings, folder, step, cut, tmp_path):
    """Killed before a change is decided, while it is published, and before it is described."""
    update_tiles(settings, spark=spark)
    splits = splits_of(spark, settings.output)
    before = Counter((row[1], row[-2]) for row in rows_of(spark, settings.output).elements())
    draw(folder / "b" / "1.png", 21)
    draw(folder / "a" / "new.png", 20)
    cut.clear()
    with subprocess.Popen(
        [sys.executable, "-c", NIGHT, step, settings.input, settings.output],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as night:
        deadline = threading.Timer(300, night.kill)
        deadline.start()
        assert night.stdout.readline() == "here\n"
        # What a reader sees at that moment: the data set as it was.
        there = read_parquet(spark, settings.output).select("source_sha256", "tile_id").collect()
        assert Counter(map(tuple, there)) == before
        deadline.cancel()
        os.kill(night.pid, signal.SIGKILL)
    said = []
    update_tiles(settings, spark=spark, say=said.append)
    decided = step != "_update.json"
    assert any("finished the update" in line for line in said) == decided
    assert sorted(cut) == (["a/new.png"] if decided else ["a/new.png", "b/1.png"])
    fresh = replace(settings, output=str(tmp_path / "fresh"), update=False)
    tile_images(fresh, spark=spark)
    assert rows_of(spark, settings.output) == rows_of(spark, fresh.output)
    now = splits_of(spark, settings.output)
    assert {path: now[path] for path in splits} == splits
    assert hidden(settings) == ["_dataset.json", "_likeness"]
