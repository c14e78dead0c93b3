from __future__ import annotations

import pytest

from tests.benchmarks.studies.cells import LOCAL, Cell, Outcome
from tests.benchmarks.studies.summary import END, FIRST, summarise


def outcome(trainer, batch, first, end, *, model="mlp", workers=2, seed=1, **more):
    """A run; `first` and `end` are (seconds, accuracy)."""
    workers = 1 if trainer in (LOCAL, "SingleTrainer") else workers
    return Outcome(Cell(model, trainer, batch, workers, seed), 2, 5.0, *first, *end, **more)


def test_seeds_become_one_line():
    (line,) = summarise(
        [
            outcome("ADAG", 32, (1.0, 0.5), (3.0, 0.7)),
            outcome("ADAG", 32, (2.0, 0.6), (6.0, 0.9), seed=2),
            outcome("ADAG", 32, (0, 0), (0, 0), seed=3, error="NonFiniteLossError: NaN"),
        ]
    )
    assert (line.side, line.seeds, line.failed) == ("ADAG, 2 workers", 2, 1)
    assert line.seconds[FIRST].mean == 1.5
    assert (line.seconds[END].lowest, line.seconds[END].highest) == (3.0, 6.0)
    assert line.accuracy[END].mean == pytest.approx(0.8)
    assert line.accuracy[END].width == pytest.approx(0.2)


def test_a_side_whose_runs_all_failed_has_no_line():
    assert summarise([outcome("GEM", 32, (0, 0), (0, 0), error="x")]) == []


def test_local_stands_first_in_each_table():
    names = ("SingleTrainer", LOCAL, "ADAG")
    lines = summarise([outcome(t, b, (1, 0.5), (1, 0.5)) for b in (128, 32) for t in names])
    assert [(line.batch, line.trainer) for line in lines] == [
        *((32, LOCAL), (32, "ADAG"), (32, "SingleTrainer")),
        *((128, LOCAL), (128, "ADAG"), (128, "SingleTrainer")),
    ]
