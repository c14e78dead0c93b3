"""The demo's folder: what the demo may delete, and what it never does."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from distkeras_grid.cli.exit_codes import ExitCode
from distkeras_grid.errors import OutputExistsError, StorageError


def module_of(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def new_folder(project):
    return module_of(project / "jobs/demo_report.py").new_folder


def test_each_micrograph_is_in_each_class_or_set_aside(project, samples, tmp_path):
    micrographs = module_of(project / "jobs/demo_micrographs.py")
    tilted = micrographs.write_micrographs(samples, tmp_path)
    aside = {each.name for each in tilted}
    originals = {path.name: micrographs.gray(path) for path in samples.glob("*/*.png")}
    assert len(aside) == 3
    for name in micrographs.CLASSES:
        written = {path.name: micrographs.gray(path) for path in (tmp_path / name).iterdir()}
        assert written.keys() == originals.keys() - aside
        same = {np.array_equal(image, originals[each]) for each, image in written.items()}
        assert same == {name == "in_focus"}
    for each in tilted:
        original = originals[each.name]
        assert np.array_equal(each.pixels[:, : each.sharp_until], original[:, : each.sharp_until])
        assert np.any(each.pixels[:, each.blurred_from :] != original[:, each.blurred_from :])
    found = re.search(micrographs.GROUP, "moved/ts_img_2_1918.png")
    assert found["group"] == "ts_img_2_1918"


def test_kernels_keep_the_brightness(project):
    micrographs = module_of(project / "jobs/demo_micrographs.py")
    for kernel in (micrographs.disk(2.0), micrographs.disk(4.0), micrographs.line(12.0, 0.7)):
        assert kernel.min() >= 0
        assert kernel.sum() == pytest.approx(1.0, abs=1e-5)


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


@pytest.mark.full
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


#: The demo, with a stand-in for the module that it loads first, which works until it is stopped.
BUSY = """
import runpy, signal, sys, time

class Busy:
    def find_spec(self, name, path=None, target=None):
        if name == "demo_report":
            print("working", flush=True)
            for _ in range(600):
                time.sleep(0.1)

signal.signal(signal.SIGINT, signal.default_int_handler)
demo, *sys.argv[1:] = sys.argv[1:]
sys.path.insert(0, demo.rpartition("/")[0])
sys.meta_path.insert(0, Busy())
runpy.run_path(demo, run_name="__main__")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_both_signals_end_the_demo_with_one_line(project, tmp_path, number):
    with subprocess.Popen(
        [sys.executable, "-c", BUSY, project / "jobs" / "demo.py", "--output", tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        try:
            lines = iter(demo.stdout.readline, "")
            assert "working\n" in lines
            demo.send_signal(number)
            _, err = demo.communicate(timeout=30)
        finally:
            demo.kill()
    assert demo.returncode == ExitCode.INTERRUPTED
    assert err.splitlines()[-1] == "interrupted"
