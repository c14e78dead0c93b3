"""The page that says what may die, what is promised then, and which test shows it.

A test that kills something says so by ``@pytest.mark.promise(fault, promise)``. From these marks
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


@dataclass(frozen=True, order=True)
class Promise:
    """What one test shows.

    Parameters
    ----------
    fault, promise : str
        What happens, and what is promised then.
    file, test : str
        File below ``tests``, and name of the function.
    """

    fault: str
    promise: str
    file: str
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
    """Return the promises of all tests, in order."""
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


if __name__ == "__main__":
    PAGE.write_text(page(all_promises()), encoding="utf-8")
