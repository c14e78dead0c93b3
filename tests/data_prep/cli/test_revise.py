"""Tables that change after tiling, by a night or by the verb: no file in a shard changes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from data_prep import TileSpec, TilingSettings, update_tiles
from data_prep.cli.folds import make_folds
from data_prep.cli.revise import main
from data_prep.spark.leak_check import check_leaks_of
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.dataframes import read_parquet, read_tiles
from tests.data_prep.first_night import FirstNight, draw

pytestmark = pytest.mark.spark


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


@pytest.fixture(scope="module")
def once(spark, tmp_path_factory):
    root = tmp_path_factory.mktemp("once")
    for i in range(3):
        for label in "ab":
            draw(root / "raw" / label / f"{i}.png", 10 * ord(label) + i)
    settings = TilingSettings(
        *(str(root / "raw"), str(root / "tiles"), TileSpec(32, overlap=0, angles=[0])),
        split="0.7:0.3",
        update=True,
    )
    return FirstNight.of(settings, spark)


@pytest.fixture
def settings(once, tmp_path):
    """The first night is over."""
    return once.copy(tmp_path)


@pytest.mark.full
def test_a_night_with_other_labels_writes_no_tile(spark, once, settings):
    raw, first = Path(settings.input), once.done
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


def test_the_verb_revises_tables_and_nights_keep_what_it_says(spark, settings, tmp_path, capsys):
    data = settings.output
    before, stored = told(data, "train", "test"), files(data)
    (tmp_path / "labels.csv").write_text("file,label\na/0.png,b\na/1.png,c\n")
    (tmp_path / "bad.csv").write_text("file,reason\nb/0.png,blurred\n")
    flags = ["--data", data]
    assert main([*flags, "--labels", str(tmp_path / "labels.csv")]) == 3
    assert main([*flags, "--labels", str(tmp_path / "labels.csv"), "--new-classes"]) == 0
    assert "relabelled 2" in capsys.readouterr().out
    assert main([*flags, "--exclude", str(tmp_path / "bad.csv")]) == 0
    after = told(data, "train", "test")
    assert set(after) == set(before) - {"b/0.png"}
    assert (after["a/0.png"][1:], after["a/1.png"][1:]) == ((1, "b"), (2, "c"))
    # The folders say what they said before.
    night = update_tiles(settings, spark=spark)
    assert (night.tiles, night.relabelled, night.left_out) == (0, 0, {})
    assert night.manifest["last_update"] == 2
    assert told(data, "train", "test") == after
    assert night.manifest["tiles"] == read_parquet(spark, data).count() == 10
    assert main([*flags, "--include", str(tmp_path / "bad.csv")]) == 0
    assert main([*flags, "--split", "0.4:0.6", "--seed", "5", "--allow-empty"]) == 0
    divided = told(data, "train", "test")
    assert set(divided) == set(before)
    assert {p for p in before if divided[p][0] != before[p][0]}
    assert told(data, "train", "test", version=0) == before
    assert files(data) == stored
    assert main(flags) == 2
