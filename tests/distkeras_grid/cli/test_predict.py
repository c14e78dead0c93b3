"""``predict`` and ``evaluate`` on real Spark: what they write, and bad input to them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from distkeras_grid.cli import evaluate, predict

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
    assert capsys.readouterr().out == f"predicted 20 rows; wrote {output}\n"
    frame = spark.read.parquet(str(output))
    assert frame.columns == ["id", "features", "label", "split", "prediction"]
    assert [path.name for path in tmp_path.iterdir()] == ["predictions"]

    figures = tmp_path / "figures.json"
    assert evaluate.main(["--data", str(output), "--output", str(figures)]) == 0
    assert "accuracy 1.0000 on 20 rows" in capsys.readouterr().out
    assert json.loads(figures.read_text()) == {
        "accuracy": 1.0,
        "rows": 20,
        "confusion": [[10, 0], [0, 10]],
    }
    assert evaluate.main(["--data", str(output), "--output", str(figures)]) == 4
    assert evaluate.main(["--data", str(output), "--output", str(figures), "--overwrite"]) == 0


def test_an_output_that_exists_is_kept_and_replaced_when_asked(
    spark, data, model, tmp_path, capsys
):
    output = tmp_path / "predictions"
    output.mkdir()
    (output / "mine.txt").write_text("precious")
    assert predicted(data=data, model=model, output=output) == 4
    assert "--overwrite" in capsys.readouterr().err
    assert (output / "mine.txt").exists()
    flags = ("--overwrite", "--split", "test", "--drop", "features", "--prediction", "p")
    assert predicted(*flags, data=data, model=f"{model}/model.keras", output=output) == 0
    frame = spark.read.parquet(str(output))
    assert frame.columns == ["id", "label", "split", "p"]
    assert frame.count() == 5
    assert [path.name for path in tmp_path.iterdir()] == ["predictions"]


@pytest.mark.parametrize(
    ("flags", "code", "told"),
    [
        (["--features", "feature"], 3, "Did you mean 'features'?"),
        (["--features", "label"], 3, "takes (2,)"),
        (["--prediction", "label"], 3, "have a column 'label' already"),
        (["--split", "validation"], 3, "has no split 'validation'; it has test, train"),
        (["--model", "/no/such/run"], 4, "/no/such/run/model.keras"),
        (["--data", "/no/such/data"], 4, "/no/such/data"),
        (["--output", "/proc/version/predictions"], 4, "/proc/version"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(data, model, tmp_path, capsys, flags, code, told):
    assert predicted(*flags, data=data, model=model, output=tmp_path / "out") == code
    error = capsys.readouterr().err
    assert told in error
    assert len(error.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_rows_that_cannot_be_predicted_leave_nothing(spark, model, tmp_path, capfd):
    data = tmp_path / "data"
    frame = spark.range(4).selectExpr("if(id = 3, array(1.0f), array(1.0f, 2.0f)) as features")
    frame.coalesce(1).write.parquet(str(data))
    assert predicted(data=str(data), model=model, output=tmp_path / "out") == 3
    assert "SchemaError: " in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_wrong_column_of_labels(data, capsys):
    assert evaluate.main(["--data", data, "--prediction", "label", "--label", "lable"]) == 3
    assert "lable" in capsys.readouterr().err
