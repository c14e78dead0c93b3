"""Private names of PySpark are in few modules: what another kind of session must replace."""

from __future__ import annotations

import re

import pytest

PRIVATE = re.compile(
    r"\._(jvm|jsc|jdf|jrdd|jrdd_deserializer|gateway|jsparkSession|temp_dir|active_spark_context)\b"
    r"|_load_from_socket"
)
MODULES = {
    "distkeras_grid/spark/cancel.py": "cancels all jobs of an interrupted driver",
    "distkeras_grid/spark/dataframes.py": "the text of a plan, for a run's description",
    "distkeras_grid/spark/driver_jvm.py": "starts the driver's JVM",
    "distkeras_grid/spark/notebooks.py": "cancels the jobs of a cell",
    "distkeras_grid/spark/session.py": "executors, attempts and folders of the session",
    "distkeras_grid/spark/storage.py": "files",
    "distkeras_grid/spark/worker_jobs.py": "one job for each worker",
    "distkeras_grid/submission/container_logs.py": "YARN's classes, without a session",
    "data_prep/images/file_access.py": "Hadoop's settings, for WebHDFS",
    "data_prep/spark/discovery.py": "paths of all files of a DataFrame, in one call",
}


@pytest.mark.parametrize("package", ["distkeras_grid", "data_prep", "jobs"])
def test_only_these_modules_use_private_names_of_pyspark(project, package):
    found = {
        path.relative_to(project).as_posix()
        for path in sorted((project / package).rglob("*.py"))
        if PRIVATE.search(path.read_text())
    }
    assert found == {name for name in MODULES if name.startswith(f"{package}/")}
