"""The demo's folder: what the demo may delete, and what it never does."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from distkeras_grid.errors import OutputExistsError, StorageError


@pytest.fixture(scope="module")
def new_folder(project):
    spec = importlib.util.spec_from_file_location("demo_report", project / "jobs/demo_report.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.new_folder


def test_a_folder_of_the_demo_is_made_anew(new_folder, tmp_path):
    folder = tmp_path / "below" / "report"
    new_folder(folder)
    (folder / "tiles").mkdir()
    (folder / "tiles" / "old.parquet").touch()
    new_folder(folder)
    assert [path.name for path in folder.iterdir()] == [".distkeras_grid-demo"]


def test_an_empty_folder_is_used(new_folder, tmp_path):
    new_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".distkeras_grid-demo"]


def test_a_folder_of_the_user_is_not_touched(new_folder, tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(OutputExistsError, match=f"{tmp_path} is not empty and not a report"):
        new_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(StorageError, match=r"cannot write to .*thesis\.txt"):
        new_folder(tmp_path / "thesis.txt")
    assert (tmp_path / "thesis.txt").read_text() == "precious"


@pytest.mark.tensorflow
def test_the_job_itself_refuses_such_a_folder(project, tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    ended = subprocess.run(
        [sys.executable, project / "jobs" / "demo.py", "--output", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 4, ended.stderr
    assert str(tmp_path) in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
