"""The job that reads footers."""

import os

import pytest

from distkeras_grid.errors import GridError
from distkeras_grid.stores import parquet_footers

pytestmark = pytest.mark.spark


def test_a_python_worker_that_dies_is_explained(spark, monkeypatch):
    """Then `collect` raises an error of Py4J, and not one of PySpark."""
    monkeypatch.setattr(parquet_footers, "look_at", lambda *_, **__: os._exit(9))
    with pytest.raises(GridError, match="catalogue"):
        parquet_footers.find_files(spark, "image", "file:/x", {"file:/x/a": 1}, hashed=False)
