"""What the studies decide, on made-up runs and small data; two tests measure for real."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from distkeras_grid.errors import (
    ConfigurationError,
    EmptyDataError,
    NonFiniteLossError,
    SchemaError,
    TrainingError,
)
from distkeras_grid.feeding.schema import Field
from distkeras_grid.model_parallel.time_model import NetworkLink
from tests.benchmarks.studies import study
from tests.benchmarks.studies.cells import LOCAL, Cell, Outcome, grid
from tests.benchmarks.studies.data import IMAGES_FILE, LABELS_FILE, load_data, scaled_arrays
from tests.benchmarks.studies.fitting import compile_ahead, timed_fit
from tests.benchmarks.studies.nets import NETS
from tests.benchmarks.studies.processes import Side
from tests.benchmarks.studies.results import Results, table
from tests.benchmarks.studies.split_runs import SplitResult, SplitSetup, measure
from tests.benchmarks.studies.split_study import (
    LATENCY,
    NETWORKS,
    SIZES,
    Calibration,
    calibrate,
    errors,
    predict,
    print_study,
    speed_up,
)
from tests.benchmarks.studies.study import Examiner, Regime, check_names, run_study

CELLS = [Cell("mlp", LOCAL, 16, 1, seed) for seed in (1, 2)]
FIELD = Field("image", (6, 6, 1), scale=1 / 255, classes=("dark", "bright"))
LINK = NetworkLink(bandwidth=2e9, latency=1e-4)
KNOWN = Calibration((2e10, 5e10), 1e-9)


def test_the_grid_has_every_combination_once_seed_by_seed():
    cells = grid(["ADAG", LOCAL], ["mlp", "cnn"], [32, 128], [2, 4], 2, {LOCAL})
    assert len(cells) == len(set(cells)) == 2 * 2 * 2 * (2 + 1)
    assert [cell.seed for cell in cells] == [1] * 12 + [2] * 12
    assert {cell.workers for cell in cells if cell.trainer == LOCAL} == {1}
    assert len(grid([LOCAL], ["mlp"], [33], [2], 1, {LOCAL})) == 1
    for batches, workers, seeds in (([33], [2], 1), ([0], [2], 1), ([32], [-1], 1), ([32], [2], 0)):
        with pytest.raises(ConfigurationError):
            grid(["ADAG"], ["mlp"], batches, workers, seeds, ())


@pytest.mark.tensorflow
def test_unknown_names_are_refused_before_anything_runs():
    assert check_names(["ADAG", "SingleTrainer", LOCAL], ["mlp"]) == ["SingleTrainer", LOCAL]
    for trainers, models in ((["ADAM"], ["mlp"]), (["EnsembleTrainer"], ["mlp"]), ([], ["mlp"])):
        with pytest.raises(ConfigurationError, match="no such trainer"):
            check_names(trainers, models)
    with pytest.raises(ConfigurationError, match=r"no such optimizer\. Received: 'adaam'"):
        Regime(1, "adaam").build_optimizer()
    assert float(Regime(1, "sgd", 0.25).build_optimizer().learning_rate) == 0.25


def test_a_comparison_goes_on_where_it_was_and_a_divergence_is_a_result(tmp_path, monkeypatch):
    """Anything else, such as too little memory, ends it."""
    path, measured = tmp_path / "new" / "study.jsonl", study.Measured((), (), 5.0, 2)

    def answer(cell, *_):
        if cell.seed == 1:
            raise NonFiniteLossError("the loss is NaN")
        if answer.dies:
            raise TrainingError("the process died, code -9")
        return measured

    answer.dies = True
    monkeypatch.setattr(study, "measure", answer)
    monkeypatch.setattr(Examiner, "judge", lambda _, cell, __: Outcome(cell, 2, end_accuracy=0.5))
    with pytest.raises(TrainingError):
        run_study(CELLS, None, Results(path, {"rows": 1}), Regime(1), lambda _: None)
    answer.dies = False
    results = Results(path, {"rows": 1})
    assert [each.error for each in results.outcomes] == ["NonFiniteLossError: the loss is NaN"]
    assert run_study(CELLS, None, results, Regime(1), lambda _: None) == 1
    assert [each.cell for each in Results(path, {"rows": 1}).outcomes] == CELLS
    with pytest.raises(ConfigurationError, match="measured with rows 1"):
        Results(path, {"rows": 2})


def test_a_row_of_the_table_is_the_spread_of_the_seeds():
    adag = [Cell("mlp", "ADAG", 32, 2, seed) for seed in (1, 2, 3)]
    rows = table(
        [
            Outcome(adag[0], 4, first_seconds=1.0, end_accuracy=0.7),
            Outcome(adag[1], 4, first_seconds=2.0, end_accuracy=0.7),
            Outcome(adag[2], error="NonFiniteLossError: NaN"),
            Outcome(replace(CELLS[0], batch=32), end_accuracy=0.9),
        ]
    )
    assert [row[2] for row in rows] == ["local, all cores", "ADAG, 2 workers"]
    assert rows[1][3:6] == [4, 2, 1]
    assert rows[1][7] == "1.50 (1.00 to 2.00)"
    assert rows[1][10] == "0.7000"


def test_curves_are_those_of_validation_and_test_is_looked_at_once(monkeypatch):
    looks = []

    def accuracy(examiner, name, weights, rows):
        looks.append((rows, weights))
        return {"first": 0.7, "end": 0.8}[weights] - 0.1 * (rows == "test")

    monkeypatch.setattr(Examiner, "accuracy", accuracy)
    measured = study.Measured((100, 1.0, "first"), (200, 2.0, "end"), 5.0, 2)
    data = SimpleNamespace(validation="validation", test="test")
    outcome = Examiner(data).judge(CELLS[0], measured)
    assert (outcome.first_accuracy, outcome.end_accuracy) == (0.7, 0.8)
    assert outcome.test_accuracy == pytest.approx(0.7)
    assert [weights for rows, weights in looks if rows == "test"] == ["end"]


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


@pytest.mark.full
@pytest.mark.spark
def test_both_sides_have_the_same_rows(spark, path, tmp_path):
    data = load_data(path, None, tmp_path)
    assert (data.rows, len(data.validation), len(data.test), data.classes) == (192, 32, 64, 2)
    few = load_data(path, 50, tmp_path)
    assert few.fingerprint != data.fingerprint
    images, labels = np.load(tmp_path / IMAGES_FILE), np.load(tmp_path / LABELS_FILE)
    assert images.shape == (50, 6, 6, 1)
    theirs = {(bytes(row.image), row.label) for row in few.train.collect()}
    assert theirs == {(i.tobytes(), int(n)) for i, n in zip(images, labels, strict=True)}
    assert load_data(path, 50, tmp_path).fingerprint == few.fingerprint


@pytest.mark.full
@pytest.mark.spark
def test_without_a_validation_split_a_fixed_part_of_train_is_held_out(spark, path, tmp_path):
    """The test split is looked at once, so that nobody chooses by it."""
    divided = spark.read.parquet(path).where("split <> 'validation'")
    twice = divided.union(divided.where("split = 'train'"))
    alone = str(tmp_path / "alone")
    twice.selectExpr("*", "0 as item").write.partitionBy("split").parquet(alone)
    found, few = (load_data(alone, rows, tmp_path) for rows in (None, 50))
    train = {bytes(row.image) for row in found.train.collect()}
    held, again = ({i.tobytes() for i in each.validation.features[0]} for each in (found, few))
    assert len(train) + len(held) == 192
    # Pictures that are there twice are on one side.
    assert train.isdisjoint(held)
    assert 8 <= len(held) <= 32
    assert again == held


@pytest.mark.spark
@pytest.mark.parametrize(
    ("columns", "most", "error"),
    [(["'a.png' as source"], 200, SchemaError), ([], 1, EmptyDataError)],
    ids=["tiles of one image", "a tenth that is no image"],
)
def test_rows_that_cannot_be_divided_are_refused(spark, path, tmp_path, columns, most, error):
    frame, alone = spark.read.parquet(path), str(tmp_path / "alone")
    parts = [frame.where(f"split = '{name}'").limit(most) for name in ("train", "test")]
    joined = parts[0].unionByName(parts[1])
    joined.selectExpr("*", *columns).write.partitionBy("split").parquet(alone)
    with pytest.raises(error, match=r"validation|train"):
        load_data(alone, None, tmp_path)


@pytest.mark.spark
@pytest.mark.tensorflow
@pytest.mark.full
def test_a_grid_is_measured(spark, path, tmp_path):
    data = load_data(path, None, tmp_path)
    trainers = ["ADAG", "SingleTrainer", LOCAL]
    cells = grid(trainers, ["mlp"], [16], [2], 1, check_names(trainers, ["mlp"]))
    results = Results(tmp_path / "study.jsonl", {})
    assert run_study(cells, data, results, Regime(8), lambda _: None) == 3
    for outcome in results.outcomes:
        assert 0 < outcome.first_seconds < outcome.end_seconds
        assert outcome.start_seconds > 0
        assert outcome.end_accuracy > 0.9
        assert outcome.test_accuracy > 0.9
    windows = {outcome.cell.trainer: outcome.window for outcome in results.outcomes}
    assert (windows[LOCAL], windows["ADAG"]) == (None, 1)


def test_calls_are_answered_in_another_process_with_its_own_environment():
    with Side(partial(os.getenv, "DKG_TEST"), {"DKG_TEST": "there"}) as side:
        side.ask("upper")
        assert side.answer(30) == "THERE"
        side.ask("index", "x")
        with pytest.raises(TrainingError, match="failed with ValueError"):
            side.answer(30)
    assert "DKG_TEST" not in os.environ


def test_a_process_that_dies_or_does_not_answer_is_an_error():
    with (
        pytest.raises(TrainingError, match="died with exit code 7"),
        Side(partial(os._exit, 7), {}),
    ):
        pass
    with Side(dict, {}) as side, pytest.raises(TrainingError, match="not answered for 0 s"):
        side.answer(0.2)
    assert not side._process.is_alive()


def test_fit_gets_what_the_workers_see(tmp_path):
    images = np.arange(2 * 4, dtype=np.uint8).reshape(2, 2, 2, 1)
    np.save(tmp_path / IMAGES_FILE, images)
    np.save(tmp_path / LABELS_FILE, np.array([1, 0]))
    scaled, labels = scaled_arrays(tmp_path, Field("image", (4,), scale=0.5, offset=-1.0))
    assert (scaled.dtype, scaled.shape) == (np.float32, (2, 4))
    assert scaled[0].tolist() == [-1.0, -0.5, 0.0, 0.5]
    assert labels.tolist() == [1, 0]


@pytest.mark.tensorflow
def test_timed_fit_keeps_each_mark_and_the_trial_leaves_no_trace():
    rng = np.random.default_rng(0)
    images = rng.random((50, 12), dtype=np.float32)
    labels = rng.integers(0, 3, 50)
    model = NETS["mlp"].build((12,), 3, seed=4)
    compile_ahead(model, images, labels, 8)
    untouched = NETS["mlp"].build((12,), 3, seed=4)
    for left, right in zip(model.get_weights(), untouched.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)
    assert int(model.optimizer.iterations.numpy()) == 0
    points = timed_fit(model, images, labels, batch=8, epochs=2, marks=2)
    assert [samples for samples, _, _ in points] == [24, 50, 74, 100]
    seconds = [seconds for _, seconds, _ in points]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0
    np.testing.assert_array_equal(
        points[-1][2], np.concatenate([w.ravel() for w in model.get_weights()])
    )


def result(kernels, slowdown=1.0, factor=1.0):
    """A run on a machine that does what the time model says, or takes `factor` times as long."""
    setup = SplitSetup(kernels, 4, (slowdown,))
    plan = predict(setup, KNOWN, LINK, always=True)
    return SplitResult(setup, plan.whole, plan.whole / 2, factor * plan.divided, plan, LINK)


def test_the_time_model_finds_the_speed_of_the_machine_and_its_own_error(capsys):
    """The error is that of a model that has not seen the net."""
    results = [result(kernels, s) for kernels in SIZES[:3] for s in (1.0, 2.0)]
    found = calibrate(results)
    assert found.rates == pytest.approx(KNOWN.rates)
    assert found.rest == pytest.approx(KNOWN.rest)
    assert errors(results) == pytest.approx([0.0] * 6, abs=1e-9)
    assert errors([results[0], result(SIZES[1], factor=2.0)]) == pytest.approx([0.0, -0.5])
    assert errors(results[:1]) == []
    print_study(results, "a machine", "numbers")
    assert "| 4 CPUs, 50:500 kernels |" in capsys.readouterr().out
    with pytest.raises(EmptyDataError):
        calibrate([])


def test_the_table_of_the_guide_is_what_the_time_model_says(project):
    """Four devices of 50 GFLOP/s, 25 in the first convolution, and a batch of 128."""
    guide = (project / "distkeras_grid/model_parallel/README.md").read_text(encoding="utf-8")
    (rows,) = re.findall(r"\| kernels (.*?)\n\n", guide, re.DOTALL)
    head, _, *rows = [line.strip("| ").split(" | ") for line in rows.splitlines()]
    assert len(rows) == len(SIZES)
    calibration = Calibration((25e9, 50e9), 1e-9)
    for (name, *told), kernels in zip(rows, SIZES, strict=True):
        assert name == f"{kernels[0]}:{kernels[1]}"
        for network, figure in zip(head, told, strict=True):
            link = NetworkLink(bandwidth=NETWORKS[network], latency=LATENCY)
            plan = predict(SplitSetup(kernels, 128, (1.0,) * 3), calibration, link)
            assert figure == f"{speed_up(plan):.2f}"


@pytest.mark.tensorflow
@pytest.mark.full
def test_two_processes_measure_a_net():
    found = measure(SplitSetup((4, 8), 2, (1.0,), shape=(8, 8, 3)))
    assert min(found.one_core, found.all_cores, found.divided, found.plan.divided) > 0
    assert found.plan.shares
    assert found.link.bandwidth > 1e6
