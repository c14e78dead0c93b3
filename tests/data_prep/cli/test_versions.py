"""Versions of a data set over some nights: listed, read by number and by hash, and let go."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from data_prep import TileSpec, TilingSettings, update_tiles
from data_prep.cli.versions import card_of, list_versions, main
from data_prep.dataset import commit
from distkeras_grid.errors import PathNotFoundError, SchemaError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.dataframes import read_parquet, read_tiles, version_of
from tests.data_prep.first_night import draw

pytestmark = pytest.mark.spark


def rows_of(path, **more):
    frames = read_tiles(path, splits=("train", "test"), **more)
    return Counter(
        (row.source, row.split, row.x, bytes(row.image))
        for frame in frames
        for row in frame.select("source", "split", "x", "image").collect()
    )


def check_cards(data, versions, spark, capsys):
    """A former version is described as it was, with what people wrote since."""
    page = Path(data) / "_croissant.json"
    page.write_text(json.dumps({**json.loads(page.read_text()), "license": "CC-BY-4.0"}))
    assert main(["--data", data, "--card", "0"]) == 0
    card = json.loads(capsys.readouterr().out)
    assert (card["version"], card["license"]) == ("0.0.0", "CC-BY-4.0")
    assert versions[0]["hash"] in card["citeAs"]
    assert card["description"].startswith("8 tiles")
    assert card_of(data, versions[0]["hash"][:12], spark=spark) == card_of(data, 0, spark=spark)
    assert json.loads(card_of(data, 2, spark=spark)) == json.loads(page.read_text())
    with pytest.raises(SchemaError):
        card_of(data, 7, spark=spark)


@pytest.fixture
def settings(tmp_path):
    for i in range(2):
        for label in "ab":
            draw(tmp_path / "raw" / label / f"{i}.png", 10 * ord(label) + i)
    return TilingSettings(
        *(str(tmp_path / "raw"), str(tmp_path / "tiles"), TileSpec(32, overlap=0, angles=[0])),
        split="0.5:0.5",
        near_duplicates="off",
        update=True,
    )


@pytest.mark.full
def test_each_night_is_a_version_that_can_be_read_while_its_shards_are_kept(
    spark, settings, capsys, monkeypatch
):
    data, raw = settings.output, Path(settings.input)
    update_tiles(settings, spark=spark)
    days = [rows_of(data)]
    draw(raw / "a" / "new.png", 1)
    update_tiles(settings, spark=spark)
    days.append(rows_of(data))
    # A changed image replaces the first shard.
    draw(raw / "b" / "1.png", 2)
    update_tiles(settings, spark=spark)
    assert [rows_of(data, version=number) for number in range(2)] == days
    (train,) = read_tiles(data, splits=("train",), version=0)
    assert Field.from_metadata("image", train.schema["image"].metadata).classes == ("a", "b")
    assert read_parquet(spark, data, version=0).count() == days[0].total()
    told = version_of(train.where("label = 0").select("image"))
    assert (told["number"], len(told["hash"])) == (0, 64)

    assert main(["--data", data]) == 0
    told = capsys.readouterr().out
    versions = list_versions(data, spark=spark)
    assert [(each["number"], each["tiles"]) for each in versions] == [(0, 8), (1, 10), (2, 10)]
    assert all(each["hash"] in told for each in versions)
    assert rows_of(data, version=versions[0]["hash"][:12]) == days[0]
    assert versions[0]["hash"] != versions[2]["hash"]

    check_cards(data, versions, spark, capsys)

    # Nothing new, and nothing is to be kept any more: what only former versions had goes, when
    # it is old enough.
    monkeypatch.setattr(commit, "VACUUM_AGE", timedelta(0))
    idle = update_tiles(replace(settings, keep_versions="1"), spark=spark)
    assert [each["number"] for each in list_versions(data, spark=spark)] == [2, 3]
    assert idle.manifest["hash"] == versions[2]["hash"]
    assert names_in(data, "_versions/*.json") == ["2.json", "3.json"]
    assert names_in(data, "shard=*") == sorted(idle.manifest["shards"])
    with pytest.raises(SchemaError):
        read_tiles(data, version=0)


def names_in(data, pattern):
    return sorted(path.name for path in Path(data).glob(pattern))


def test_what_is_no_data_set_of_tiles_has_no_versions(spark, tmp_path):
    with pytest.raises(PathNotFoundError):
        list_versions(str(tmp_path), spark=spark)
    with pytest.raises(PathNotFoundError):
        card_of(str(tmp_path), 0, spark=spark)
    spark.range(3).write.parquet(str(tmp_path / "plain"))
    with pytest.raises(SchemaError):
        read_parquet(spark, str(tmp_path / "plain"), version=0)
