"""Readers of other packages: a distribution in a folder on the path, as pip installs it."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from data_prep.images import own_readers
from data_prep.images.file_access import FILE, FileOpener
from data_prep.images.open_image import open_image, read_image
from data_prep.images.plane_selection import PlaneSelector
from distkeras_grid.errors import AmbiguousImageError, ImageError
from tests.data_prep.image_checks import check_regions

STACK = np.random.default_rng(3).integers(0, 4096, (2, 300, 420), dtype=np.uint16)
READER = """
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from data_prep.images.reader_base import PlaneInfo, local_path

class Decoder(Exception):
    pass

class NumpyFile:
    def __init__(self, stream, name):
        self._resources = ExitStack()
        self._path = Path(local_path(stream, self._resources))
        if b"NUMPY" not in self._path.read_bytes():
            raise Decoder("no array")
        self._array = np.load(self._path, mmap_mode="r")
        self.pages = len(self._array)

    def form(self, page):
        size = float(self._path.with_suffix(".txt").read_text())
        return PlaneInfo(self._array.shape[1:], 2, (64, 64), bits=12, pixel_size=(size, size))

    def read(self, page, channel, plane, window):
        return self._array[page, window.top : window.bottom, window.left : window.right]

    def close(self):
        self._resources.close()
"""


def install(folder: Path, name: str, code: str, *entries: str) -> None:
    (folder / f"{name}.py").write_text(code)
    (folder / f"{name}-1.0.dist-info").mkdir()
    described = folder / f"{name}-1.0.dist-info"
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "\n".join((f"[{own_readers.GROUP}]", *entries))
    (described / "entry_points.txt").write_text(lines)


@pytest.fixture
def site(tmp_path, monkeypatch):
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    own_readers._installed.cache_clear()
    yield folder
    own_readers._installed.cache_clear()
    for name in [each for each in sys.modules if each.startswith("own_")]:
        if name != "own_readers":
            del sys.modules[name]


@pytest.fixture
def image(tmp_path):
    np.save(tmp_path / "a.npy", STACK)
    (tmp_path / "a.txt").write_text("0.5")
    return f"file:{tmp_path}/a.npy"


def read_by_path(uri: str):
    with FileOpener(FILE).open(uri) as content:
        return open_image(content.stream, uri, PlaneSelector(page=1), region_bytes=None)


def test_an_image_whole_and_by_region(site, image):
    """The reader gets the path, also of a small file, and so finds the file beside it."""
    install(site, "own_numpy", READER, "npy = own_numpy:NumpyFile")
    with FileOpener(FILE).open(image) as content:
        whole = check_regions(content.stream, STACK[1], PlaneSelector(page=1), image)
        assert (whole.bits, whole.pixel_size) == (12, (0.5, 0.5))
        with pytest.raises(AmbiguousImageError, match="2 pages"):
            open_image(content.stream, image)


@pytest.mark.spark
def test_an_image_in_executors(spark, site, image, monkeypatch):
    install(site, "own_numpy", READER, "npy = own_numpy:NumpyFile")
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", str(site))
    found = spark.sparkContext.parallelize([image] * 2, 2).map(read_by_path).collect()
    for picture in found:
        np.testing.assert_array_equal(picture.pixels[:, :, 0], STACK[1])


def test_whatever_a_reader_raises_names_the_image(site):
    install(site, "own_numpy", READER, "npy = own_numpy:NumpyFile")
    with pytest.raises(ImageError, match=r"broken\.npy .* \(Decoder: no array\)"):
        read_image(b"no array", "broken.npy")


def test_a_reader_of_a_known_format_comes_first(site):
    code = "def refuse(stream, name):\n    raise KeyError"
    install(site, "own_tiff", code, "tif = own_tiff:refuse")
    with pytest.raises(ImageError, match="damaged"):
        read_image(b"II*\0", "a.TIF")


@pytest.mark.parametrize("name", ["hdfs://host/raw/a.MRXS", "a.bif"])
def test_what_would_be_read_wrongly_needs_a_reader(site, name):
    with pytest.raises(ImageError, match=own_readers.GROUP):
        read_image(b"\xff\xd8\xff\xe0 the JPEG of an overview", name)


def test_a_reader_whose_library_is_missing(site):
    install(site, "own_slides", "import no_such_library", "svslide = own_slides:Slide")
    with pytest.raises(ImageError, match="no_such_library"):
        read_image(b"x", "a.svslide")


def test_two_readers_of_one_ending(site):
    for name in ("own_one", "own_two"):
        install(site, name, "", f"vms = {name}:Slide")
    with pytest.raises(ImageError, match="own_one:Slide, own_two:Slide"):
        read_image(b"x", "a.vms")


def test_other_files_have_no_reader_of_their_own():
    assert own_readers.open_by_own_reader(BytesIO(b"x"), "a.png") is None
    assert not own_readers.has_own_reader("a mrxs")
