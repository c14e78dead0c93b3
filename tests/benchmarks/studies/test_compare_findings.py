"""The statements of the paper, on made-up figures."""

from __future__ import annotations

from tests.benchmarks.studies import compare_findings as findings
from tests.benchmarks.studies.cells import LOCAL, Cell, Outcome
from tests.benchmarks.studies.summary import summarise


def outcome(trainer, batch, first, end, *, model="mlp", workers=2, seed=1, **more):
    """A run; `first` and `end` are (seconds, accuracy)."""
    workers = 1 if trainer in (LOCAL, "SingleTrainer") else workers
    return Outcome(Cell(model, trainer, batch, workers, seed), 2, 5.0, *first, *end, **more)


def answer(ask, *outcomes):
    return ask(summarise(outcomes))


def test_slower_than_local():
    found = answer(
        findings.is_distributed_slower,
        outcome(LOCAL, 32, (1, 0.8), (4.0, 0.9)),
        outcome("ADAG", 32, (1, 0.8), (2.0, 0.9)),
        outcome("DOWNPOUR", 32, (1, 0.8), (8.0, 0.9)),
        outcome("AEASGD", 32, (1, 0.8), (5.0, 0.9)),
        outcome("SingleTrainer", 32, (1, 0.8), (99.0, 0.9)),  # not distributed
        outcome("ADAG", 64, (1, 0.8), (2.0, 0.9)),  # nothing to compare with
    )
    assert found.answer.startswith("Holds in part. 2 of 3 times slower")
    assert "median 0.80, from 0.50 to 2.00" in found.answer
    assert found.rows == [
        ["model", "side", "batch 32: local / ours"],
        ["mlp", "ADAG, 2 workers", "2.00"],
        ["mlp", "AEASGD, 2 workers", "0.80"],
        ["mlp", "DOWNPOUR, 2 workers", "0.50"],
    ]


def test_accuracy_close_to_local():
    found = answer(
        findings.is_accuracy_close,
        outcome(LOCAL, 32, (1, 0.8), (4.0, 0.900)),
        outcome("ADAG", 32, (1, 0.8), (2.0, 0.907)),
        outcome("DOWNPOUR", 32, (1, 0.8), (8.0, 0.850)),
    )
    assert found.answer.startswith("Holds in part. 1 of 2 times within one point.")
    assert "from -5.0 to +0.7" in found.answer
    assert found.rows[1:] == [
        ["mlp", "ADAG, 2 workers", "+0.7"],
        ["mlp", "DOWNPOUR, 2 workers", "-5.0"],
    ]


def test_adag_is_robust_where_nobody_changes_less():
    def runs(adag, other):
        return [
            outcome(trainer, batch, (1, accuracy), (1, 0.9))
            for trainer, accuracies in (("ADAG", adag), ("AEASGD", other))
            for batch, accuracy in zip((32, 128), accuracies, strict=True)
        ]

    steady = answer(findings.is_adag_robust, *runs((0.80, 0.79), (0.80, 0.70)))
    assert steady.answer.startswith("Holds. mlp, ADAG, 2 workers: 1.0 points")
    assert "0 of 1 others change less" in steady.answer
    assert steady.rows[2] == ["mlp", "AEASGD, 2 workers", "10.0", "0.0"]
    unsteady = answer(findings.is_adag_robust, *runs((0.80, 0.60), (0.80, 0.79)))
    assert unsteady.answer.startswith("Does not hold.")


def test_downpour_against_adag_and_aeasgd():
    found = answer(
        findings.is_downpour_behind,
        outcome("DOWNPOUR", 32, (1, 0.8), (6.0, 0.85)),
        outcome("ADAG", 32, (1, 0.8), (3.0, 0.86)),
        outcome("AEASGD", 32, (1, 0.8), (8.0, 0.87)),
        outcome("ADAG", 32, (1, 0.8), (1.0, 0.86), workers=4),
        outcome("DOWNPOUR", 64, (1, 0.8), (6.0, 0.85)),
        outcome("ADAG", 64, (1, 0.8), (4.0, 0.86)),
    )
    assert found.answer == (
        "Slower: holds in part. 2 of 3 times. Less accurate at the end: holds. 3 of 3 times."
    )
    assert found.rows[1:] == [
        ["mlp", "32", "2", "ADAG", "2.00", "-1.0"],
        ["mlp", "32", "2", "AEASGD", "0.75", "-2.0"],
        ["mlp", "64", "2", "ADAG", "1.50", "-1.0"],
    ]


def test_seeds_of_the_single_trainer():
    def runs(trainer, *accuracies):
        return [
            outcome(trainer, 32, (1, 0.8), (1, accuracy), seed=seed)
            for seed, accuracy in enumerate(accuracies)
        ]

    steady = answer(
        findings.is_single_unsteady, *runs("SingleTrainer", 0.9, 0.91), *runs(LOCAL, 0.8, 0.9)
    )
    assert steady.answer.startswith("Does not hold. Its seeds lie further apart than those of")
    assert "1.0 points at most, of local 10.0" in steady.answer
    one_seed = answer(findings.is_single_unsteady, *runs("SingleTrainer", 0.9), *runs(LOCAL, 0.8))
    assert one_seed is None


def test_a_larger_batch_trades_accuracy_for_time():
    found = answer(
        findings.is_batch_a_trade,
        *(
            outcome("ADAG", b, (s, a), (1, 1))
            for b, s, a in ((32, 4, 0.8), (64, 9, 0.1), (128, 1, 0.7))
        ),
        *(outcome(LOCAL, b, (s, a), (1, 1)) for b, s, a in ((32, 4, 0.8), (128, 2, 0.9))),
    )
    assert found.answer.startswith("Holds in part. From the smallest")
    assert found.rows[1:] == [
        ["mlp", "local, all cores", "32 to 128", "0.50", "+10.0"],
        ["mlp", "ADAG, 2 workers", "32 to 128", "0.25", "-10.0"],
    ]


def test_statements_without_their_sides_are_left_out():
    assert findings.find_all([]) == []
    alone = summarise([outcome("ADAG", 32, (1, 0.5), (1, 0.5))])
    assert findings.find_all(alone) == []
    both = summarise([outcome(t, 32, (1, 0.5), (1, 0.5)) for t in ("ADAG", LOCAL)])
    assert [found.statement.split()[0] for found in findings.find_all(both)] == [
        "Distributed",
        "The",
    ]
