"""The demo: images whose labels are known, and a page at the end."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.slow


def test_each_micrograph_is_in_each_class_and_spoiled_in_two(project, samples, tmp_path):
    spec = importlib.util.spec_from_file_location("demo", project / "jobs/demo.py")
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    demo.write_micrographs(tmp_path)
    originals = {path.name: np.asarray(Image.open(path)) for path in samples.glob("*/*.png")}
    for name in demo.CLASSES:
        written = {path.name: np.asarray(Image.open(path)) for path in (tmp_path / name).iterdir()}
        assert written.keys() == originals.keys()
        same = {np.array_equal(image, originals[each]) for each, image in written.items()}
        assert same == {name == "in_focus"}
        for each, image in written.items():
            assert image.mean() == pytest.approx(originals[each].mean(), abs=1), "as bright"
    assert re.search(demo.GROUP, "moved/ts_img_2_1918.png")["group"] == "ts_img_2_1918"


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.tensorflow
def test_the_demo_writes_its_page_twice_into_one_folder(project, tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, project / "jobs/demo.py", "--output", tmp_path, "--epochs", "1"],
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        assert ended.returncode == 0, ended.stderr
        assert f"report: {tmp_path}/index.html" in ended.stdout
    page = (tmp_path / "index.html").read_text()
    pictures = re.findall(r'<img src="([^"]+)"', page)
    assert len(pictures) == 3
    assert all((tmp_path / name).stat().st_size > 10_000 for name in pictures)
    assert page.count("<td>out_of_focus</td>") == 2  # for images and for tiles
    assert (tmp_path / "thesis.txt").read_text() == "precious"
