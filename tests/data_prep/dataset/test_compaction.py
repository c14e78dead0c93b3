"""Which shards become one, and that their rows are the same then."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from data_prep import TileSpec, TilingSettings, update_tiles
from data_prep.cli.compact import main
from data_prep.cli.revise import revise_tiles
from data_prep.dataset import compaction
from data_prep.dataset.commit import Transaction
from data_prep.dataset.compaction import ShardFiles, choose_shards, compact_tiles
from data_prep.dataset.shards import SHARD_BYTES
from distkeras_grid.dataset.manifest import shard_number
from distkeras_grid.errors import BusyError, NoSpaceError
from distkeras_grid.spark.dataframes import read_parquet
from distkeras_grid.spark.storage import Storage
from tests.data_prep.first_night import draw

MB = 1 << 20


def held(number, files, mean):
    split = {"split=train": files - files // 4, "split=test": files // 4}
    files_of = {name: n for name, n in split.items() if n}
    return ShardFiles(number, files_of, files * mean * MB)


def numbers(bundles):
    return [[each.number for each in bundle] for bundle in bundles]


def test_small_shards_become_one_and_large_ones_stay():
    nights = [held(0, 80, 190), *(held(i, 4, 5) for i in range(1, 9)), held(9, 8, 160)]
    assert numbers(choose_shards(nights)) == [list(range(1, 9))]
    assert numbers(choose_shards([held(0, 80, 190)])) == []
    # One small night alone: its files could not be fewer.
    assert numbers(choose_shards([held(3, 1, 5)])) == []
    assert numbers(choose_shards([])) == []


def test_a_bundle_is_no_larger_than_a_shard():
    nights = [held(i, 60, 100) for i in range(10)]
    bundles = choose_shards(nights)
    assert numbers(bundles) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert all(sum(each.size for each in bundle) <= SHARD_BYTES for bundle in bundles)


@pytest.mark.parametrize(("files", "mean"), [(4, 5), (60, 3), (100, 60), (100, 100), (7, 127)])
def test_what_was_compacted_is_not_compacted_again(files, mean):
    """Spark fills tasks with the next file that fits, the largest first: each is more than half."""
    nights = [held(i, files, mean) for i in range(3)]
    for bundle in choose_shards(nights):
        size = sum(each.size for each in bundle)
        full = size // compaction.SMALL_FILE_BYTES
        after = ShardFiles(9, {"split=train": full + 1, "split=test": 1}, size)
        assert choose_shards([after]) == []


def rows_of(spark, data):
    columns = ("source", "split", "label", "label_name", "tile_id")
    rows = read_parquet(spark, data).select("image", *columns).collect()
    return Counter((*(row[name] for name in columns), bytes(row.image)) for row in rows)


@pytest.mark.full
@pytest.mark.spark
def test_many_nights_become_one_shard_with_the_same_rows(spark, tmp_path, monkeypatch, capsys):
    raw, data = tmp_path / "raw", str(tmp_path / "tiles")
    settings = TilingSettings(
        *(str(raw), data, TileSpec(32, overlap=0, angles=[0, 45])),
        split="0.5:0.5",
        near_duplicates="off",
        allow_empty=True,
        update=True,
    )
    for night in range(3):
        for label in "ab":
            draw(raw / label / f"{night}.png", 10 * night + ord(label))
        manifest = update_tiles(settings, spark=spark).manifest
    table = tmp_path / "labels.csv"
    table.write_text("file,label\na/0.png,b\n")
    aside = tmp_path / "aside.csv"
    aside.write_text("file\nb/1.png\n")
    revise_tiles(data, labels=str(table), spark=spark)
    _, manifest = revise_tiles(data, excluded=str(aside), spark=spark)
    before = rows_of(spark, data)
    assert [shard_number(name) for name in manifest["shards"]] == [0, 1, 2]

    # What ends before the commit leaves nothing.
    with monkeypatch.context() as patched:
        patched.setattr(Storage, "free_space", lambda *_: 10)
        with pytest.raises(NoSpaceError):
            compact_tiles(data, spark=spark)

        def late(*_):
            raise BusyError("another run came between")

        patched.setattr(Storage, "free_space", lambda *_: 1 << 40)
        patched.setattr(Transaction, "commit", late)
        with pytest.raises(BusyError):
            compact_tiles(data, spark=spark)
    assert sorted(path.name for path in Path(data).glob("*=*")) == manifest["shards"]

    assert main(["--data", data]) == 0
    assert "in 1 shards" in capsys.readouterr().out
    (shard,) = Path(data).glob("shard=3-*")
    assert len(list(shard.glob("split=*/*.parquet"))) == 2
    assert rows_of(spark, data) == before
    # The files have the present labels, and the image that is set aside can be taken back.
    labels = spark.read.parquet(str(shard)).where("source = 'a/0.png'").select("label_name")
    assert {row.label_name for row in labels.collect()} == {"b"}
    again = compact_tiles(data, spark=spark)
    assert (again["hash"], again["tiles"]) == (manifest["hash"], manifest["tiles"])
    assert again["last_update"] == manifest["last_update"] + 1
    revise_tiles(data, included=str(aside), spark=spark)
    assert rows_of(spark, data).total() > before.total()
    # The next night goes on.
    draw(raw / "a" / "new.png", 99)
    night = update_tiles(settings, spark=spark)
    assert (night.new, night.relabelled, night.tiles > 0) == (1, 0, True)
