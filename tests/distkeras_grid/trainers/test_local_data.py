"""Trainers on local sets, on real Spark: what workers draw, read, test and tell."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from distkeras_grid import Field, LocalSets
from distkeras_grid.errors import (
    ConfigurationError,
    DataError,
    EmptyDataError,
    LabelError,
    SchemaError,
)
from distkeras_grid.history import History
from distkeras_grid.local_sets.sampler import digest_of
from distkeras_grid.local_sets.tile_index import TileIndex
from distkeras_grid.records import LocalRecord, LocalSet
from distkeras_grid.spark.columns import resolve_columns
from distkeras_grid.spec import RunSpec
from distkeras_grid.stores.dataset_index import DatasetIndex, catalogue, common_folder, root_of
from distkeras_grid.stores.tile_store import ParquetStore
from distkeras_grid.trainers.local_data import LocalData, describe_local
from tests.distkeras_grid.stores.servers import Damaged, http_server, webhdfs_server

SIDE, CLASSES, IMAGES, EACH = 6, 3, 4, 25


@pytest.fixture(scope="module")
def tiles(spark, tmp_path_factory):
    """Four images of each class, one of them for validation; the names need quoting."""
    from pyspark.sql import functions as F

    rng = np.random.default_rng(5)
    rows = []
    for image in range(CLASSES * IMAGES):
        label, split = image % CLASSES, "train" if image < CLASSES * 3 else "validation"
        for _ in range(EACH):
            pixels = rng.integers(0, 60, (SIDE, SIDE, 1), np.uint8) + np.uint8(90 * label)
            rows.append((bytearray(pixels.tobytes()), label, split, f"{image}.png"))
    field = Field("image", (SIDE, SIDE, 1), scale=1 / 255)
    columns = "image binary, label int, split string, source string"
    frame = spark.createDataFrame(rows, columns).withMetadata("image", field.to_metadata())
    path = str(tmp_path_factory.mktemp("local") / "tiles #1 50%")
    ordered = frame.repartition(2, F.xxhash64("source")).sortWithinPartitions("source")
    writer = ordered.write.option("parquet.block.size", 4000).partitionBy("split")
    writer.option("parquet.block.size.row.check.min", 10).parquet(path)
    return path


def net():
    import keras

    keras.utils.set_random_seed(3)
    layers = [
        keras.Input((SIDE, SIDE, 1)),
        keras.layers.Flatten(),
        keras.layers.Dense(CLASSES, activation="softmax"),
    ]
    model = keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def trainer_of(name="AveragingTrainer", **arguments):
    import distkeras_grid

    settings = {"num_workers": 2, "features_col": "image", "batch_size": 10, "progress": False}
    return getattr(distkeras_grid, name)(net(), **{**settings, **arguments})


def catalogue_of(spark, data, **more):
    frame = spark.read.parquet(data) if isinstance(data, str) else data
    columns = resolve_columns(frame, "image", "label")
    return catalogue(frame, columns, data if isinstance(data, str) else "", **more)


def drawing_of(spark, path, sets, seed, workers):
    return LocalData(sets, catalogue_of(spark, path)).plan(seed, workers).drawing


# -- a run ----------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.tensorflow
def test_a_grid_of_desktops_in_one_call(spark, tiles):
    """Draws are those of the driver; tiles come from mirrors, one of which lies, and no other."""
    sets = {"iterations": 3, "local_train": 30, "local_test": 12}
    with (
        http_server(tiles) as good,
        webhdfs_server(Path(tiles)) as other,
        http_server(tiles, Damaged) as liar,
    ):
        local = LocalSets(tiles, **sets, mirrors=[good, liar, other])
        trainer = trainer_of(quorum=0.8)
        model = trainer.train(local, seed=4, validation_data=validation(spark, tiles))
    drawing = drawing_of(spark, tiles, local, 4, 2)
    history = trainer.history
    told = {(each.iteration, each.worker): each for each in history.local_sets}
    assert set(told) == {(t, j) for t in (1, 2, 3) for j in (0, 1)}
    for (iteration, worker), record in told.items():
        assert record.folded
        assert record.local.digest == digest_of(drawing.train(iteration - 1, worker))
        assert (record.local.train, record.local.test) == (30, 12)
        assert set(record.local.metrics) == {"loss", "accuracy"}
        assert record.local.read_seconds > 0
        assert liar not in record.local.bytes_read
    where = set().union(*(each.local.bytes_read for each in history.local_sets))
    assert where == {good, other}
    assert sum(sum(each.local.failures.values()) for each in history.local_sets) > 0
    # One exchange an iteration, and nothing but weights: 4 bytes a number, and a header.
    assert [(r.epoch, r.window, r.samples) for r in history.select(worker=0)] == [
        (t, 0, 30) for t in (1, 2, 3)
    ]
    weights = 4 * sum(weight.size for weight in model.get_weights())
    assert all(r.bytes_down < weights + 200 for r in history.records)
    assert len(history.history["val_accuracy"]) == 3
    described = history.params["local_sets"]
    planned = itertools.product(range(3), range(2))
    assert described["folded_coverage"] == drawing.coverage(planned)
    assert described["expected_coverage"] == pytest.approx(1 - (1 - 10 / 75) ** 6)
    assert RunSpec.from_json(trainer.run["spec"]).data.local == local.spec
    frame = history.local_tests()
    assert len(frame) == 6
    assert {"accuracy", "bytes_read", "read_seconds", "test_seconds"} <= set(frame.columns)
    assert History.from_lines(history.lines()).local_sets == history.local_sets


def validation(spark, path):
    return spark.read.parquet(path).where("split = 'validation'")


@pytest.mark.spark
@pytest.mark.tensorflow
@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "more"),
    [("DOWNPOUR", {}), ("SynchronousSGD", {}), ("EnsembleTrainer", {"data": "partition"})],
    ids=["DOWNPOUR", "SynchronousSGD", "EnsembleTrainer"],
)
def test_other_trainers_test_once_an_iteration_too(spark, tiles, name, more):
    sets = LocalSets(tiles, iterations=2, local_train=30, local_test=9)
    trainer = trainer_of(name, communication_window=2, **more)
    trainer.train(sets, seed=4)
    history = trainer.history
    assert history.samples == 2 * 2 * 30
    assert sorted((each.iteration, each.worker) for each in history.local_sets) == [
        (t, j) for t in (1, 2) for j in (0, 1)
    ]
    assert len(history.select(worker=0)) == 4
    assert 30 / 225 < history.params["local_sets"]["folded_coverage"] <= 120 / 225


# -- the catalogue --------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_catalogue_has_every_row_where_it_lies(spark, tiles):
    found = catalogue_of(spark, tiles)
    store = found.store
    assert len(store.pool) == CLASSES * IMAGES * EACH
    assert store.pool.class_sizes.tolist() == [IMAGES * EACH] * CLASSES
    assert len(found.pool_of("train")) == 3 * len(found.pool_of("validation"))
    assert any(len(file.groups) > 1 for file in store.files)
    with pytest.raises(SchemaError):
        found.pool_of("test")
    read = np.concatenate([pixels for _, pixels in store.open(0).read(np.arange(300))])
    expected = [row.image for row in spark.read.parquet(tiles).select("image").collect()]
    assert sorted(tile.tobytes() for tile in read) == sorted(map(bytes, expected))
    for place in (0, 77, 299):
        (tile,) = [pixels[0] for _, pixels in store.open(0).read(np.array([place]))]
        label = store.pool.labels[store.pool.runs_of(np.array([place]))][0]
        assert 90 * label <= tile.min() <= tile.max() < 90 * label + 60


@pytest.mark.spark
def test_filtered_and_corrected_rows_are_found_where_they_lie(spark, tiles):
    from pyspark.sql import functions as F

    now = F.broadcast(spark.createDataFrame([("0.png", 2)], "name string, now int"))
    frame = spark.read.parquet(tiles).join(now, F.col("source") == F.col("name"), "left")
    frame = frame.withColumn("label", F.coalesce("now", "label")).drop("now", "name")
    frame = frame.where("source != '1.png'")
    found = catalogue_of(spark, frame)
    assert found.store.pool.class_sizes.tolist() == [75, 75, 125]
    held = found.store.open(0).read(found.store.pool.of_class(2))
    brightest = [int(tile.max()) for _, tiles in held for tile in tiles]
    # Pixels of the relabelled image are still those of class 0.
    assert sum(value < 60 for value in brightest) == EACH


@pytest.mark.full
@pytest.mark.spark
def test_rows_that_cannot_be_read_again_are_refused(spark, tiles, tmp_path):
    frame = spark.read.parquet(tiles)
    copied = spark.createDataFrame(frame.toArrow())
    copied = copied.withMetadata("image", frame.schema["image"].metadata)
    with pytest.raises(SchemaError):
        catalogue_of(spark, copied)
    with pytest.raises(LabelError):
        catalogue_of(spark, frame.withColumn("label", frame.label - 1))
    with pytest.raises(LabelError):
        catalogue_of(spark, frame.withColumn("label", frame.label * 1.5))
    with pytest.raises(DataError):
        catalogue_of(spark, frame.where("false"))
    swapped = frame.selectExpr("image", "label", "source", "cast(rand(1) > 0.5 as string) split")
    with pytest.raises(DataError):
        catalogue_of(spark, swapped)


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.tensorflow
def test_what_local_sets_cannot_have_is_refused_before_work(spark, tiles):
    sets = LocalSets(tiles, iterations=1, local_train=30, local_test=12)
    wrong = [
        (trainer_of(num_epoch=2), sets, {}),
        (trainer_of(communication_window="once"), sets, {}),
        (trainer_of("EnsembleTrainer"), sets, {}),
        (trainer_of(), sets, {"sample_weight_col": "label"}),
    ]
    for trainer, data, more in wrong:
        with pytest.raises(ConfigurationError):
            trainer.train(data, **more)
    with pytest.raises(EmptyDataError):
        trainer_of().train(LocalSets(tiles, iterations=1, local_train=300))
    with pytest.raises(ConfigurationError):
        trainer_of().train(LocalSets(tiles, iterations=1, local_train=9, mirrors=["s3a://x"]))


def plan_of(tiles, workers=2, **more):
    """Plan for two classes of these images, without files."""
    labels = np.arange(len(tiles)) % 2
    store = ParquetStore(
        TileIndex.of(tiles, range(len(tiles)), labels, 2),
        *(Field("image", (1, 1, 1)), (), (), labels, labels),
    )
    sets = LocalSets("tiles", **{"iterations": 20, "local_train": 20, "split": None, **more})
    return LocalData(sets, DatasetIndex(store, ("",) * len(tiles))).plan(0, workers)


def test_a_division_of_the_images_that_leaves_too_few_tiles_is_found_before_the_run():
    plan_of([40, 40, 40, 40], local_test=10, test_images="others")
    with pytest.raises(EmptyDataError):
        plan_of([40, 40, 5, 5], local_test=10, test_images="others")
    plan_of([40, 40, 5, 5], test_images="others")


def test_a_history_tells_the_coverage_of_what_was_folded():
    plan = plan_of([40, 40])
    local = LocalSet(train=20, test=0, digest="0" * 16, read_seconds=0.5, bytes_read={"a": 7})
    told = [LocalRecord(0, 0, 1, True, local), LocalRecord(1, 0, 1, False, local)]
    described = describe_local(plan, 20, told)
    assert described["folded_coverage"] == 20 / 80
    assert described["expected_coverage"] == pytest.approx(1 - 0.75**40)
    assert (described["tiles"], described["images"]) == (80, 2)
    assert (described["bytes_read"], described["read_seconds"]) == (14, 1.0)


def test_folders_of_files():
    files = ["file:///a/b/shard=0/x.parquet", "file:///a/b/shard=1/split=train/y.parquet"]
    assert common_folder(files) == "file:///a/b"
    assert common_folder(files[1:]) == "file:///a/b"
    assert root_of(files, "/a/b/") == "file:///a/b"
    assert root_of(["file:///a%20b/c/x"], "a b") == "file:///a%20b"
