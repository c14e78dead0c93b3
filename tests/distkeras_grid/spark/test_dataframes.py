"""What users hand over as data."""

import json
from pathlib import Path

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError, PathNotFoundError, SchemaError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.columns import resolve_columns, resolve_features, value_expression
from distkeras_grid.spark.dataframes import (
    as_dataframe,
    is_data_set,
    read_parquet,
    read_tiles,
)
from distkeras_grid.spark.internals import plan_of

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def frame(spark):
    from pyspark.ml.linalg import Vectors

    rows = (
        "X'0102' AS image, array(1D, 2D) AS numbers, 1 AS label, array(0, 1) AS onehot, 0.5D AS x"
    )
    vectors = spark.createDataFrame([(Vectors.dense([3.0, 4.0]),)], ["vector"])
    return spark.sql(f"SELECT {rows}").crossJoin(vectors)


def test_other_things_than_frames_are_refused_with_the_way_to_one(spark):
    for data in (np.zeros((2, 2)), [1, 2], {"a": 1}):
        with pytest.raises(ConfigurationError, match="DataFrame"):
            as_dataframe(spark, data)
    with pytest.raises(ConfigurationError, match="createDataFrame\\(rdd"):
        as_dataframe(spark, spark.sparkContext.parallelize([1]))


def test_a_path_that_is_not_there(spark, tmp_path):
    with pytest.raises(PathNotFoundError, match="nothing"):
        as_dataframe(spark, str(tmp_path / "nothing"))


def test_metadata_of_the_column_are_found_after_select_and_filter(frame):
    field = Field("image", (1, 2, 1), scale=1 / 255, classes=("a", "b"))
    described = frame.withMetadata("image", field.to_metadata())
    kept = described.select("image", "label").where("label = 1")
    assert resolve_features(kept, "image") == (field,)


@pytest.mark.parametrize("name", ["numbers", "vector"])
def test_arrays_and_vectors_need_no_description(frame, name):
    (field,) = resolve_features(frame, name)
    assert (field.shape, field.dtype) == ((2,), "float32")
    values = frame.select(value_expression(frame, field).alias("v")).first().v
    assert values == ([1.0, 2.0] if name == "numbers" else [3.0, 4.0])


@pytest.mark.parametrize(
    ("label", "shape", "dtype"),
    [("label", (), "int64"), ("onehot", (2,), "int64"), ("x", (), "float32")],
)
def test_kinds_of_labels(frame, label, shape, dtype):
    (found,) = resolve_columns(frame, "numbers", label).labels
    assert (found.shape, found.dtype) == (shape, dtype)


@pytest.mark.full
def test_a_path_may_have_the_characters_of_a_pattern(spark, frame, tmp_path):
    """It did not exist, although it was there; a pattern of the user's is still one."""
    for name in ("plate [3] {a}", "plate 3"):
        frame.select("label").write.parquet(str(tmp_path / name))
    assert read_parquet(spark, str(tmp_path / "plate [3] {a}")).count() == 1
    assert read_parquet(spark, str(tmp_path / "plate*")).count() == 2


def test_of_shards_those_are_read_that_the_data_set_names(spark, frame, tmp_path):
    path = str(tmp_path / "tiles")
    for shard in range(3):
        frame.write.parquet(f"{path}/shard={shard}/split=train")
    rows = frame.count()
    assert read_parquet(spark, path).count() == 3 * rows
    describe(path, {"shards": ["shard=0", "shard=2"]}, 3)
    found = read_parquet(spark, f"{path}/")
    assert found.count() == 2 * rows
    assert {row[0] for row in found.select("shard").distinct().collect()} == {0, 2}
    assert read_tiles(path, splits=("train",))[0].count() == 2 * rows
    # The highest number counts, and not the last in the alphabet.
    describe(path, {}, 10)
    assert read_parquet(spark, path).count() == 3 * rows


def test_tiles_of_a_run_that_has_not_committed_are_not_read(spark, frame, tmp_path):
    path = str(tmp_path / "tiles")
    frame.write.parquet(f"{path}/shard=0-20261127T113000-1f2e3d4c/split=train")
    with pytest.raises(PathNotFoundError, match="not complete"):
        read_parquet(spark, path)
    describe(path, {"shards": ["shard=0-20261127T113000-1f2e3d4c"]})
    assert read_parquet(spark, path).count() == frame.count()


def describe(path, manifest, number=0):
    """Write the manifest of a data set's version; return its path."""
    file = Path(path, "_versions", f"{number}.json")
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(manifest))
    return file


def test_read_tiles_gives_the_splits_and_keeps_metadata(spark, frame, tmp_path):
    field = Field("image", (2,), scale=1 / 255)
    path = str(tmp_path / "tiles")
    described = frame.select("image", "label").withMetadata("image", field.to_metadata())
    for split in ("train", "test"):
        described.write.parquet(f"{path}/split={split}")
    train, test = read_tiles(path)
    assert (train.count(), test.count()) == (1, 1)
    assert resolve_features(train, "image") == (field,)
    with pytest.raises(SchemaError, match="no split 'validation'"):
        read_tiles(path, splits=("validation",))


@pytest.fixture
def grouped(spark, tmp_path):
    """Rows of images, two of which are of one specimen; one that is gone has its former group."""
    path = tmp_path / "tiles"
    rows = [("a.png", 0), ("b.png", 1), ("b.png", 1), ("c.png", 1)]
    for split, some in (("train", rows[:1]), ("test", rows[1:])):
        found = spark.createDataFrame(some, "source string, label int")
        found.write.parquet(f"{path}/split={split}")
    tiled = {"status": "tiled", "tiles": 1}
    sources = [
        {"source": "a.png", "split": "train", **tiled},
        {"source": "b.png", "split": "test", "group": "S7", **tiled},
        {"source": "c.png", "split": "test", "group": "S7", **tiled},
        {"source": "b.png", "status": "removed", "group": "S1"},
    ]
    describe(path, {"sources": sources})
    return str(path)


def test_rows_have_the_groups_of_their_images(spark, grouped):
    whole = read_parquet(spark, grouped)
    groups = sorted((row.source, row.group) for row in whole.collect())
    assert groups == [("a.png", None), ("b.png", "S7"), ("b.png", "S7"), ("c.png", "S7")]
    train, test = read_tiles(grouped)
    assert [row.group for row in train.collect()] == [None]
    assert [row.group for row in test.collect()] == ["S7"] * 3
    # A run reads such rows from the files each time: nothing in their plan changes their order.
    assert is_data_set(test)
    plan = plan_of(test)
    assert "BroadcastExchange" in plan
    assert "Exchange" not in plan.replace("BroadcastExchange", "")
    assert not is_data_set(test.select("label"))


def test_without_groups_there_is_no_such_column_and_one_of_the_files_stays(spark, grouped):
    manifest = Path(grouped, "_versions", "0.json")
    before = read_parquet(spark, grouped).drop("group")
    manifest.write_text(manifest.read_text().replace('"group"', '"ignored"'))
    assert read_parquet(spark, grouped).columns == before.columns

    own = f"{grouped}-own"
    before.selectExpr("*", "'mine' as group").write.parquet(own)
    sources = [{"source": "a.png", "status": "tiled", "group": "S7"}]
    describe(own, {"sources": sources})
    assert {row.group for row in read_parquet(spark, own).collect()} == {"mine"}
