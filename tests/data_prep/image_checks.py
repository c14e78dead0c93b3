"""TIFF in memory, and images that are the same as a whole and by regions."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import tifffile
from PIL import Image

from data_prep.images.chunked_image import ChunkedImage
from data_prep.images.open_image import open_image, read_image
from data_prep.images.plane_selection import PlaneSelector


def tiff(pixels, **options):
    stream = BytesIO()
    tifffile.imwrite(stream, pixels, **options)
    return stream.getvalue()


def saved(image, kind="PNG", **options):
    """Encode an array, or a picture of Pillow."""
    stream = BytesIO()
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    image.save(stream, kind, **options)
    return stream.getvalue()


def gray(content, *choice, **more):
    """The only channel of an image."""
    return read_image(content, "x", PlaneSelector(*choice, **more)).pixels[..., 0]


def check_regions(stream, expected, choice=None, name="x"):
    """Compare an image with its pixels, whole and by regions; return the whole picture."""
    expected = expected.reshape(*expected.shape[:2], -1)
    whole = open_image(stream, name, choice, region_bytes=None)
    np.testing.assert_array_equal(whole.pixels, expected)
    raster = open_image(stream, name, choice, region_bytes=0).pixels
    assert isinstance(raster, ChunkedImage)
    height, width = expected.shape[:2]
    # In this order, so that blocks at the border of the first region are there for the second.
    for left, top, right, bottom in ((190, 100, 320, 260), (0, 0, width, height)):
        found = raster.read(left, top, right, bottom)
        np.testing.assert_array_equal(found, expected[top:bottom, left:right])
    raster.close()
    return whole
