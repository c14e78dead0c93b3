"""Two nights in a row, with new, changed, removed and broken images in between, on real Spark."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data_prep import TileSpec, TilingSettings, plan_tiles, tile_images, update_tiles
from data_prep.dataset import shards
from data_prep.geometry.tile_layout import count_tiles
from data_prep.images import file_access
from data_prep.images.file_access import FileOpener
from data_prep.images.open_image import decode_image
from data_prep.spark import driver, scan
from data_prep.spark.leak_check import check_leaks_of
from distkeras_grid.dataset.manifest import shard_number
from distkeras_grid.errors import (
    ConfigurationError,
    SchemaError,
)
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.dataframes import read_parquet, read_tiles
from tests.data_prep import first_night
from tests.data_prep.first_night import FirstNight

pytestmark = pytest.mark.spark

SPEC = TileSpec(28, angles=[0, 40])
#: With characters that mean patterns elsewhere.
OUTPUT = "tiles [1] {a,b}"
draw = partial(first_night.draw, size=(64, 48))
IDENTITY = ("source", "source_sha256", "angle", "x", "y", "label", "tile_id")


@pytest.fixture(scope="module")
def once(spark, tmp_path_factory):
    """Eight micrographs of two classes, with characters in names that mean patterns elsewhere."""
    root = tmp_path_factory.mktemp("once")
    for i in range(4):
        draw(root / "raw images" / "a" / f"{i} [x].png", i)
        draw(root / "raw images" / "b" / f"{i}.png", 10 + i)
    names = str(root / "raw images"), str(root / OUTPUT)
    return FirstNight.of(TilingSettings(*names, SPEC, split="0.5:0.5", update=True), spark)


@pytest.fixture
def folder(once, tmp_path):
    return once.copy_images(tmp_path)


@pytest.fixture
def settings(once, folder, tmp_path):
    return replace(once.settings, input=str(folder), output=str(tmp_path / OUTPUT))


@pytest.fixture
def first(once, settings):
    """The first night is over: what it said."""
    return once.copy_tiles(settings.output)


@pytest.fixture
def cut(monkeypatch):
    """The paths of all images that were really tiled."""
    seen: list[str] = []
    plan_tasks = driver.plan_tasks

    def watched(plan, slots):
        seen.extend(source.source for source in plan.sources)
        return plan_tasks(plan, slots)

    monkeypatch.setattr(driver, "plan_tasks", watched)
    return seen


def rows_of(spark, path):
    """Identity and pixels of all tiles, without the split."""
    return Counter(
        (*(row[name] for name in IDENTITY), bytes(row.image))
        for row in read_parquet(spark, path).select("image", *IDENTITY).collect()
    )


def splits_of(spark, path):
    rows = read_parquet(spark, path).select("source", "split").distinct().collect()
    assert len(rows) == len({row.source for row in rows})
    return {row.source: row.split for row in rows}


def head_of(settings):
    """The present version, which any reader gets."""
    root = Path(settings.output)
    number = max(int(path.stem) for path in root.glob("_versions/[0-9]*.json"))
    return json.loads((root / "_versions" / f"{number}.json").read_text())


def shards_of(settings):
    """The numbers of the shards that are read."""
    return [shard_number(name) for name in head_of(settings)["shards"]]


def left_over(settings):
    """Folders of tiles that no version lists which can be read."""
    names = {path.name for path in Path(settings.output).glob("shard=*")}
    former = (name for each in head_of(settings)["history"] for name in each["shards"])
    return names - {*head_of(settings)["shards"], *former}


@pytest.mark.full
def test_tiles_that_do_not_meet_the_conditions_are_counted_and_not_stored(
    spark, settings, folder, cut
):
    Image.fromarray(np.full((64, 48), 90, np.uint8)).save(folder / "a" / "flat.png")
    half = np.random.default_rng(40).integers(0, 256, (64, 128), dtype=np.uint8)
    half[:, :64] = 7
    Image.fromarray(half).save(folder / "b" / "half.png")
    night = replace(settings, keep="bg_fraction<0.5", normalise="min-max")
    told = []
    done = update_tiles(night, spark=spark, say=told.append)
    rows = read_parquet(spark, night.output).select("source", "bg_fraction").collect()
    entries = {entry["source"]: entry for entry in done.manifest["sources"]}
    assert max(row.bg_fraction for row in rows) < 0.5
    counts = Counter(row.source for row in rows)
    assert {path: entry["tiles"] for path, entry in entries.items() if entry["tiles"]} == counts
    assert done.tiles == done.manifest["tiles"] == len(rows)
    planned = 9 * count_tiles(48, 64, SPEC) + count_tiles(128, 64, SPEC)
    assert done.filtered == planned - done.tiles > 0
    assert (entries["a/flat.png"]["tiles"], done.images_without_tiles) == (0, ("a/flat.png",))
    assert "shard" not in entries["a/flat.png"]
    assert entries["b/half.png"]["filtered"] > 0
    assert counts["b/half.png"] > 0
    assert any("a/flat.png" in line and "warning" in line for line in told)
    report = json.loads(Path(done.report).with_suffix(".json").read_text())
    assert (report["filtered"], list(report["images_without_tiles"])) == (
        done.filtered,
        ["a/flat.png"],
    )
    assert (entries["b/half.png"]["low"], entries["b/half.png"]["high"]) == (0, 255)
    # The next night does not read them again, nor cut in another way.
    cut.clear()
    again = update_tiles(night, spark=spark)
    assert (again.unchanged, cut, again.manifest["tiles"]) == (10, [], len(rows))
    for other in ({"keep": "bg_fraction<0.6"}, {"normalise": None}):
        with pytest.raises(ConfigurationError):
            update_tiles(replace(night, **other), spark=spark)
    # An image without a tile can get some, and one with some can lose all.
    draw(folder / "a" / "flat.png", 41)
    Image.fromarray(np.full((64, 128), 50, np.uint8)).save(folder / "b" / "half.png")
    changed = update_tiles(night, spark=spark)
    assert (changed.changed, changed.images_without_tiles) == (2, ("b/half.png",))
    rows = read_parquet(spark, night.output).select("source").collect()
    assert len(rows) == changed.manifest["tiles"]
    assert {row.source for row in rows} == set(entries) - {"b/half.png"}


@pytest.mark.full
def test_zones_are_kept_off_and_followed(spark, settings, folder, tmp_path):
    for path in folder.glob("*/*.png"):
        pixels = np.asarray(Image.open(path)) // 2
        pixels[:12] = 255
        Image.fromarray(pixels).save(path)
    (folder / "a" / "0 [x].png").rename(folder / "a" / "0.png")
    table, bar = tmp_path / "zones.csv", "0,0,48,12\n"
    table.write_text(f"file,left,top,right,bottom\na/0.png,{bar}b/0.png,{bar}")
    zoned = replace(settings, zones=str(table))

    def without_bar():
        brightest = Counter()
        for row in read_parquet(spark, settings.output).select("source", "image").collect():
            brightest[row.source] = max(brightest[row.source], *row.image)
        return {source for source, value in brightest.items() if value < 200}

    assert update_tiles(zoned, spark=spark).new == 8
    assert without_bar() == {"a/0.png", "b/0.png"}
    assert update_tiles(zoned, spark=spark).unchanged == 8
    with table.open("a") as file:
        file.write(f"a/1 [x].png,{bar}")
    second = update_tiles(zoned, spark=spark)
    assert (second.new, second.changed, second.unchanged) == (0, 1, 7)
    assert without_bar() == {"a/0.png", "b/0.png", "a/1 [x].png"}
    with pytest.raises(ConfigurationError):
        update_tiles(settings, spark=spark)
    with table.open("a") as file:
        file.write(f"b/7.png,{bar}")
    with pytest.raises(SchemaError, match=r"b/7\.png"):
        update_tiles(zoned, spark=spark)


def test_two_nights(spark, settings, first, folder, tmp_path, cut):
    assert (first.new, first.changed, first.left_out) == (8, 0, {})
    assert shards_of(settings) == [0]
    before = splits_of(spark, settings.output)
    assert Counter(before.values()) == {"train": 4, "test": 4}

    # The day between: two new, one of them a copy, one changed, one removed, two broken.
    draw(folder / "a" / "new.png", 20)
    (folder / "a" / "0 copy.png").write_bytes((folder / "a" / "0 [x].png").read_bytes())
    draw(folder / "b" / "1.png", 21)
    (folder / "b" / "2.png").unlink()
    (folder / "b" / "cut.png").write_bytes((folder / "b" / "3.png").read_bytes()[:200])
    draw(folder / "a" / "small.png", 22, size=(20, 20))
    (folder / "b" / "3.png").touch()

    said = []
    second = update_tiles(settings, spark=spark, say=said.append)
    assert sorted(cut) == ["a/new.png", "b/1.png"]
    assert (second.new, second.changed, second.removed) == (1, 1, 1)
    assert set(second.left_out) == {"b/cut.png", "a/small.png"}
    assert any("left out: b/cut.png" in line for line in said)
    # Of the first shard there is a copy without the changed image.
    assert shards_of(settings) == [1, 2]
    assert left_over(settings) == set()
    card = (Path(settings.output) / ".huggingface.yaml").read_text()
    assert f"{second.manifest['shards'][1]}/split=train" in card
    assert "shard=0" not in card

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
    written = head_of(settings)
    assert written == second.manifest
    assert written["tiles"] == sum(now.values())
    entries = {entry["source"]: entry for entry in written["sources"]}
    assert entries["a/0 copy.png"]["reason"] == "the same bytes as a/0 [x].png"
    assert [(entries[f"b/{i}.png"]["shard"], entries[f"b/{i}.png"]["update"]) for i in (1, 3)] == [
        (1, 1),
        (2, 0),
    ]


def test_one_bad_file_is_one_line_and_not_the_end_of_the_night(
    spark, settings, folder, monkeypatch
):
    """Each of these files ended the night."""
    monkeypatch.setattr(file_access, "MOST_BYTES", 100_000)
    (folder / "a" / "empty.png").write_bytes(b"")
    (folder / "a" / "cut.png").write_bytes((folder / "b" / "3.png").read_bytes()[:200])
    draw(folder / "a" / "large.png", 50, size=(400, 400))
    (folder / "b" / "dangling.png").symlink_to("nowhere")
    bad, said = {"a/empty.png", "a/cut.png", "a/large.png"}, []
    every = bad | {"b/dangling.png"}
    night = replace(settings, on_error="skip")
    done = update_tiles(night, spark=spark, say=said.append)
    assert (set(done.left_out), done.new) == (every, 8)
    for name in done.left_out:
        assert sum(f"left out: {name}:" in line for line in said) == 1
    entries = {entry["source"]: entry for entry in done.manifest["sources"]}
    assert {entries[path]["status"] for path in bad} == {"left out"}
    report = json.loads(Path(done.report).with_suffix(".json").read_text())
    assert set(report["left_out"]) == every
    # They are tried again, and are no more work than before.
    again = update_tiles(night, spark=spark)
    assert (set(again.left_out), again.tiles, again.unchanged) == (every, 0, 8)
    assert again.manifest["last_update"] == done.manifest["last_update"]


@pytest.mark.parametrize(
    ("happens", "kind"),
    [
        ("goes", "file"),
        pytest.param("changes", "file", marks=pytest.mark.full),
        pytest.param("spoils", "spark", marks=pytest.mark.full),
        pytest.param("changes", "spark", marks=pytest.mark.full),
        pytest.param("spoils", "file", marks=pytest.mark.full),
        pytest.param("goes", "spark", marks=pytest.mark.full),
    ],
)
def test_an_image_that_changes_while_it_is_tiled_is_left_out(
    spark, settings, first, folder, monkeypatch, happens, kind
):
    """It was looked at, and then it is another one. It ended the night."""
    monkeypatch.setattr(scan, "choose_opening", lambda *_: FileOpener(kind))
    tiles = first.tiles
    before = rows_of(spark, settings.output)
    draw(folder / "a" / "new.png", 60)
    draw(folder / "b" / "1.png", 61)
    draw(folder / "b" / "good.png", 62)
    cut_tiles = shards.cut_tiles

    def late(*arguments):
        for number, path in enumerate((folder / "a" / "new.png", folder / "b" / "1.png")):
            if happens == "changes":
                draw(path, 63 + number)
            elif happens == "goes":
                path.unlink()
            else:
                path.write_bytes(b"no image")
        return cut_tiles(*arguments)

    monkeypatch.setattr(shards, "cut_tiles", late)
    done = update_tiles(settings, spark=spark)
    assert (done.new, done.changed, set(done.left_out)) == (1, 0, {"a/new.png", "b/1.png"})
    assert "its former tiles are kept" in done.left_out["b/1.png"]
    told = {"changes": "has changed since", "goes": "is gone", "spoils": "has changed since"}
    assert kind == "spark" or told[happens] in done.left_out["a/new.png"]
    now = rows_of(spark, settings.output)
    assert now.total() == tiles * 9 // 8 == done.manifest["tiles"]
    assert before <= now
    monkeypatch.undo()
    if happens == "changes":
        after = update_tiles(settings, spark=spark)
        assert (after.new, after.changed, after.left_out) == (1, 1, {})
        assert after.manifest["tiles"] == tiles * 10 // 8
    assert left_over(settings) == set()


def test_a_plan_tells_and_writes_nothing(spark, once, settings, folder):
    said = []
    plan = plan_tiles(settings, spark=spark, say=said.append)
    assert (plan.new, plan.left_out) == (8, {})
    assert not Path(settings.output).exists()
    assert any("on disk" in line and "free" in line for line in said)
    done = once.copy_tiles(settings.output)
    assert (done.tiles, done.new) == (plan.tiles, plan.new)
    before = sorted(Path(settings.output).rglob("*"))
    draw(folder / "b" / "1.png", 21)
    later = plan_tiles(settings, spark=spark)
    assert (later.changed, later.unchanged) == (1, 7)
    with pytest.raises(ConfigurationError, match=r"overlap 0\.5, and this update says 0\.25"):
        plan_tiles(replace(settings, spec=replace(SPEC, overlap=0.25)), spark=spark)
    assert sorted(Path(settings.output).rglob("*")) == before


def test_each_night_leaves_a_report(once):
    done = once.done
    page = Path(done.report).read_text()
    told = json.loads(Path(done.report).with_suffix(".json").read_text())
    assert told["new"] == 8
    assert sum(told["angles"].values()) == done.tiles
    assert sum(n for by_class in told["tiles"].values() for n in by_class.values()) == done.tiles
    assert set(told["angles"]) == {"0", "40"}
    # Eight thumbnails with the squares that were written, and eight tiles of each class.
    assert page.count("<figure>") == 8
    for kind, angle in (("flat", "0"), ("turned", "40")):
        outlines = re.findall(rf'class="{kind}" d="([^"]+)"', page)
        assert len(outlines) == 8
        assert sum(each.count("z") for each in outlines) == told["angles"][angle]
    assert page.count("<img ") == 16


@pytest.mark.full
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

    # Who tiles anew finds the same, although all fingerprints are known.
    anew = tile_images(replace(settings, update=False, overwrite=True), spark=spark)
    assert {(pair["one"], pair["other"]) for pair in anew["near_duplicates"]} == found


NIGHT = """
import sys
from data_prep import TileSpec, TilingSettings, update_tiles
from data_prep.dataset import update
from data_prep.dataset import shards
from distkeras_grid.spark.session import build_session

step, folder, output, update_too = sys.argv[1:]
shards.SHARD_BYTES = 1  # a shard for each image
class Stops(update.Storage):
    '''Says so before the rename, and stays there until it is killed.'''

    renames = 0

    def rename(self, *names, **how):
        Stops.renames += 1
        if Stops.renames == int(step):
            print("here", flush=True)
            sys.stdin.read()
        super().rename(*names, **how)

update.Storage = shards.Storage = Stops
settings = TilingSettings(
    *(folder, output, TileSpec(28, angles=[0, 40])), split="0.5:0.5", update=update_too == "update"
)
update_tiles(settings, spark=build_session("night", master="local[1]"))
"""


@contextmanager
def killed_before(step: int, settings):
    """Run the night of these settings in a process of its own; kill it before a rename."""
    kind = "update" if settings.update else "first"
    with subprocess.Popen(
        [sys.executable, "-c", NIGHT, str(step), settings.input, settings.output, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as night:
        deadline = threading.Timer(300, night.kill)
        deadline.start()
        assert night.stdout.readline() == "here\n"
        yield
        deadline.cancel()
        os.kill(night.pid, signal.SIGKILL)


@pytest.mark.faults
@pytest.mark.usefixtures("first")
@pytest.mark.parametrize(
    "step",
    [1, *(pytest.param(step, marks=pytest.mark.full) for step in (2, 4))],
)
def test_a_killed_night_is_finished_by_the_next(spark, once, settings, folder, step, cut, tmp_path):
    """Killed before a rename: of the commit, of what describes it to others, of fingerprints."""
    splits = splits_of(spark, settings.output)
    before = Counter((row[1], row[-2]) for row in rows_of(spark, settings.output).elements())
    draw(folder / "b" / "1.png", 21)
    draw(folder / "a" / "new.png", 20)
    with killed_before(step, settings):
        # What a reader sees at that moment: the data set as it was.
        there = read_parquet(spark, settings.output).select("source_sha256", "tile_id").collect()
        assert (Counter(map(tuple, there)) == before) == (step == 1)
    done = update_tiles(settings, spark=spark)
    assert sorted(cut) == (["a/new.png", "b/1.png"] if step == 1 else [])
    undisturbed = replace(settings, output=str(tmp_path / "undisturbed"))
    once.copy_tiles(undisturbed.output)
    assert done.manifest["hash"] == update_tiles(undisturbed, spark=spark).manifest["hash"]
    fresh = replace(settings, output=str(tmp_path / "fresh"), update=False)
    tile_images(fresh, spark=spark)
    assert rows_of(spark, settings.output) == rows_of(spark, fresh.output)
    now = splits_of(spark, settings.output)
    assert now == splits_of(spark, undisturbed.output)
    assert {path: now[path] for path in splits} == splits
    for card in ("_croissant.json", "_README.md"):
        assert done.manifest["hash"] in (Path(settings.output) / card).read_text()
    told = (Path(settings.output) / ".huggingface.yaml").read_text()
    assert set(re.findall(r"shard=[\w-]+", told)) == set(done.manifest["shards"])
