"""A tiny grid from data to page, twice."""

from __future__ import annotations

import json

import numpy as np
import pytest

from distkeras_grid.errors import (
    ConfigurationError,
    EmptyDataError,
    NonFiniteLossError,
    PathNotFoundError,
    SchemaError,
    TrainingError,
)
from distkeras_grid.feeding.schema import Field
from tests.benchmarks.studies import study
from tests.benchmarks.studies.cells import LOCAL, Cell, grid
from tests.benchmarks.studies.data import IMAGES_FILE, LABELS_FILE, load_data
from tests.benchmarks.studies.page import write_report
from tests.benchmarks.studies.results import Results
from tests.benchmarks.studies.study import (
    Examiner,
    Regime,
    check_names,
    run_study,
    trainer_classes,
)

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow]

FIELD = Field("image", (6, 6, 1), scale=1 / 255, classes=("dark", "bright"))


def split_of(number):
    return "train" if number < 192 else "validation" if number < 224 else "test"


@pytest.fixture(scope="module")
def path(spark, tmp_path_factory):
    """192 images to train, 32 to validate and 64 to test, whose label is their brightness."""
    from pyspark.sql import types

    rng = np.random.default_rng(0)
    rows = []
    for number in range(288):
        label = number % 2
        pixels = rng.integers(0, 100, 36, dtype=np.uint8) + np.uint8(150 * label)
        rows.append((bytearray(pixels.tobytes()), label, split_of(number)))
    schema = types.StructType(
        [
            types.StructField("image", types.BinaryType(), metadata=FIELD.to_metadata()),
            types.StructField("label", types.IntegerType()),
            types.StructField("split", types.StringType()),
        ]
    )
    folder = str(tmp_path_factory.mktemp("data") / "set")
    spark.createDataFrame(rows, schema).write.partitionBy("split").parquet(folder)
    return folder


@pytest.fixture(scope="module")
def data(spark, path, tmp_path_factory):
    return load_data(path, None, tmp_path_factory.mktemp("arrays"))


def test_every_exported_trainer_can_be_compared():
    known = trainer_classes()
    assert {"ADAG", "DOWNPOUR", "AEASGD", "AveragingTrainer", "SingleTrainer"} <= set(known)
    assert not {"History", "EnsembleTrainer"} & set(known)
    assert check_names(["ADAG", "SingleTrainer", LOCAL], ["mlp"]) == ["SingleTrainer", LOCAL]
    with pytest.raises(ConfigurationError, match=r"no such trainer.*'ADAM'.*local, ADAG"):
        check_names(["ADAM"], ["mlp"])
    with pytest.raises(ConfigurationError, match=r"no such model.*'rnn'.*mlp, cnn"):
        check_names(["ADAG"], ["rnn"])


def test_the_optimizer_is_the_one_that_is_named():
    cell = Cell("mlp", LOCAL, 16, 1, 3)
    model = Regime(1, "sgd", 0.25).build(cell, FIELD, 2)
    assert type(model.optimizer).__name__ == "SGD"
    assert float(model.optimizer.learning_rate) == 0.25
    assert float(Regime(1).build_optimizer().learning_rate) == pytest.approx(0.001)
    with pytest.raises(ConfigurationError, match=r"no such optimizer\. Received: 'adaam'"):
        Regime(1, "adaam").build_optimizer()
    for wrong in ({"epochs": 0}, {"epochs": 1, "learning_rate": -1.0}):
        with pytest.raises(ConfigurationError, match="must be"):
            Regime(**wrong)


def test_both_sides_have_the_same_rows(spark, path, data, tmp_path):
    assert (data.rows, len(data.validation), len(data.test), data.classes) == (192, 32, 64, 2)
    few = load_data(path, 50, tmp_path)
    assert few.fingerprint != data.fingerprint
    images, labels = np.load(tmp_path / IMAGES_FILE), np.load(tmp_path / LABELS_FILE)
    assert images.shape == (50, 6, 6, 1)
    theirs = {(bytes(row.image), row.label) for row in few.train.collect()}
    assert theirs == {(i.tobytes(), int(n)) for i, n in zip(images, labels, strict=True)}
    assert 0 < labels.sum() < 50
    again = load_data(path, 50, tmp_path)
    assert {bytes(row.image) for row in again.train.collect()} == {image for image, _ in theirs}
    assert again.fingerprint == few.fingerprint


def pixels_of(held):
    return [image.tobytes() for image in held.features[0]]


def test_without_a_validation_split_a_fixed_part_of_train_is_held_out(spark, path, tmp_path):
    """The test split is looked at once, so that nobody chooses by it."""
    divided = spark.read.parquet(path).where("split <> 'validation'")
    twice = divided.union(divided.where("split = 'train'"))
    alone = str(tmp_path / "alone")
    twice.selectExpr("*", "0 as item").write.partitionBy("split").parquet(alone)
    found = load_data(alone, None, tmp_path)
    train = {bytes(row.image) for row in found.train.collect()}
    validation = set(pixels_of(found.validation))
    assert len(train) + len(validation) == 192
    # Pictures that are there twice are on one side.
    assert train.isdisjoint(validation)
    assert 8 <= len(validation) <= 32
    few = load_data(alone, 50, tmp_path)
    assert set(pixels_of(few.validation)) == validation
    assert len(few.test) == 64


def test_a_tenth_of_few_images_that_is_none_of_them_is_told(spark, path, tmp_path):
    """It was a ValueError of NumPy."""
    one = spark.read.parquet(path).where("split = 'train'").limit(1)
    both = one.unionByName(spark.read.parquet(path).where("split = 'test'").limit(1))
    few = str(tmp_path / "few")
    both.write.partitionBy("split").parquet(few)
    with pytest.raises(EmptyDataError, match=r"none in (train|validation)"):
        load_data(few, None, tmp_path)


def test_the_tiles_of_one_image_are_not_divided(spark, path, tmp_path):
    tiles = spark.read.parquet(path).where("split <> 'validation'")
    alone = str(tmp_path / "alone")
    tiles.selectExpr("*", "'a.png' as source").write.partitionBy("split").parquet(alone)
    with pytest.raises(SchemaError, match="validation"):
        load_data(alone, None, tmp_path)


@pytest.mark.full
def test_a_grid_is_measured_once(data, tmp_path):
    trainers = ["ADAG", "SingleTrainer", LOCAL]
    cells = grid(trainers, ["mlp"], [16], [2], 1, check_names(trainers, ["mlp"]))
    conditions = {"title": "tiny", "rows": 192, "validation_rows": 32, "epochs": 8}
    said = []
    assert run_study(cells, data, Results(tmp_path, conditions), Regime(8), said.append) == 3
    outcomes = {outcome.cell.trainer: outcome for outcome in Results(tmp_path, conditions).read()}
    assert set(outcomes) == set(trainers)
    for outcome in outcomes.values():
        assert 0 < outcome.first_seconds < outcome.end_seconds
        assert outcome.start_seconds > 0
        assert outcome.end_accuracy > 0.9
        assert outcome.test_accuracy > 0.9
    assert outcomes[LOCAL].window is None
    assert outcomes["ADAG"].window == 1
    assert said[0] == "3 cells, 0 of them measured before"
    assert "1 of 3: mlp, batch 16, seed 1: ADAG, 2 workers: epoch 1 " in said[1]

    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}
    assert run_study(cells, data, Results(tmp_path, conditions), Regime(8), said.append) == 0
    assert said[4:] == ["3 cells, 3 of them measured before"]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()} == files
    page = write_report(tmp_path, Results(tmp_path, conditions).read(), conditions).read_text()
    assert "SingleTrainer, 1 worker" in page


@pytest.mark.parametrize(
    "ends", [PathNotFoundError("the data are gone"), TrainingError("the process died, code -9")]
)
def test_a_diverged_training_is_a_result_and_anything_else_ends_the_study(
    data, tmp_path, monkeypatch, ends
):
    cells = [Cell("mlp", LOCAL, 16, 1, seed) for seed in (1, 2)]

    def fail(cell, *_):
        if cell.seed == 1:
            raise NonFiniteLossError("the loss is NaN")
        raise ends

    monkeypatch.setattr(study, "measure", fail)
    results = Results(tmp_path, {})
    with pytest.raises(type(ends)):
        run_study(cells, data, results, Regime(1), lambda _: None)
    assert [outcome.error for outcome in results.read()] == ["NonFiniteLossError: the loss is NaN"]
    assert json.loads((tmp_path / "cells" / cells[0].file_name).read_text())["seed"] == 1
    assert cells[1] not in results


def test_the_examiner_judges_the_weights_it_is_given(data):
    import keras

    from distkeras_grid.engine.keras_model import get_flat_weights
    from tests.benchmarks.studies.nets import NETS

    net = NETS["mlp"]
    model = net.build((36,), 2, seed=0)
    examiner = Examiner(data)
    before = get_flat_weights(model)
    bright = before.copy()
    bright[-1] += 1000  # the bias of the last class
    for rows in (data.validation, data.test):
        assert examiner.accuracy("mlp", bright, rows) == pytest.approx(0.5)
        (pixels,), (labels,) = rows.features, rows.labels
        images = pixels.reshape(-1, 36) / 255.0
        expected = float(np.mean(keras.ops.argmax(model(images), axis=1) == labels))
        assert examiner.accuracy("mlp", before, rows) == pytest.approx(expected)


def test_curves_are_those_of_validation_and_test_is_looked_at_once(data, monkeypatch):
    seen = []

    def accuracy(_, name, weights, rows):
        seen.append((rows is data.test, weights))
        return {"first": 0.7, "end": 0.8}[weights] - 0.1 * (rows is data.test)

    monkeypatch.setattr(Examiner, "accuracy", accuracy)
    measured = study.Measured((100, 1.0, "first"), (200, 2.0, "end"), 5.0, 2)
    outcome = Examiner(data).judge(Cell("mlp", "ADAG", 16, 2, 1), measured)
    assert (outcome.first_accuracy, outcome.end_accuracy) == (0.7, 0.8)
    assert outcome.test_accuracy == pytest.approx(0.7)
    assert [weights for is_test, weights in seen if is_test] == ["end"]
