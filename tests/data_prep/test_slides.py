"""Slides that openslide reads; it also takes a TIFF in tiles, which stands for them."""

from __future__ import annotations

import sys
from io import BytesIO
from types import ModuleType

import numpy as np
import pytest
import tifffile

from data_prep.folders import refuse_folders
from data_prep.images import open_image, read_image
from data_prep.picture import Choice
from data_prep.raster import Raster
from data_prep.reading import FILE, Opening
from data_prep.slides import is_slide
from distkeras_grid.errors import ConfigurationError, ImageError

COLOUR = np.random.default_rng(1).integers(0, 256, (600, 700, 3), dtype=np.uint8)


def write_slide(path, pixels=COLOUR, **tags):
    options = {"photometric": "rgb", "tile": (256, 256), "resolutionunit": "CENTIMETER", **tags}
    with tifffile.TiffWriter(path) as file:
        file.write(pixels, subifds=0, resolution=(20_000, 40_000), **options)
        file.write(pixels[::2, ::2].copy(), subfiletype=1, resolution=(10_000, 20_000), **options)
    return path


def test_a_slide_whole_and_by_region(tmp_path):
    pytest.importorskip("openslide")
    path = write_slide(tmp_path / "a.bif")
    with Opening(FILE).open(f"file:{path}") as content:
        whole = open_image(content.stream, f"file:{path}", region_bytes=None)
        np.testing.assert_array_equal(whole.pixels, COLOUR)
        assert whole.pixel_size == pytest.approx((0.5, 0.25))
        green = open_image(content.stream, f"file:{path}", Choice(channel="green"))
        np.testing.assert_array_equal(green.pixels[:, :, 0], COLOUR[:, :, 1])
        raster = open_image(content.stream, f"file:{path}", region_bytes=0).pixels
        assert isinstance(raster, Raster)
        assert raster.regions.grain == (256, 256)
        np.testing.assert_array_equal(raster.read(190, 100, 620, 560), COLOUR[100:560, 190:620])
        raster.close()


@pytest.mark.parametrize("kind", ["no slide", "cut"])
def test_damage_is_an_error_with_the_name_of_the_file(tmp_path, kind):
    pytest.importorskip("openslide")
    content = write_slide(tmp_path / "a.bif").read_bytes()
    with pytest.raises(ImageError, match="broken"):
        read_image(b"no slide" if kind == "no slide" else content[:200_000], "broken.bif")


@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("hdfs://host/raw/a.BIF", {}),
        ("b.TIF", {"software": "Philips DP v1.0", "description": "<DataObject></DataObject>"}),
        ("c.tif", {"software": "ScanOutputManager 1.1", "extratags": [(700, 1, 3, b"<x>", True)]}),
    ],
)
def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch, name, tags):
    content = write_slide(tmp_path / "x.tif", **tags).read_bytes()
    monkeypatch.setitem(sys.modules, "openslide", None)
    with pytest.raises(ImageError, match=r"distkeras_grid\[slides\]"):
        read_image(content, name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        # The overview of a MIRAX slide is a JPEG.
        ("a.MRXS", b"\xff\xd8\xff\xe0 an overview"),
        ("a.vms", b"[Virtual Microscope Specimen]\n"),
        ("a.dcm", bytes(200)),
        ("no ending", bytes(128) + b"DICM" + bytes(100)),
    ],
)
def test_one_of_the_files_of_a_slide_is_no_image(name, content, monkeypatch):
    monkeypatch.setitem(sys.modules, "openslide", ModuleType("openslide"))
    with pytest.raises(ImageError, match="beside"):
        read_image(content, name)
    monkeypatch.setitem(sys.modules, "openslide", None)
    with pytest.raises(ImageError, match=r"distkeras_grid\[slides\]"):
        read_image(content, name)


def test_other_tiff_files_are_no_slides(tmp_path):
    path = write_slide(tmp_path / "a.tif")
    with path.open("rb") as stream:
        assert not is_slide(stream, "a.tif", b"II*", is_tiff=True)
    np.testing.assert_array_equal(read_image(path.read_bytes(), "a.tif").pixels, COLOUR)
    assert not is_slide(BytesIO(b"x"), "mrxs.png", b"x", is_tiff=False)


@pytest.mark.parametrize(
    ("name", "beside", "other"),
    [
        ("a.mrxs", "a/Data0001.dat", "b/Data0001.dat"),
        ("a.vms", "a(1,0).jpg", "b(1,0).jpg"),
        ("a.dcm", "b.dcm", "b.txt"),
    ],
)
def test_files_beside_a_slide_belong_to_it(tmp_path, name, beside, other):
    for each in (name, beside, other):
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).write_bytes(each.encode())
    with Opening(FILE).open(f"file:{tmp_path}/{name}") as content:
        digest = content.sha256()
        assert content.stream.files() == [tmp_path / name, tmp_path / beside]
        (tmp_path / other).write_bytes(b"changed, and longer")
        assert (content.is_changed, content.sha256()) == (False, digest)
        (tmp_path / beside).write_bytes(b"changed, and longer")
        assert content.is_changed
        assert content.sha256() != digest


def test_local_sets_and_object_stores_hold_single_files():
    refuse_folders(["a.bif", "b.png"])
    for name in ("a.mrxs", "a.DCM", "a.zarr"):
        with pytest.raises(ConfigurationError):
            refuse_folders(["b.png", name])
