"""SECURITY.md names a test for each promise; words that only some modules may have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

#: What runs what is in the bytes or texts that it is given.
RISKY = re.compile(
    r"^\s*(import|from) .*\b(pickle|cloudpickle|dill|marshal|shelve|joblib)\b"
    r"|(?<![\w.])(eval|exec)\(",
    re.MULTILINE,
)
#: What another kind of session must replace.
PRIVATE_SPARK = re.compile(
    r"\._(jvm|jsc|jdf|jrdd|jrdd_deserializer|gateway|jsparkSession|temp_dir|active_spark_context)\b"
    r"|_load_from_socket"
)


def named_tests(text: str) -> list[tuple[str, str]]:
    """Return file and test of each name in the table; a name without a file has the last one's."""
    found, file = [], ""
    for path, name in re.findall(r"`([\w/.]*)::(\w+)`", text):
        file = path or file
        found.append((file, name))
    return found


def test_each_promise_has_a_test(project: Path):
    rows = [
        line
        for line in (project / "SECURITY.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith("| promise")
    ]
    assert len(rows) > 10
    for row in rows:
        tests = named_tests(row)
        assert tests, row
        for file, name in tests:
            below = [project / "tests" / file, project / "tests" / "distkeras_grid" / file]
            sources = [path.read_text(encoding="utf-8") for path in below if path.is_file()]
            assert sources, file
            assert f"def {name}(" in sources[0], name


def modules_with(project: Path, pattern: re.Pattern[str]) -> set[str]:
    sources = [*(project / "distkeras_grid").rglob("*.py"), *(project / "data_prep").rglob("*.py")]
    sources += (project / "jobs").rglob("*.py")
    assert len(sources) > 100
    found = [path for path in sources if pattern.search(path.read_text(encoding="utf-8"))]
    return {path.relative_to(project).as_posix() for path in found}


def test_nothing_is_unpickled_or_evaluated(project: Path):
    assert modules_with(project, RISKY) == set()


@pytest.mark.parametrize(
    "source", ["import os, pickle", "from joblib import load", "x = eval('1')", "exec(data)"]
)
def test_what_runs_code_is_found(source: str):
    assert RISKY.search(source)


def test_private_names_of_pyspark_are_in_one_module(project: Path):
    """And YARN's classes are used without a session."""
    internals = "distkeras_grid/spark/internals.py"
    logs = "distkeras_grid/submission/container_logs.py"
    assert modules_with(project, PRIVATE_SPARK) == {internals, logs}
