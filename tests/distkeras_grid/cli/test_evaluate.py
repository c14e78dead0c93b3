"""``evaluate`` on real Spark: its figures, what it costs, and bad input to it."""

from __future__ import annotations

import json
import math

import pytest

from distkeras_grid.cli import evaluate

pytestmark = pytest.mark.spark

LABELS = [0, 0, 0, 1, 1, 2]
PREDICTIONS = [[0.8, 0.1, 0.1], [0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.8, 0.1]]
PREDICTIONS += [[0.1, 0.8, 0.1], [0.1, 0.2, 0.7]]
FIGURES = {"accuracy": 5 / 6, "rows": 6, "confusion": [[2, 1, 0], [0, 2, 0], [0, 0, 1]]}


def figures_in(path):
    found = json.loads(path.read_text())
    assert [level["name"] for level in found["levels"]] == ["row"]
    return {name: found[name] for name in FIGURES}


@pytest.fixture
def written(spark, tmp_path):
    """Write rows; return their path."""

    def write(predictions, labels=LABELS):
        path = str(tmp_path / "predictions")
        rows = list(zip(predictions, labels, strict=True))
        spark.createDataFrame(rows, "prediction array<float>, label int").write.parquet(path)
        return path

    return write


def test_the_figures_are_printed_and_written(written, tmp_path, capsys):
    data, output = written(PREDICTIONS), tmp_path / "figures.json"
    flags = ["--data", data, "--output", str(output)]
    assert evaluate.main(flags) == 0
    told = capsys.readouterr().out
    assert told.startswith("accuracy 0.8333 on 6 rows\n")
    assert told.endswith(f"wrote {output}\n")
    assert figures_in(output) == FIGURES

    output.write_text("old")
    assert evaluate.main(flags) == 4
    assert "--overwrite" in capsys.readouterr().err
    assert output.read_text() == "old"
    assert evaluate.main([*flags, "--overwrite"]) == 0
    assert figures_in(output) == FIGURES


def test_the_predictions_are_read_once(spark, written):
    data = written(PREDICTIONS)
    # Whatever reads a row of them adds one to this.
    seen = spark.sparkContext.accumulator(0)

    def look(batches):
        for batch in batches:
            seen.add(batch.num_rows)
            yield batch

    from distkeras_grid.spark import dataframes

    frame = spark.read.parquet(data)
    watched = frame.mapInArrow(look, frame.schema)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dataframes, "read_parquet", lambda *_, **__: watched)
        assert evaluate.main(["--data", data]) == 0
    assert seen.value == len(LABELS)


def test_predictions_that_hold_nan_are_counted_in_the_error(written, capsys):
    data = written([*PREDICTIONS[:4], [math.nan, 0.5, 0.5], [0.1, math.nan, 0.7]])
    assert evaluate.main(["--data", data]) == 3
    told = capsys.readouterr()
    assert "2 predictions hold NaN" in told.err
    assert not told.out


def test_a_wrong_column_of_labels(written, capsys):
    data = written(PREDICTIONS)
    assert evaluate.main(["--data", data, "--label", "lable"]) == 3
    assert "lable" in capsys.readouterr().err


def test_the_groups_of_a_data_set_of_tiles_have_figures(spark, tmp_path, capsys):
    data = tmp_path / "tiles"
    rows = [([0.9, 0.1], 0, "a.png"), ([0.2, 0.8], 1, "b.png"), ([0.4, 0.6], 1, "c.png")]
    schema = "prediction array<float>, label int, source string"
    spark.createDataFrame(rows, schema).write.parquet(str(data))
    sources = [
        {"source": "a.png", "status": "tiled", "tiles": 1},
        {"source": "b.png", "status": "tiled", "tiles": 1, "group": "S7"},
        {"source": "c.png", "status": "tiled", "tiles": 1, "group": "S7"},
    ]
    (data / "_versions").mkdir()
    (data / "_versions" / "0.json").write_text(json.dumps({"sources": sources}))
    output = tmp_path / "figures.json"
    flags = ["--data", str(data)]
    assert evaluate.main([*flags, "--output", str(output)]) == 0
    assert "from how 2 of column 'group' differ" in capsys.readouterr().out
    levels = json.loads(output.read_text())["levels"]
    assert [(each["name"], each["count"]) for each in levels] == [
        ("row", 3),
        ("source", 3),
        ("group", 2),
    ]
    assert evaluate.main([*flags, "--by", "source"]) == 0
    assert "from how 3 of column 'source' differ" in capsys.readouterr().out
    (data / "_versions" / "1.json").write_text("[3]")
    assert evaluate.main(flags) == 3
    assert str(data) in capsys.readouterr().err
