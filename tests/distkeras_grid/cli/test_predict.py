"""``predict`` on real Spark: what it writes and what it never replaces, and bad input to it."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from distkeras_grid import progress
from distkeras_grid.cli import evaluate, predict
from distkeras_grid.spark import dataframes
from tests.specs import make_spec

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow]


@pytest.fixture(scope="module")
def data(spark, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("cli") / "data")
    frame = spark.range(20).selectExpr(
        "id",
        "array(cast(id as float), 1.0f) as features",
        "cast(id > 9 as int) as label",
        "if(id < 15, 'train', 'test') as split",
    )
    frame.write.partitionBy("split").parquet(path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Says class 1 above 9.5, of the folder of a run as of a file."""
    import keras

    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, activation="sigmoid")])
    net.set_weights([np.array([[1.0], [-9.5]]), np.array([0.0])])
    folder = tmp_path_factory.mktemp("run")
    net.save(folder / "model.keras")
    return str(folder)


def predicted(*flags, data, model, output):
    return predict.main(["--data", data, "--model", model, "--output", str(output), *flags])


def test_predictions_stand_beside_the_columns_and_are_evaluated(
    spark, data, model, tmp_path, capsys
):
    output = tmp_path / "predictions"
    assert predicted(data=data, model=model, output=f"{output}/") == 0
    assert capsys.readouterr().out == f"predicted 20 rows; wrote {output}/\n"
    frame = spark.read.parquet(str(output))
    assert frame.columns == ["id", "features", "label", "split", "prediction"]
    assert [path.name for path in tmp_path.iterdir()] == ["predictions"]
    assert evaluate.main(["--data", str(output)]) == 0
    assert "accuracy 1.0000 on 20 rows" in capsys.readouterr().out


@pytest.mark.full
def test_the_columns_that_the_run_and_the_predictions_recorded_are_taken(
    spark, data, model, tmp_path, capsys
):
    run = tmp_path / "run"
    shutil.copytree(model, run)
    spec = make_spec(features=({"name": "pixels"},), labels=({"name": "kind"},))
    (run / "run.json").write_text(json.dumps({"spec": spec.to_json()}))
    renamed = str(tmp_path / "renamed")
    frame = spark.read.parquet(data).withColumnsRenamed({"features": "pixels", "label": "kind"})
    frame.write.parquet(renamed)
    output = tmp_path / "predictions"
    assert predicted("--prediction", "p", data=renamed, model=str(run), output=output) == 0
    capsys.readouterr()
    assert evaluate.main(["--data", str(output)]) == 0
    assert "accuracy 1.0000 on 20 rows" in capsys.readouterr().out


@pytest.mark.full
def test_predictions_that_exist_are_replaced_on_demand_only(spark, data, model, tmp_path, capsys):
    output = tmp_path / "predictions"
    assert predicted(data=data, model=model, output=output) == 0
    assert predicted(data=data, model=model, output=output) == 4
    assert "--overwrite" in capsys.readouterr().err
    assert spark.read.parquet(str(output)).count() == 20
    flags = ("--overwrite", "--split", "test", "--drop", "features", "--prediction", "p")
    assert predicted(*flags, data=data, model=f"{model}/model.keras", output=output) == 0
    frame = spark.read.parquet(str(output))
    assert frame.columns == ["id", "label", "split", "p"]
    assert frame.count() == 5
    assert [path.name for path in tmp_path.iterdir()] == ["predictions"]
    manifest = json.loads((output / "_predictions.json").read_text())
    assert manifest["versions"]["pyspark"] == spark.version
    told = {name: manifest[name] for name in ("data", "split", "drop", "prediction", "rows")}
    expected = {"data": data, "split": "test", "drop": ["features"], "prediction": "p", "rows": 5}
    assert told == expected


def test_what_is_no_set_of_predictions_is_never_replaced(spark, data, model, tmp_path, capsys):
    """A folder of the user's, another job's Parquet files, the input and what contains it."""
    copied = shutil.copytree(data, tmp_path / "mine" / "data")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("precious")
    before = sorted(tmp_path.rglob("*"))
    for output, told in (
        (tmp_path / "notes", "is not a set of predictions"),
        (tmp_path / "mine" / "data" / "split=test", "is not a set of predictions"),
        (copied, "is or contains the input"),
        (tmp_path / "mine", "is or contains the input"),
    ):
        assert predicted("--overwrite", data=str(copied), model=model, output=output) in (2, 4)
        error = capsys.readouterr().err
        assert told in error
        assert str(output) in error
    assert sorted(tmp_path.rglob("*")) == before


def test_the_data_are_opened_once(data, model, tmp_path, monkeypatch):
    opened, read = [], dataframes._read_files
    monkeypatch.setattr(
        dataframes,
        "_read_files",
        lambda spark, path, *more: opened.append(path) or read(spark, path, *more),
    )
    assert predicted("--split", "test", data=data, model=model, output=tmp_path / "out") == 0
    assert opened == [data]


@pytest.mark.parametrize(
    ("flags", "code", "told"),
    [
        (["--features", "feature"], 3, "Did you mean 'features'?"),
        (["--features", "label"], 3, "(2,)"),
        (["--prediction", "label"], 3, "have a column 'label' already"),
        (["--split", "validation"], 3, "has no split 'validation'"),
        (["--model", "/no/such/run"], 4, "/no/such/run/model.keras"),
        (["--data", "/no/such/data"], 4, "/no/such/data"),
        (["--output", "/proc/version/predictions"], 4, "/proc/version"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    data, model, tmp_path, capsys, monkeypatch, flags, code, told
):
    # No line of progress, however slow this machine is.
    monkeypatch.setattr(progress.Lines, "interval", 1e9)
    assert predicted(*flags, data=data, model=model, output=tmp_path / "out") == code
    error = capsys.readouterr().err
    assert told in error
    assert len(error.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
