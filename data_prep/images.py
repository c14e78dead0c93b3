"""From the bytes of an image file to an array, without surprises.

PNG, JPEG, TIFF and BMP, 8 or 16 bits, the first page. An EXIF orientation is applied, an alpha
channel that is fully opaque is dropped, colour images whose channels are equal become gray.
"""

from __future__ import annotations

import struct
import warnings
from io import BytesIO
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from distkeras_grid.errors import ImageError

FORMATS = ("PNG", "JPEG", "TIFF", "BMP")
SUFFIXES = ("png", "jpg", "jpeg", "tif", "tiff", "bmp")
# Pillow's own limit against files that unpack to far more than they weigh.
MAX_PIXELS = 178_956_970
# Pillow's readers raise these on damaged files, each format its own.
DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    struct.error,
    Image.DecompressionBombError,
)
BITS_PER_SAMPLE = 258  # TIFF tag
ORIENTATION = 274  # EXIF and TIFF tag
ITU_R_601 = (0.299, 0.587, 0.114)  # weights of red, green and blue in gray, as in Pillow

Pixels = NDArray[Any]


def decode_image(content: bytes, name: str, *, max_pixels: int = MAX_PIXELS) -> Pixels:
    """Decode the bytes of an image file.

    Parameters
    ----------
    content : bytes
    name : str
        Named in errors.
    max_pixels : int, default 178,956,970
        Larger images are refused by their header, before anything is decoded.

    Returns
    -------
    array [height, width, channels]
        uint8 or uint16; 1 channel or 3 (red, green, blue).

    Raises
    ------
    ImageError
        If the bytes cannot be read as an image of those kinds.
    """
    try:
        with warnings.catch_warnings():
            # The size is checked below, against one limit instead of two.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            # Odd metadata do not keep the pixels from being read.
            warnings.simplefilter("ignore", UserWarning)
            with Image.open(BytesIO(content), formats=FORMATS) as image:
                return _decode_opened(image, content, name, max_pixels)
    except UnidentifiedImageError as error:
        raise ImageError(
            f"{name} is not a {', '.join(FORMATS)} image ({len(content)} bytes). Convert it, or "
            "leave it out by --glob."
        ) from error
    except DAMAGE as error:
        raise ImageError(
            f"{name} cannot be decoded ({type(error).__name__}: {error}). Repair or remove it."
        ) from error


def as_channels(pixels: Pixels, channels: int) -> Pixels:
    """Return the image with 1 channel or with 3.

    Parameters
    ----------
    pixels : array [height, width, 1 or 3]
    channels : {1, 3}
        From 3 to 1 by the weights of ITU-R 601, from 1 to 3 by repetition.
    """
    if pixels.shape[2] == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, axis=2)
    gray = pixels @ np.array(ITU_R_601, dtype=np.float32)
    converted: Pixels = np.rint(gray).astype(pixels.dtype)[:, :, np.newaxis]
    return converted


def _decode_opened(image: Image.Image, content: bytes, name: str, max_pixels: int) -> Pixels:
    width, height = image.size
    if width * height > max_pixels:
        raise ImageError(
            f"{name} has {width}x{height} pixels, more than {max_pixels:,}. Cut it into smaller "
            "images first."
        )
    if _is_deep_colour(image, content):
        pixels = _decode_deep_colour(image, content, name)
    else:
        pixels = _decode_by_pillow(image, name)
    if pixels.ndim == 2:
        return pixels[:, :, np.newaxis]
    first: Pixels = pixels[:, :, :1]
    is_gray = np.array_equal(first.repeat(3, axis=2), pixels)
    return np.ascontiguousarray(first) if is_gray else pixels


def _is_deep_colour(image: Image.Image, content: bytes) -> bool:
    """Tell a colour image of 16 bits a channel, which Pillow would reduce to 8 without a word."""
    if image.format == "PNG":
        # IHDR is the first chunk: bits at byte 24, colour type at 25 with bit 1 for colour.
        return content[24] == 16 and content[25] in (2, 4, 6)
    if image.format == "TIFF":
        bits: tuple[int, ...] = image.tag_v2.get(BITS_PER_SAMPLE, (8,))  # type: ignore[attr-defined]
        return len(bits) > 1 and max(bits) > 8
    return False


def _decode_deep_colour(image: Image.Image, content: bytes, name: str) -> Pixels:
    if image.getexif().get(ORIENTATION, 1) != 1:
        raise ImageError(
            f"{name} is a 16-bit colour image with an orientation tag, which cannot be applied. "
            "Save it upright."
        )
    pixels: Pixels | None = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None or pixels.dtype != np.uint16:
        raise ImageError(f"{name} cannot be decoded as a 16-bit colour image. Convert it to PNG.")
    if pixels.ndim == 2:
        return pixels
    if pixels.shape[2] == 4:
        _check_opaque(pixels[:, :, 3], name)
    return np.ascontiguousarray(pixels[:, :, 2::-1])  # OpenCV has blue first


def _decode_by_pillow(image: Image.Image, name: str) -> Pixels:
    upright = ImageOps.exif_transpose(image)
    if upright.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in upright.info:
        upright = upright.convert("RGBA")
        _check_opaque(np.asarray(upright.getchannel("A")), name)
    if upright.mode.startswith("I"):
        return _as_uint16(np.asarray(upright), name)
    if upright.mode in ("1", "L"):
        return np.asarray(upright.convert("L"))
    if upright.mode == "F":
        raise ImageError(
            f"{name} holds floating-point pixels. Convert it to 8 or 16 bits, so that black and "
            "white mean the same in every image."
        )
    return np.asarray(upright.convert("RGB"))


def _as_uint16(pixels: Pixels, name: str) -> Pixels:
    low, high = int(pixels.min()), int(pixels.max())
    if low < 0 or high > np.iinfo(np.uint16).max:
        raise ImageError(
            f"{name} holds values from {low} to {high}. Convert it to 16 bits (0 to 65535)."
        )
    return pixels.astype(np.uint16)


def _check_opaque(alpha: Pixels, name: str) -> None:
    if alpha.min() != np.iinfo(alpha.dtype).max:
        raise ImageError(
            f"{name} has transparent pixels (alpha from {alpha.min()}). Save it without an alpha "
            "channel, on the background that it should have."
        )
