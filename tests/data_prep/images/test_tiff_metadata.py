"""The size of a pixel as each kind of TIFF states it."""

from __future__ import annotations

import numpy as np
import pytest

from data_prep.images.open_image import read_image
from data_prep.images.tiff_metadata import parse_length
from distkeras_grid.errors import ConfigurationError
from tests.data_prep.image_checks import tiff

GRAY = np.arange(20 * 30, dtype=np.uint16).reshape(20, 30)
FEI = "[User]\r\nUser=x\r\n[Scan]\r\nPixelWidth=2.5e-009\r\nPixelHeight=2.5e-009\r\n"


def size(**options):
    return read_image(tiff(GRAY, **options), "x").pixel_size


def ome(**sizes):
    return size(ome=True, metadata={"axes": "YX", **sizes})


IMAGE_PIXEL = "AP_IMAGE_PIXEL_SIZE\r\nImage Pixel Size = 11.16 nm\r\n"
WIDTH = "AP_WIDTH\r\nWidth = 6 um\r\n"
# As older microscopes state it: of an image of 1024 columns.
PIXEL = "AP_PIXEL_SIZE\r\nPixel Size = 6 nm\r\n"


def zeiss(*lines):
    text = "\r\n" + "".join(lines) + "AP_WD\r\nWD = 4.2 mm\r\n"
    content = text.encode()
    return size(extratags=[(34118, 1, len(content), content, True)])


def test_ome():
    assert ome(PhysicalSizeX=0.25, PhysicalSizeY=0.5) == (0.25, 0.5)
    nanometres = {"PhysicalSizeX": 65.0, "PhysicalSizeXUnit": "nm"}
    found = ome(**nanometres, PhysicalSizeY=65.0, PhysicalSizeYUnit="nm")
    assert found == pytest.approx((0.065, 0.065))
    assert ome(PhysicalSizeX=0.25) is None
    assert ome() is None


def test_imagej():
    options = {"imagej": True, "resolution": (4.0, 2.0)}
    assert size(**options, metadata={"unit": "um"}) == pytest.approx((0.25, 0.5))
    assert size(**options, metadata={"unit": "nm"}) == pytest.approx((0.00025, 0.0005))
    assert size(**options, metadata={"unit": "pixel"}) is None


def test_electron_microscopes():
    content = FEI.encode()
    fei = size(extratags=[(34682, 2, len(content) + 1, content + b"\0", True)])
    assert fei == pytest.approx((0.0025, 0.0025))
    assert zeiss(PIXEL, WIDTH, IMAGE_PIXEL) == pytest.approx((0.01116, 0.01116))
    assert zeiss(PIXEL, WIDTH) == pytest.approx((6 / 30, 6 / 30))
    assert zeiss(PIXEL) == pytest.approx((0.006 * 1024 / 30,) * 2)
    assert zeiss() is None


def test_resolution_tags():
    assert size(resolution=(20_000.0, 10_000.0), resolutionunit="CENTIMETER") == pytest.approx(
        (0.5, 1.0)
    )
    assert size(resolution=(25_400.0, 25_400.0), resolutionunit="INCH") == pytest.approx((1, 1))


@pytest.mark.parametrize("dpi", [72, 96, 300, 600])
def test_resolutions_of_printers_tell_nothing(dpi):
    assert size(resolution=(dpi, dpi), resolutionunit="INCH") is None
    assert size(resolution=(dpi / 2.54,) * 2, resolutionunit="CENTIMETER") is None


def test_nothing_stated():
    assert size() is None
    assert size(resolution=(0, 0)) is None


@pytest.mark.parametrize(
    ("text", "micrometres"),
    [("0.5um", 0.5), ("0.5 µm", 0.5), ("200nm", 0.2), ("1e-3 mm", 1.0), ("2 micron", 2.0)],
)
def test_lengths(text, micrometres):
    assert parse_length(text) == pytest.approx(micrometres)


@pytest.mark.parametrize("text", ["", "5", "um", "0um", "-1um", "1.2.3um", "1 furlong", "infum"])
def test_what_is_no_length(text):
    with pytest.raises(ConfigurationError):
        parse_length(text)
