from __future__ import annotations

import json

import pytest

from distkeras_grid import fsync
from distkeras_grid.errors import ConfigurationError, DataError, StorageError
from tests.benchmarks.studies.cells import LOCAL, Cell, Outcome, grid
from tests.benchmarks.studies.results import Results

CELL = Cell("mlp", "ADAG", 32, 2, 1)


def test_the_grid_has_every_combination_once():
    cells = grid(["ADAG", "SingleTrainer", LOCAL], ["mlp", "cnn"], [32, 128], [2, 4], 3, {LOCAL})
    assert len(cells) == len(set(cells)) == 3 * 2 * 2 * (2 + 2 + 1)
    assert len({cell.file_name for cell in cells}) == len(cells)
    assert {cell.workers for cell in cells if cell.trainer == LOCAL} == {1}
    assert {cell.workers for cell in cells if cell.trainer == "ADAG"} == {2, 4}


def test_sides_of_one_table_take_turns_seed_by_seed():
    cells = grid(["ADAG", LOCAL], ["mlp", "cnn"], [32, 128], [2], 2, {LOCAL})
    assert [(c.seed, c.batch, c.trainer) for c in cells[:4]] == [
        (1, 32, "ADAG"),
        (1, 32, LOCAL),
        (1, 128, "ADAG"),
        (1, 128, LOCAL),
    ]
    assert [cell.seed for cell in cells] == [1] * 8 + [2] * 8


def test_workers_share_the_batch():
    assert Cell("mlp", "ADAG", 128, 4, 1).worker_batch == 32
    with pytest.raises(ConfigurationError, match="batch of 33 and 2 workers"):
        grid(["ADAG"], ["mlp"], [33], [2], 1, ())
    # One worker takes any.
    assert len(grid([LOCAL], ["mlp"], [33], [2], 1, {LOCAL})) == 1


@pytest.mark.parametrize("numbers", [([0], [2], 1), ([32], [-1], 1), ([32], [2], 0), ([], [2], 1)])
def test_numbers_below_one_are_refused(numbers):
    batches, workers, seeds = numbers
    with pytest.raises(ConfigurationError, match="whole numbers of at least 1"):
        grid(["ADAG"], ["mlp"], batches, workers, seeds, ())


def test_a_result_is_there_once_it_is_whole(tmp_path):
    results = Results(tmp_path / "study", {"rows": 10})
    assert CELL not in results
    outcome = Outcome(CELL, 2, 3.5, 1.25, 0.5, 2.5, 0.75)
    results.add(outcome)
    assert CELL in results
    assert Cell("mlp", "ADAG", 32, 2, 2) not in results
    assert results.read() == [outcome]
    # What a killed run left is no result.
    (tmp_path / "study/cells/.mlp-ADAG-batch32-workers2-seed2.json.77").write_text('{"mod')
    assert results.read() == [outcome]
    assert Results(tmp_path / "study", {"rows": 10}).read() == [outcome]


def test_a_result_that_was_not_finished_is_not_there(tmp_path, monkeypatch):
    results = Results(tmp_path, {})

    def fail(*_):
        raise OSError("the disk is gone")

    monkeypatch.setattr(fsync, "replace", fail)
    with pytest.raises(OSError, match="the disk is gone"):
        results.add(Outcome(CELL))
    assert CELL not in results
    assert results.read() == []


def test_results_of_other_conditions_are_not_mixed(tmp_path):
    Results(tmp_path, {"rows": 10, "epochs": 1})
    with pytest.raises(ConfigurationError, match="with epochs 1"):
        Results(tmp_path, {"rows": 10, "epochs": 2})
    with pytest.raises(ConfigurationError, match="measured with title None"):
        Results(tmp_path, {"rows": 10, "epochs": 1, "title": "a"})


def test_a_damaged_result_is_named(tmp_path):
    results = Results(tmp_path, {})
    path = tmp_path / "cells" / CELL.file_name
    path.write_text('{"model": "mlp"')
    with pytest.raises(DataError, match=rf"{CELL.file_name} is not JSON"):
        results.read()
    path.write_text(json.dumps({"model": "mlp"}))
    with pytest.raises(DataError, match=r"result of a comparison \(KeyError\('trainer'\)\)"):
        results.read()
    path.write_text("[]")
    with pytest.raises(DataError, match="not a JSON object"):
        results.read()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot be made"):
        Results(tmp_path / "file" / "below", {})
