"""The page that says what may die, what is promised then, and which test shows it.

A test that kills something says so by ``@pytest.mark.promise(fault, promise)``. From these marks,
and from the runs of `tests.faults.test_pairs` and `tests.invariants.test_fault_product`,
``make fault-table`` writes ``tests/faults/README.md``, and a test compares the two.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent.parent
PAGE = Path(__file__).parent / "README.md"
MARK = "promise"
HEAD = """\
# What may die, and what is promised

`make fault-table` writes this page from the marks `promise` of the tests. Files are below `tests`.
"Exact" means that every row counts as often as in a run that nothing happens to. The guide to the
[trainers](../../distkeras_grid/trainers/README.md#workers-that-are-lost) explains the words.

| fault | promise | test |
|---|---|---|
"""
MATRIX = """
## Any fault of a worker, at any point of its run

`faults/test_pairs.py` has {runs} runs of worker processes, a server process and the driver's loop,
without Spark and Keras. Any two of point, fault, family and kind meet in one of them (**P**).
Families are {families}; kinds are {kinds}.

`invariants/test_fault_product.py` has all {product} combinations on the cores, in simulated time
(**M**). Each window is folded once, and the center is what these windows make of it one after the
other. Nobody else is blamed, the run ends in bounded time, and memory is bounded.

On Spark's own executors, workers of `DOWNPOUR` with plain SGD are also killed or stopped while the
frames of greeting, gate, commit, reply and finish pass (whole), while a step is traced, and when an
epoch ends (`faults/test_matrix.py`). For broken frames, other families and spooling, (**P**)
stands.

{head}
{rule}
{rows}

{reasons}
"""


@dataclass(frozen=True, order=True)
class Promise:
    fault: str
    promise: str
    file: str  # Below ``tests``
    test: str


def promises(source: str, file: str) -> Iterator[Promise]:
    """Yield the promises of a file of tests.

    Raises
    ------
    ValueError
        If a mark is not of two texts.
    """
    for node in ast.walk(ast.parse(source)):
        for mark in getattr(node, "decorator_list", ()):
            if not (isinstance(mark, ast.Call) and getattr(mark.func, "attr", "") == MARK):
                continue
            texts = [each.value for each in mark.args if isinstance(each, ast.Constant)]
            if len(texts) != 2 or len(mark.args) + len(mark.keywords) != 2:
                raise ValueError(f"{file}:{mark.lineno}: a mark {MARK} has a fault and a promise.")
            yield Promise(*map(str, texts), file, node.name)


def all_promises() -> list[Promise]:
    found = []
    for path in TESTS.rglob("test_*.py"):
        name = str(path.relative_to(TESTS))
        found += promises(path.read_text(encoding="utf-8"), name)
    return sorted(found)


def page(found: list[Promise]) -> str:
    """Return the page; a promise that several tests show is told once."""
    tests: dict[tuple[str, str], list[str]] = {}
    for each in found:
        tests.setdefault((each.fault, each.promise), []).append(f"`{each.file}::{each.test}`")
    lines = (
        f"| {fault} | {promise} | {', '.join(names)} |\n"
        for (fault, promise), names in tests.items()
    )
    return HEAD + "".join(lines)


def matrix() -> str:
    """Return the section on the faults of workers: where each strikes, in which tests."""
    from tests.faults.test_pairs import all_pairs
    from tests.invariants.fault_runs import FAULTS
    from tests.invariants.test_fault_product import FAMILIES, KINDS, MEANINGFUL, POINTS

    processes = {(point, fault) for point, fault, _, _ in all_pairs()}
    cores = {(point, fault) for (_, _, fault), points in MEANINGFUL.items() for point in points}

    reasons: list[str] = []

    def cell(point: str, fault: str) -> str:
        pair = point, fault
        if pair in cores:
            return "P M" if pair in processes else "M"
        told = reason(point, fault)
        if told not in reasons:
            reasons.append(told)
        return str(1 + reasons.index(told))

    rows = [f"| {point} | {' | '.join(cell(point, each) for each in FAULTS)} |" for point in POINTS]
    return MATRIX.format(
        families=", ".join(FAMILIES),
        kinds=", ".join(KINDS),
        runs=len(all_pairs()),
        product=sum(map(len, MEANINGFUL.values())),
        head=f"| | {' | '.join(FAULTS)} |",
        rule="|---" * (1 + len(FAULTS)) + "|",
        rows="\n".join(rows),
        reasons="\n".join(f"{number}. {told}." for number, told in enumerate(reasons, 1)),
    )


def reason(point: str, fault: str) -> str:
    """Return why no family meets a fault at a point, in one or two sentences."""
    from tests.invariants.test_fault_product import FAMILIES, KINDS, left_out_because

    told = [left_out_because(family, kind, point, fault) for family in FAMILIES for kind in KINDS]
    return max(sorted(set(told)), key=told.count)


if __name__ == "__main__":
    PAGE.write_text(page(all_promises()) + matrix(), encoding="utf-8")
