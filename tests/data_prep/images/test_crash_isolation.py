"""Images that end the process which decodes them: in a process of their own, and in a night."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from io import BytesIO
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from data_prep import TileSpec, TilingSettings, update_tiles
from data_prep.images.crash_isolation import DecodeSandbox, IsolationPolicy
from data_prep.images.file_access import FILE, FileOpener
from data_prep.images.open_image import read_image
from data_prep.spark.scan import Reader, retry_isolated
from distkeras_grid.errors import ImageError, UnreadableImageError
from distkeras_grid.spark.dataframes import read_parquet

pytestmark = pytest.mark.slow


@pytest.mark.full
def test_what_ends_the_process_is_an_error_and_the_next_is_tried_in_another(tmp_path):
    done = tmp_path / "done"
    with DecodeSandbox() as trials:
        trials.survive("0.png", os.mkdir, done)
        assert done.is_dir()
        # What is no fault of an image, the task meets, too.
        trials.survive("0.png", os.mkdir, done)
        with pytest.raises(ImageError, match=r"1\.png is empty"):
            trials.survive("1.png", read_image, b"", "1.png")
        with pytest.raises(ImageError, match=r"2\.png .*SIGKILL"):
            trials.survive("2.png", signal.raise_signal, signal.SIGKILL)
        trials.survive("3.png", os.rmdir, done)
        assert not done.exists()


def take_memory(bytes_):
    return np.ones(bytes_, np.uint8)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit address space")
@pytest.mark.full
def test_what_needs_too_much_memory_beside_the_decoder_is_told():
    """The task has no limit of its own: Spark or the system would end it, at each attempt."""
    with DecodeSandbox(memory_mb=4) as trials, pytest.raises(UnreadableImageError, match=r"0\.png"):
        trials.survive("0.png", take_memory, 1 << 30)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit address space")
def test_what_needs_more_memory_than_there_may_be_is_an_error():
    content = BytesIO()
    Image.new("L", (4000, 4000)).save(content, "PNG")
    expected = pytest.raises(UnreadableImageError, match=r"0\.png .*MemoryError")
    with DecodeSandbox(memory_mb=4) as trials, expected:
        trials.survive("0.png", read_image, content.getvalue(), "0.png")


def test_what_does_not_end_is_given_up_and_its_process_killed():
    with DecodeSandbox(deadline=0.5) as trials:
        with pytest.raises(ImageError, match=r"longer than 0\.5 s"):
            trials.survive("0.png", time.sleep, 60)
        assert multiprocessing.active_children() == []


HANGS = {
    # Holds the lock of the interpreter, as a decoder in C may.
    "a decoder": "with isolation.in_time(): re.match('(a+)+b', 'a' * 60)",
    "an iterator": "list(isolation.each_in_time(time.sleep(60) for _ in range(2)))",
}


@pytest.mark.parametrize("work", HANGS.values(), ids=HANGS)
def test_a_first_attempt_that_hangs_ends_its_process(work):
    code = (
        "import re, time; from data_prep.images.crash_isolation import IsolationPolicy; "
        f"isolation = IsolationPolicy(deadline=0.2)\n{work}"
    )
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=30, check=False
    )
    assert ended.returncode == 1
    assert b"Timeout" in ended.stderr
    assert time.monotonic() - began < 20


def test_only_the_work_itself_must_be_in_time():
    isolation = IsolationPolicy(deadline=0.3)
    for _ in isolation.each_in_time(iter(range(3))):
        time.sleep(0.2)


@pytest.mark.spark
def test_an_image_that_hangs_in_a_pass_ends_the_process(tmp_path):
    """Opening it hangs: nobody writes into the pipe. Spark sees a worker that died."""
    os.mkfifo(tmp_path / "0.png")
    code = f"""
import pyarrow as pa
from data_prep.geometry.grid import TileSpec
from data_prep.geometry.tiling_config import TilingConfig
from data_prep.images.crash_isolation import IsolationPolicy
from data_prep.images.file_access import FileOpener
from data_prep.images.plane_selection import PlaneSelector
from data_prep.spark.passes import TileMeasure
from data_prep.spark.scan import scan_task
config = TilingConfig(TileSpec(8), "raw", 90, None, PlaneSelector())
look = scan_task(TileMeasure(config), FileOpener("file"), IsolationPolicy(deadline=0.2))
list(look(iter([pa.RecordBatch.from_pydict({{"path": ["file:{tmp_path}/0.png"]}})])))
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert b"Timeout" in ended.stderr
    assert b"open_local" in ended.stderr


@pytest.mark.full
def test_what_gives_signs_may_take_longer():
    """The deadline leaves a busy machine the time to start the process before its first sign."""
    with DecodeSandbox(deadline=10) as trials:
        trials.survive("0.png", signs, 24, 0.5)
        with pytest.raises(ImageError, match=r"longer than 10 s"):
            trials.survive("0.png", signs, 1, 60)


def signs(count, seconds):
    for _ in range(count):
        time.sleep(seconds)
        yield


def test_without_an_image_no_process_is_started():
    with DecodeSandbox() as trials:
        pass
    assert trials._process is None


def test_work_that_killed_a_process_is_repeated_once_in_isolation():
    """A master that runs no task again: the driver repeats the work."""
    from pyspark.errors import PySparkException

    reader = Reader(FileOpener(FILE))
    always = replace(reader, isolation=IsolationPolicy(always=True))
    died = PySparkException("Job aborted: Python worker exited unexpectedly (crashed)")
    seen, said, undone = [], [], []

    def work(reader):
        seen.append(reader.isolation.always)
        if not reader.isolation.always:
            raise died
        return "done"

    assert retry_isolated(work, reader, said.append, lambda: undone.append(1)) == "done"
    assert (seen, undone, len(said)) == ([False, True], [1], 1)
    for error, which in ((died, always), (PySparkException("No space left on device"), reader)):
        with pytest.raises(PySparkException) as caught:
            retry_isolated(Mock(side_effect=error), which, pytest.fail)
        assert caught.value is error


# Pillow's own way to add a format: it takes the place of the one for BMP, in every Python process
# that has the folder of this file in its path.
DEADLY = """
import os
import signal
from pathlib import Path
from PIL import BmpImagePlugin, Image

class Deadly(BmpImagePlugin.BmpImageFile):
    def load(self):
        if self.size == (51, 47) and Path(__file__).with_name("armed").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().load()

Image.register_open("BMP", Deadly, BmpImagePlugin._accept)
"""


@pytest.fixture
def deadly(spark, tmp_path):
    """Let BMP images of 51x47 pixels kill Spark's Python workers, once a file is there."""
    folder = tmp_path / "extension"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(DEADLY)
    environment = spark.sparkContext.environment
    former = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), *sys.path])
    yield folder / "armed"
    del environment["PYTHONPATH"]
    if former is not None:
        environment["PYTHONPATH"] = former


@pytest.fixture
def settings(tmp_path):
    folder = tmp_path / "raw"
    random = np.random.default_rng(0)
    for name, size in [("a/0.bmp", (50, 47)), ("a/1.bmp", (51, 47)), ("b/0.bmp", (60, 60))]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, size[::-1], dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    return TilingSettings(
        str(folder),
        str(tmp_path / "tiles"),
        TileSpec(32, angles=[0]),
        split="1",
        on_error="skip",
    )


def sources(spark, settings):
    rows = read_parquet(spark, settings.output).select("source").distinct().collect()
    return sorted(row.source for row in rows)


@pytest.mark.spark
@pytest.mark.full
def test_an_image_that_kills_its_worker_ends_a_strict_night_and_is_left_out_of_another(
    spark, deadly, settings
):
    deadly.touch()
    with pytest.raises(ImageError, match=r"a/1\.bmp .*SIGKILL"):
        update_tiles(replace(settings, on_error="fail"), spark=spark)
    assert list(update_tiles(settings, spark=spark).left_out) == ["a/1.bmp"]


@pytest.mark.spark
@pytest.mark.full
def test_an_image_that_kills_its_worker_while_it_is_cut(spark, deadly, settings):
    def say(line):
        if line.startswith("cutting") or "tiles" in line:
            deadly.touch()

    done = update_tiles(settings, spark=spark, say=say)
    assert list(done.left_out) == ["a/1.bmp"]
    assert "SIGKILL" in done.left_out["a/1.bmp"]
    assert sources(spark, settings) == ["a/0.bmp", "b/0.bmp"]
