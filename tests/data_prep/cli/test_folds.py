"""Folds of a data set of tiles, made by the command and read by name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from data_prep import TileSpec, TilingSettings, update_tiles
from data_prep.cli.folds import main, make_folds
from distkeras_grid import AccuracyEvaluator
from distkeras_grid.errors import DataError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.columns import resolve_columns
from distkeras_grid.spark.dataframes import read_parquet, read_tiles
from distkeras_grid.stores.dataset_index import catalogue
from tests.data_prep.first_night import FirstNight, draw

pytestmark = pytest.mark.spark

ALL = ("train", "validation", "test")


@pytest.fixture(scope="module")
def once(spark, tmp_path_factory):
    """Two specimens for each of two classes, with two images each, and one that is tested on."""
    root = tmp_path_factory.mktemp("once")
    for i in range(5):
        for j in range(2):
            for label in "ab":
                draw(root / "raw" / label / f"S{i}_{j}.png", 100 * ord(label) + 10 * i + j)
    settings = TilingSettings(
        *(str(root / "raw"), str(root / "tiles"), TileSpec(32, overlap=0, angles=[0])),
        split="0.8:0.2",
        group="(?P<group>[ab]/S[0-9])",
        update=True,
    )
    return FirstNight.of(settings, spark)


@pytest.fixture
def settings(once, tmp_path):
    """The first night is over."""
    return once.copy(tmp_path)


def sources(frame):
    return {row.source for row in frame.select("source").distinct().collect()}


@pytest.mark.full
def test_each_fold_is_read_by_name(settings, capsys):
    before = {path: path.stat().st_mtime_ns for path in Path(settings.output).rglob("*.parquet")}
    assert main(["--data", settings.output, "--by", "2"]) == 0
    assert "fold_1: holds out 8 images" in capsys.readouterr().out
    (tested,) = read_tiles(settings.output, splits=("test",))
    held_out = Counter()
    for fold in ("fold_0", "fold_1"):
        frames = read_tiles(settings.output, splits=ALL, fold=fold)
        train, validation, test = map(sources, frames)
        assert not train & validation
        assert {path[:4] for path in train}.isdisjoint(path[:4] for path in validation)
        assert test == sources(tested)
        assert {path[0] for path in validation} == {"a", "b"}
        held_out.update(validation)
        for name, frame in zip(ALL, frames, strict=True):
            assert {row.split for row in frame.select("split").distinct().collect()} == {name}
            assert Field.from_metadata("image", frame.schema["image"].metadata).shape[0] == 32
    assert set(held_out.values()) == {1}
    assert len(held_out) == 16
    after = {path: path.stat().st_mtime_ns for path in Path(settings.output).rglob("*.parquet")}
    assert after == before


def test_images_of_later_nights_get_folds_and_change_none(spark, settings):
    first = make_folds(settings.output, "group", name="specimen", spark=spark)
    assert len(first.columns) == 8
    draw(Path(settings.input) / "a" / "S9_0.png", 1)
    draw(Path(settings.input) / "b" / "S9_0.png", 2)
    update_tiles(settings, spark=spark)
    with pytest.raises(DataError):
        read_tiles(settings.output, splits=("train",), fold=first.columns[0])
    later = make_folds(settings.output, "group", name="specimen", spark=spark)
    assert first.held_out.items() <= later.held_out.items()
    train, validation = read_tiles(settings.output, splits=ALL[:2], fold=first.columns[0])
    assert sources(validation) == {p for p, f in first.held_out.items() if f == first.columns[0]}
    assert sources(train).isdisjoint(sources(validation))


def test_a_notebook_sees_the_specimens_of_a_fold_and_of_a_version(spark, settings):
    """Figures by specimen, without a word about groups; intervals are computed from them."""
    make_folds(settings.output, "2", spark=spark)
    (held_out,) = read_tiles(settings.output, splits=("validation",), fold="fold_0", version=1)
    found = {row.source: row.group for row in held_out.select("source", "group").collect()}
    assert len(found) == 8
    assert all(group == source[:4] for source, group in found.items())
    predicted = held_out.withColumn("prediction", held_out.label)
    report = AccuracyEvaluator().report(predicted)
    assert [(level.name, level.count) for level in report.levels[1:]] == [
        ("source", 8),
        ("group", 4),
    ]
    assert report.clusters == 4
    # Workers of local sets find the rows in their files.
    frame = read_parquet(spark, settings.output)
    store = catalogue(frame, resolve_columns(frame, "image", "label"), "").store
    assert len(set(store.pool.images)) == len(sources(frame))
