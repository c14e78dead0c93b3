"""The study of divided convolutions, as a user calls it."""

from __future__ import annotations

import subprocess
import sys

import pytest

STUDY = "tests.benchmarks.studies.study_convolution_split"


def run(project, *arguments, timeout=300):
    return subprocess.run(
        [sys.executable, "-m", STUDY, *arguments],
        check=False,
        cwd=project,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.mark.full
@pytest.mark.tensorflow
def test_a_quick_look_leaves_a_page(project, tmp_path):
    look = tmp_path / "look"
    ended = run(project, "--kernels", "4:8,8:8", "--batch", "2", "--output", str(look))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("predicted") == 4
    page = (look / "index.html").read_text(encoding="utf-8")
    assert "4:8" in page
    assert "(median)" in page
    assert (look / "devices.png").exists()


def test_kernels_that_are_no_pairs_are_refused(project, tmp_path):
    ended = run(project, "--kernels", "50", "--output", str(tmp_path / "look"))
    assert ended.returncode == 2
    assert "pairs such as 50:500" in ended.stderr
    assert not (tmp_path / "look").exists()
