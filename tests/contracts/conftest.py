"""What `make check` need not even import."""

from __future__ import annotations

from pathlib import Path

import pytest

#: To import them is to import TensorFlow: 5 s of each process, though all their tests are left out.
WITH_KERAS = ("test_like_fit.py", "test_keras_examples.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of which the marks leave no test."""
    marks = config.option.markexpr
    left_out = " or " not in marks and "not tensorflow" in marks.split(" and ")
    if collection_path.name in WITH_KERAS and left_out:
        return True
    return None
