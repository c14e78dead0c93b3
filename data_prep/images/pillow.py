"""PNG, JPEG and BMP files, by Pillow; PNG of 16 bits, which Pillow reduces to 8, by imagecodecs."""

from __future__ import annotations

from contextlib import ExitStack
from typing import BinaryIO

import imagecodecs
import numpy as np
from PIL import Image, ImageOps, PngImagePlugin

from data_prep.images import jpeg
from data_prep.images.plane_selection import Pixels, without_alpha
from data_prep.images.reader_base import PlaneInfo
from data_prep.images.tiff_planes import UPRIGHT, PlaneWindow
from distkeras_grid.errors import ImageError

FORMATS = ("PNG", "JPEG", "TIFF", "BMP")
JPEGS = ("JPEG", "MPO")
GRAY = ("1", "L")
ORIENTATION = 274  # EXIF tag
# Pillow refuses a PNG with more than 1 MB of text or colour profile; scanners of slides write more.
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY = 64 << 20


class PillowFile:
    """A file as an `ImageReader`; pages are the pictures of an animated PNG or of a JPEG."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream, self._name = stream, name
        # Leaves the stream open at the end, which `Image.close` does not.
        self._resources = ExitStack()
        self._image = image = self._resources.enter_context(Image.open(stream, formats=FORMATS))
        self.pages: int = getattr(image, "n_frames", 1)
        # imagecodecs knows no pages.
        self._is_deep = image.format == "PNG" and _bits_of_png(stream) == 16
        if self._is_deep and self.pages > 1:
            raise ImageError(
                f"{name} is a 16-bit PNG with {self.pages} pictures, which cannot be read apart. "
                "Save each as a file of its own."
            )

    def form(self, page: int) -> PlaneInfo:  # noqa: ARG002
        """Return what the planes of a page are like; only the whole can be decoded."""
        (width, height), mode = self._image.size, self._image.mode
        is_gray = mode in GRAY or mode.startswith("I")
        if "transparency" in self._image.info and not self._is_deep:
            is_gray = False
        return PlaneInfo((height, width), 1 + self._is_deep, None, is_colour=not is_gray)

    def read(self, page: int, channel: int, plane: int, window: PlaneWindow) -> Pixels:  # noqa: ARG002
        """Decode a picture, array [height, width] or [height, width, 3]."""
        image, stream = self._image, self._stream
        if page:
            image.seek(page)
        if image.format in JPEGS:
            stream.seek(getattr(image, "offset", 0))
            jpeg.check_whole(stream.read())
        if self._is_deep:
            return _decode_deep_png(image, stream, self._name)
        # In place, and without needless conversions: each copy would take as much memory again.
        ImageOps.exif_transpose(image, in_place=True)
        if image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info:
            return without_alpha(np.asarray(_in_mode(image, "RGBA")), self._name)
        if image.mode.startswith("I"):
            return np.asarray(image)
        return np.asarray(_in_mode(image, "L" if image.mode in GRAY else "RGB"))

    def close(self) -> None:
        """Forget what was decoded; the file belongs to whoever opened it."""
        self._resources.close()


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    return image if image.mode == mode else image.convert(mode)


def _bits_of_png(stream: BinaryIO) -> int:
    """Return the bits of a value, and restore the position in the file."""
    at = stream.tell()
    stream.seek(24)  # IHDR is the first chunk
    bits = stream.read(1)[0]
    stream.seek(at)
    return bits


def _decode_deep_png(image: Image.Image, stream: BinaryIO, name: str) -> Pixels:
    stream.seek(0)
    pixels: Pixels = imagecodecs.png_decode(stream.read())
    # A transparent colour becomes an alpha channel, too.
    if pixels.ndim == 3 and pixels.shape[2] in (2, 4):
        pixels = without_alpha(pixels, name)
    return UPRIGHT.get(image.getexif().get(ORIENTATION, 1), UPRIGHT[1])(pixels)
