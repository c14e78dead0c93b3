"""PNG, JPEG and BMP files, by Pillow; PNG of 16 bits, which Pillow would reduce to 8, by OpenCV."""

from __future__ import annotations

from contextlib import ExitStack
from typing import BinaryIO

import cv2
import numpy as np
from PIL import Image, ImageOps, PngImagePlugin

from data_prep.images import jpeg
from data_prep.images.plane_selection import Pixels, without_alpha
from data_prep.images.reader_base import PlaneInfo
from data_prep.images.tiff_planes import PlaneWindow
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
        # OpenCV knows no pages.
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
    if image.getexif().get(ORIENTATION, 1) != 1:
        raise ImageError(
            f"{name} is a 16-bit PNG with an orientation, which cannot be applied. Save it upright."
        )
    stream.seek(0)
    content = np.frombuffer(stream.read(), np.uint8)
    pixels: Pixels | None = cv2.imdecode(content, cv2.IMREAD_UNCHANGED)
    if pixels is None or pixels.dtype != np.uint16:
        raise ImageError(f"{name} cannot be decoded as a 16-bit PNG. Save it again.")
    if pixels.ndim == 3:
        # OpenCV returns blue first, and turns a transparent colour into an alpha channel.
        order = [2, 1, 0, 3][: pixels.shape[2]]
        pixels = pixels[:, :, order]
    if pixels.ndim == 3 and pixels.shape[2] == 4:
        return without_alpha(pixels, name)
    if "transparency" in image.info:
        _check_no_pixel_is(pixels, image.info["transparency"], name)
    return pixels


def _check_no_pixel_is(pixels: Pixels, transparent: object, name: str) -> None:
    """Refuse an image in which the colour that means "transparent" is used."""
    same = pixels == np.array(transparent, dtype=np.uint16)
    used = same.all(axis=2) if same.ndim == 3 else same
    if used.any():
        raise ImageError(
            f"{name} has transparent pixels. Received: {int(used.sum()):,} of the transparent "
            "colour. Save it without transparency, on the background that it should have."
        )
