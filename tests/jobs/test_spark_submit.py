"""Each verb by ``spark-submit`` on a standalone cluster, one after another as a user runs them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from distkeras_grid.cli.exit_codes import ExitCode
from distkeras_grid.submission import run_verb

# On YARN the same verbs run in make test.
pytestmark = [pytest.mark.full, pytest.mark.cluster, pytest.mark.tensorflow]

CLASSES = ("class0", "class1", "class2")


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("jobs")


def run(cluster, project, verb, *flags):
    """Submit a verb from the folder of the user's own modules; return what it printed."""
    ended = cluster.submit(
        str(run_verb.__file__), verb, *map(str, flags), cwd=project / "tests" / "jobs"
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def tiles(cluster, project, samples, work):
    for name in CLASSES:
        (work / "images" / name).mkdir(parents=True)
        for path in sorted((samples / name).glob("*.png"))[:3]:
            shutil.copy(path, work / "images" / name)
    run(
        cluster,
        project,
        "tile",
        *("--input", work / "images", "--output", work / "tiles"),
        *("--tile", 64, "--overlap", 0, "--angles", "0,90", "--split", "0.6:0.2:0.2"),
    )
    return work / "tiles"


@pytest.fixture(scope="module")
def trained(cluster, project, tiles, work):
    run(
        cluster,
        project,
        "train",
        *("--data", tiles, "--split", "train", "--validation-split", "validation"),
        *("--model", "small_net:build", "--features", "image", "--trainer", "ADAG"),
        *("--epochs", 2, "--batch-size", 8, "--set", "num_workers=2", "--seed", 1),
        *("--output", work / "run"),
    )
    return work / "run"


@pytest.fixture(scope="module")
def predicted(cluster, project, tiles, trained, work):
    run(
        cluster,
        project,
        "predict",
        *("--data", tiles, "--split", "test", "--model", trained, "--features", "image"),
        *("--output", work / "predictions"),
    )
    return work / "predictions"


def test_tiles(tiles):
    manifest = json.loads((tiles / "_versions" / "0.json").read_text())
    assert manifest["image"]["distkeras_grid"]["shape"] == [64, 64, 1]
    assert tuple(manifest["image"]["distkeras_grid"]["classes"]) == CLASSES
    assert {path.name for path in tiles.glob("shard=0-*/split=*")} == {
        *("split=train", "split=validation", "split=test")
    }


def test_training_by_two_executors(cluster, trained):
    assert {path.name for path in trained.iterdir() if not path.name.startswith(".")} == {
        *("model.keras", "history.jsonl", "run.json")
    }
    ran = json.loads((trained / "run.json").read_text())
    assert ran["master"] == cluster.url
    assert "Registering app run_verb.py" in cluster.log.read_text()
    assert [worker["worker"] for worker in ran["workers"]] == [0, 1]
    assert ran["samples"] == 2 * ran["spec"]["schedule"]["rows"]
    lines = [json.loads(line) for line in (trained / "history.jsonl").read_text().splitlines()]
    windows = [line for line in lines if line["kind"] == "window"]
    assert sum(window["samples"] for window in windows) == ran["samples"]
    assert {window["worker"] for window in windows} == {0, 1}
    epochs = [line for line in lines if line["kind"] == "epoch"]
    assert len(epochs) == 2
    assert "val_accuracy" in epochs[-1]["validation"]


def test_predictions_keep_the_columns_and_their_metadata(tiles, predicted):
    import pyarrow.dataset as ds

    before = ds.dataset(next(tiles.glob("shard=0-*/split=test")))
    after = ds.dataset(predicted)
    partitions = {"shard", "split"}
    assert {*before.schema.names, *partitions, "prediction"} == set(after.schema.names)
    assert after.count_rows() == before.count_rows()
    predictions = after.to_table(columns=["prediction"]).column(0).to_pylist()
    assert {len(row) for row in predictions} == {len(CLASSES)}
    assert all(sum(row) == pytest.approx(1.0, abs=1e-4) for row in predictions)
    assert b"distkeras_grid" in after.schema.metadata[b"org.apache.spark.sql.parquet.row.metadata"]


def test_evaluation(cluster, project, predicted, work):
    run(cluster, project, "evaluate", "--data", predicted, "--output", work / "figures.json")
    figures = json.loads((work / "figures.json").read_text())
    assert sum(map(sum, figures["confusion"])) == figures["rows"] > 0


def test_the_exit_code_comes_through_spark_submit(cluster, work):
    """One that is not Spark's own 1; the others are tested in one process."""
    ended = cluster.submit(str(run_verb.__file__), "evaluate", "--no-such-flag", cwd=work)
    assert ended.returncode == ExitCode.USAGE
