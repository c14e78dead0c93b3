"""Private names of PySpark are in one module: what another kind of session must replace."""

from __future__ import annotations

import re

import pytest

PRIVATE = re.compile(
    r"\._(jvm|jsc|jdf|jrdd|jrdd_deserializer|gateway|jsparkSession|temp_dir|active_spark_context)\b"
    r"|_load_from_socket"
)
MODULES = {
    "distkeras_grid/spark/internals.py": "all that a session is asked for",
    "distkeras_grid/submission/container_logs.py": "YARN's classes, without a session",
}


@pytest.mark.parametrize("package", ["distkeras_grid", "data_prep", "jobs"])
def test_only_these_modules_use_private_names_of_pyspark(project, package):
    found = {
        path.relative_to(project).as_posix()
        for path in sorted((project / package).rglob("*.py"))
        if PRIVATE.search(path.read_text())
    }
    assert found == {name for name in MODULES if name.startswith(f"{package}/")}
