from __future__ import annotations

import csv
import io
import json

import pytest

from tests.benchmarks.studies.cells import LOCAL, Cell, Outcome
from tests.benchmarks.studies.page import (
    Finding,
    batch_points,
    csv_text,
    noise,
    table,
    write_report,
)
from tests.benchmarks.studies.summary import FIRST, summarise

CONDITIONS = {"title": "made-up data", "rows": 100, "validation_rows": 2500, "epochs": 3}


def outcomes():
    good = [
        Outcome(
            Cell(model, trainer, batch, 1 if trainer == LOCAL else 2, seed),
            *(None if trainer == LOCAL else 2, 4.0, batch / seed, 0.5, 3.0, 0.9, 0.8),
        )
        for model in ("mlp", "cnn")
        for trainer in (LOCAL, "ADAG")
        for batch in (32, 128)
        for seed in (1, 2)
    ]
    return [*good, Outcome(Cell("cnn", "GEM", 32, 2, 1), error="NonFiniteLossError: <NaN>")]


def find_one(lines):
    return [Finding("Lines are many.", f"{len(lines)} of them.", [["head"], ["row"]])]


@pytest.mark.full
def test_the_report_holds_everything(tmp_path):
    page = write_report(tmp_path, outcomes(), CONDITIONS, find_one).read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(f"end-{what}-{m}.png" for what in ("accuracy", "seconds") for m in ("cnn", "mlp")),
        *(f"first-{what}-{m}.png" for what in ("accuracy", "seconds") for m in ("cnn", "mlp")),
        *("index.html", "results.csv", "results.json"),
    ]
    assert "Trainers and plain Keras on made-up data" in page
    assert "Lines are many." in page
    assert "cnn, batch 32, seed 1: GEM, 2 workers" in page
    assert "NonFiniteLossError: &lt;NaN&gt;" in page
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["conditions"] == CONDITIONS
    assert len(written["cells"]) == 17
    assert written["findings"][0]["answer"] == "8 of them."


def test_one_epoch_has_four_pictures(tmp_path):
    write_report(tmp_path, outcomes(), {**CONDITIONS, "epochs": 1})
    assert len(list(tmp_path.glob("first-*.png"))) == len(list(tmp_path.glob("*.png"))) == 4


def test_csv_has_a_line_a_cell():
    rows = list(csv.DictReader(io.StringIO(csv_text(outcomes()))))
    assert len(rows) == 17
    assert rows[0]["trainer"] == LOCAL
    assert rows[0]["first_seconds"] == "32.0"
    assert rows[-1]["error"] == "NonFiniteLossError: <NaN>"


def test_pictures_show_mean_lowest_and_highest():
    points = batch_points(summarise(outcomes()), "mlp", "seconds", FIRST)
    assert points == {
        "local, all cores": [(32, 24.0, 16.0, 32.0), (128, 96.0, 64.0, 128.0)],
        "ADAG, 2 workers": [(32, 24.0, 16.0, 32.0), (128, 96.0, 64.0, 128.0)],
    }


def test_the_table_and_the_noise():
    rows = table(summarise(outcomes()))
    assert rows[1] == [
        *("cnn", "32", "local, all cores", "", "2", "4.0"),
        *("24.00 (16.00 to 32.00)", "0.5000", "3.00", "0.9000", "0.8000"),
    ]
    assert rows[2][3] == "2"
    # sqrt(0.9 * 0.1 / 2500) = 0.006
    assert "2,500 validation rows is up to 0.6 points" in noise(summarise(outcomes()), 2500)
