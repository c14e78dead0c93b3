"""Every notebook runs from top to bottom, and is kept without outputs."""

from __future__ import annotations

import os
import sys

import nbformat
import pytest
from nbclient import NotebookClient

from distkeras_grid.errors import SandboxError
from distkeras_grid.sandbox.class_path import daemon_class_path

NOTEBOOKS = [
    "compare_trainers",
    "on_the_sandbox",
    "quick_start",
    "reading_tiles",
    "scheduled_preprocessing",
    "tiling",
]

# What a user opens first; make test-full runs the others.
FIRST = "quick_start"


def read(project, name):
    return nbformat.read(project / "notebooks" / f"{name}.ipynb", as_version=4)


def test_every_notebook_is_listed(project):
    assert sorted(path.stem for path in (project / "notebooks").glob("*.ipynb")) == NOTEBOOKS


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_outputs_are_stripped(project, name):
    for cell in read(project, name).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.notebook
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == FIRST else pytest.mark.full) for name in NOTEBOOKS],
)
# Jupyter's own libraries leave sockets and event loops to the garbage collector.
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("handlers")
def test_runs(project, name, monkeypatch, tmp_path):
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    if name == "on_the_sandbox":
        try:
            daemon_class_path()
        except SandboxError as error:
            pytest.skip(f"the notebook on Hadoop is left out: {error}")
    notebook = read(project, name)
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(project / "notebooks")}},
    )
    client.execute(env=os.environ)
    pictures = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert pictures, "a notebook shows pictures"
