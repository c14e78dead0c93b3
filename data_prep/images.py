"""From the bytes of an image file to an array, without surprises.

PNG, JPEG, TIFF and BMP, 8 or 16 bits. An EXIF orientation is applied, an alpha channel that is
fully opaque is dropped, colour images whose channels are equal become gray. TIFF files are read by
`data_prep.tiff`, the others here.
"""

from __future__ import annotations

import struct
import warnings
from dataclasses import replace
from io import BytesIO

import cv2
import numpy as np
import tifffile
from PIL import Image, ImageOps, UnidentifiedImageError

from data_prep.picture import Choice, Picture, Pixels, without_alpha
from data_prep.tiff import channel_number, read_tiff
from distkeras_grid.errors import AmbiguousImageError, ImageError

FORMATS = ("PNG", "JPEG", "TIFF", "BMP")
SUFFIXES = ("png", "jpg", "jpeg", "tif", "tiff", "bmp")
# Pillow's own limit against files that unpack to far more than they weigh.
MAX_PIXELS = 178_956_970
TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
# Readers raise these on damaged files, each format its own; RuntimeError is imagecodecs'.
DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
    AssertionError,  # tifffile's
    struct.error,
    tifffile.TiffFileError,
    Image.DecompressionBombError,
)
ORIENTATION = 274  # EXIF and TIFF tag
ITU_R_601 = (0.299, 0.587, 0.114)  # weights of red, green and blue in gray, as in Pillow


def decode_image(content: bytes, name: str, *, max_pixels: int = MAX_PIXELS) -> Pixels:
    """Decode the bytes of an image file that holds one image.

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
    AmbiguousImageError
        If the file holds several images.
    ImageError
        If the bytes cannot be read as an image of those kinds.
    """
    return read_image(content, name, max_pixels=max_pixels).pixels


def read_image(
    content: bytes, name: str, choice: Choice | None = None, *, max_pixels: int = MAX_PIXELS
) -> Picture:
    """Decode one image of a file, and what the file says about it.

    Parameters
    ----------
    content, name, max_pixels
        See `decode_image`.
    choice : Choice, optional
        Which page, channel and focal plane to take.

    Returns
    -------
    Picture
        Its pixels as `decode_image` returns them.
    """
    if not content:
        raise ImageError(f"{name} is empty (0 bytes). Copy it again, or remove it.")
    chosen = choice or Choice()
    try:
        with warnings.catch_warnings():
            # The size is checked below, against one limit instead of two.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            # Odd metadata do not keep the pixels from being read.
            warnings.simplefilter("ignore", UserWarning)
            if content.startswith(TIFF_STARTS):
                picture = read_tiff(content, name, chosen, max_pixels)
            else:
                picture = _read_by_pillow(content, name, chosen, max_pixels)
    except UnidentifiedImageError as error:
        raise ImageError(
            f"{name} is not a {', '.join(FORMATS)} image ({len(content)} bytes). Convert it, or "
            "leave it out by --glob."
        ) from error
    except DAMAGE as error:
        raise ImageError(
            f"{name} cannot be decoded ({type(error).__name__}: {error}). Repair or remove it."
        ) from error
    return replace(picture, pixels=_common_form(picture.pixels, name))


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


def _common_form(pixels: Pixels, name: str) -> Pixels:
    """Return [height, width, 1 or 3] of uint8 or uint16; gray that was stored as colour is gray."""
    if pixels.dtype not in (np.uint8, np.uint16):
        pixels = _as_uint16(pixels, name)
    if pixels.ndim == 2:
        return np.ascontiguousarray(pixels[:, :, np.newaxis])
    first: Pixels = pixels[:, :, :1]
    is_gray = np.array_equal(first.repeat(3, axis=2), pixels)
    return np.ascontiguousarray(first if is_gray else pixels)


def _read_by_pillow(content: bytes, name: str, choice: Choice, max_pixels: int) -> Picture:
    with Image.open(BytesIO(content), formats=FORMATS) as image:
        width, height = image.size
        if width * height > max_pixels:
            raise ImageError(
                f"{name} has {width}x{height} pixels, more than {max_pixels:,}. Cut it into "
                "smaller images first."
            )
        _seek(image, name, choice)
        if image.format == "PNG" and content[24] == 16:
            # IHDR is the first chunk: bits at byte 24. Pillow would reduce most of them to 8.
            pixels = _decode_deep_png(image, content, name)
        else:
            pixels = _decode_by_pillow(image, name)
    return Picture(_chosen_channel(pixels, name, choice))


def _seek(image: Image.Image, name: str, choice: Choice) -> None:
    """Go to the chosen page, which animated PNG and JPEG of several pictures have."""
    count = getattr(image, "n_frames", 1)
    if choice.page is None and count > 1:
        raise AmbiguousImageError(
            f"{name} holds {count} pictures. Received: none to take. Choose one by --page 0 to "
            f"{count - 1}."
        )
    if (choice.page or 0) >= count:
        raise ImageError(f"{name} has {count} pages. Received: page {choice.page}, from 0.")
    if choice.z is not None and choice.z.isdecimal() and int(choice.z) > 0:
        raise ImageError(f"{name} has one focal plane. Received: z {choice.z}, from 0.")
    if choice.page:
        image.seek(choice.page)


def _chosen_channel(pixels: Pixels, name: str, choice: Choice) -> Pixels:
    if choice.channel is None:
        return pixels
    names = ("red", "green", "blue") if pixels.ndim == 3 else ()
    count = len(names) or 1
    numbers = [channel_number(text, count, names, name) for text in choice.channels]
    if pixels.ndim == 2:
        return pixels
    return pixels[:, :, numbers[0]] if len(numbers) == 1 else pixels[:, :, numbers]


def _decode_deep_png(image: Image.Image, content: bytes, name: str) -> Pixels:
    if image.getexif().get(ORIENTATION, 1) != 1:
        raise ImageError(
            f"{name} is a 16-bit PNG with an orientation, which cannot be applied. Save it upright."
        )
    pixels: Pixels | None = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None or pixels.dtype != np.uint16:
        raise ImageError(f"{name} cannot be decoded as a 16-bit PNG. Save it again.")
    if pixels.ndim == 3:
        # OpenCV has blue first, and makes an alpha channel of a transparent colour.
        order = [2, 1, 0, 3][: pixels.shape[2]]
        pixels = pixels[:, :, order]
    if pixels.ndim == 3 and pixels.shape[2] == 4:
        pixels = without_alpha(pixels, name)
    elif "transparency" in image.info:
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


def _decode_by_pillow(image: Image.Image, name: str) -> Pixels:
    upright = ImageOps.exif_transpose(image)
    if upright.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in upright.info:
        return without_alpha(np.asarray(upright.convert("RGBA")), name)
    if upright.mode.startswith("I"):
        return np.asarray(upright)
    if upright.mode in ("1", "L"):
        return np.asarray(upright.convert("L"))
    return np.asarray(upright.convert("RGB"))


def _as_uint16(pixels: Pixels, name: str) -> Pixels:
    low, high = int(pixels.min()), int(pixels.max())
    if low < 0 or high > np.iinfo(np.uint16).max:
        raise ImageError(
            f"{name} holds values from {low} to {high}. Convert it to 16 bits (0 to 65535)."
        )
    return pixels.astype(np.uint16)
