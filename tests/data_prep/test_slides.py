"""Slides that are not read are refused by name, whatever a decoder would make of them."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import tifffile
from PIL import Image

from data_prep.images import decode_image
from distkeras_grid.errors import ImageError

PIXELS = np.random.default_rng(0).integers(0, 256, (64, 48, 3), np.uint8)


def picture(kind, **options):
    stream = BytesIO()
    Image.fromarray(PIXELS).save(stream, kind, **options)
    return stream.getvalue()


def tiff(**options):
    stream = BytesIO()
    tifffile.imwrite(stream, PIXELS, photometric="rgb", tile=(32, 32), metadata=None, **options)
    return stream.getvalue()


PHILIPS = tiff(software="Philips DP v1.0", description="<DataObject></DataObject>")
XMP = [(700, "B", 24, b"<Metadata><iScan></iScan", True)]


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        # The overview of a MIRAX slide is a JPEG.
        ("hdfs://host/raw/slide.MRXS", picture("JPEG"), "MIRAX"),
        ("slide.vms", b"[Virtual Microscope Specimen]\n", "Hamamatsu VMS"),
        ("slide.bif", tiff(), "Ventana"),
        ("slide.tif", tiff(software="ScanOutputManager 1.1", extratags=XMP), "Ventana"),
        ("slide.tiff", PHILIPS, "Philips"),
        ("slide", b"\0" * 128 + b"DICM" + bytes(100), "DICOM"),
        ("slide.dcm", bytes(200), "DICOM"),
    ],
)
def test_a_slide_that_is_not_read_is_named(name, content, kind):
    with pytest.raises(ImageError, match=f"{kind} .*vips"):
        decode_image(content, name)


def test_other_files_are_read():
    for name, content in (("mrxs.tif", tiff(software="scanner")), ("a.png", picture("PNG"))):
        np.testing.assert_array_equal(decode_image(content, name), PIXELS)
