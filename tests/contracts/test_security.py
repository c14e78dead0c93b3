"""SECURITY.md names a test for each promise, and the code keeps away from what runs code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGES = ("distkeras_grid", "data_prep")
#: Modules and functions that run what is in the bytes they are given.
MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
FUNCTIONS = {"eval", "exec"}


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


def risky(source: str) -> set[str]:
    """Return the modules and functions of a source that run code from bytes or texts."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module.partition(".")[0]} & MODULES
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found |= {node.func.id} & FUNCTIONS
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_is_unpickled_or_evaluated(project: Path, package: str):
    sources = list((project / package).rglob("*.py"))
    assert sources
    found = {path: risky(path.read_text(encoding="utf-8")) for path in sources}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source", ["import pickle", "from joblib import load", "x = eval('1')", "exec(data)"]
)
def test_what_runs_code_is_found(source: str):
    assert risky(source)
