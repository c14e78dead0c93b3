"""From an image file to an array.

PNG, JPEG, TIFF and BMP with 8 or 16 bits are read; with the extras ``formats`` and ``dm`` also CZI,
ND2, OME-Zarr, dm3 and dm4; and what readers of other packages read
(`data_prep.images.own_readers`). An EXIF orientation is applied, a fully opaque alpha channel is
dropped, and colour images with equal
channels become gray. `data_prep.images.tiff` reads TIFF files, `data_prep.images.reader_base` those
of microscopes, and this module the others. A large image becomes a `ChunkedImage`, which decodes it
part by part, if its format allows that.
"""

from __future__ import annotations

import errno
import os
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from io import BytesIO
from typing import Any, BinaryIO, cast

import cv2
import numpy as np
from PIL import Image, ImageOps, PngImagePlugin, UnidentifiedImageError

from data_prep.images import jpeg
from data_prep.images.chunked_image import ChunkedImage
from data_prep.images.czi import START as CZI_START
from data_prep.images.czi import CziFile
from data_prep.images.digital_micrograph import STARTS as DM_STARTS
from data_prep.images.digital_micrograph import DmFile
from data_prep.images.multifile_images import Folder
from data_prep.images.nd2 import START as ND2_START
from data_prep.images.nd2 import Nd2File
from data_prep.images.ome_zarr import START as ZARR_START
from data_prep.images.ome_zarr import ZarrFile
from data_prep.images.own_readers import open_by_own_reader
from data_prep.images.plane_selection import DecodedPlane, Pixels, PlaneSelector, without_alpha
from data_prep.images.reader_base import ImageReader, Plane, channel_number, take
from data_prep.images.tiff import TiffReader
from data_prep.images.tiff_planes import PlaneWindow
from distkeras_grid.errors import (
    AmbiguousImageError,
    GridError,
    ImageError,
    StorageError,
    UnreadableImageError,
)

FORMATS = ("PNG", "JPEG", "TIFF", "BMP")
JPEGS = ("JPEG", "MPO")
SUFFIXES = ("png", "jpg", "jpeg", "tif", "tiff", "bmp")
# Pillow's own limit against decompression bombs.
MAX_PIXELS = 178_956_970
# Images that take more are decoded part by part, if their format allows it.
REGION_BYTES = 128 << 20
# Most bytes of a file that can only be decoded as a whole: far more than its pixels can take.
MOST_WHOLE_BYTES = 4 << 30
# Number of values in one comparison of rows.
COMPARED_VALUES = 1 << 22
TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
# First bytes of the files of microscopes, and what opens them.
START_BYTES = 16
CONTAINERS: tuple[tuple[bytes | tuple[bytes, ...], Callable[[BinaryIO, str], ImageReader]], ...] = (
    (CZI_START, CziFile),
    (ZARR_START, ZarrFile),
    (ND2_START, Nd2File),
    (DM_STARTS, DmFile),
)
# Raised where a reader did not expect damage; their words are about its code, not about the file.
SLIPS = (LookupError, TypeError, AttributeError, AssertionError, NameError, struct.error)
# If a disk, a server or the host fails, OSError has one of these numbers. If a library finds a file
# damaged, it has none, or another one: a damaged file can lead to a position that does not exist.
FAILING = frozenset(
    (
        *(errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE),
        *(errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ENOENT, errno.EACCES, errno.EPERM),
    )
)
ORIENTATION = 274  # EXIF and TIFF tag
# Pillow refuses a PNG with more than 1 MB of text or colour profile; scanners of slides write more.
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY = 64 << 20


def decode_image(content: bytes, name: str, *, max_pixels: int = MAX_PIXELS) -> Pixels:
    """Decode the bytes of an image file that holds one image."""
    return cast("Pixels", read_image(content, name, max_pixels=max_pixels).pixels)


def read_image(
    content: bytes, name: str, choice: PlaneSelector | None = None, *, max_pixels: int = MAX_PIXELS
) -> DecodedPlane:
    """Decode one image of a file as a whole, and what the file says about it."""
    return open_image(BytesIO(content), name, choice, max_pixels=max_pixels, region_bytes=None)


def open_image(
    stream: BinaryIO,
    name: str,
    choice: PlaneSelector | None = None,
    *,
    max_pixels: int = MAX_PIXELS,
    region_bytes: int | None = REGION_BYTES,
) -> DecodedPlane:
    """Return one image of a file: decoded, or, if it is large, as a `ChunkedImage`.

    `stream`: must stay open for as long as a `ChunkedImage` is read. `max_pixels`: larger images
    that can only be decoded as a whole are refused. `region_bytes`: an image whose pixels take more
    bytes becomes a `ChunkedImage`, if its format allows it; None: no image does.
    """
    with _named_errors(name, 0):
        length = stream.length if isinstance(stream, Folder) else stream.seek(0, os.SEEK_END)
        stream.seek(0)
    if not length:
        raise ImageError(f"{name} is empty (0 bytes). Copy it again, or remove it.")
    chosen = choice or PlaneSelector()
    with _named_errors(name, length):
        start = stream.read(START_BYTES)
        stream.seek(0)
        if (plane := _plane(start, stream, name, chosen)) is not None:
            picture = _open_plane(plane, name, max_pixels, region_bytes)
        elif length > MOST_WHOLE_BYTES:
            raise ImageError(
                f"{name} has {length:,} bytes, and such files can only be decoded as a whole, up "
                f"to {MOST_WHOLE_BYTES:,} bytes. Save it as a tiled TIFF."
            )
        else:
            picture = _read_by_pillow(stream, name, chosen, max_pixels)
    if isinstance(picture.pixels, ChunkedImage):
        return picture
    return replace(picture, pixels=_common_form(picture.pixels, name))


@contextmanager
def _named_errors(name: str, length: int) -> Iterator[None]:
    """Turn exceptions of the libraries into errors with the file's name."""
    try:
        with warnings.catch_warnings():
            # The size is checked below, against one limit instead of two.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            # Odd metadata do not prevent reading the pixels.
            warnings.simplefilter("ignore", UserWarning)
            yield
    except UnidentifiedImageError as error:
        raise ImageError(
            f"{name} is not a {', '.join(FORMATS)} image ({length} bytes). Convert it, or leave it "
            "out by --glob."
        ) from error
    except StorageError as error:
        raise UnreadableImageError(f"{name} cannot be read: {error}") from error
    except GridError:
        raise
    # Whatever a library raises on a damaged file, each its own.
    except Exception as error:
        if _is_failure(error):
            raise UnreadableImageError(
                f"{name} cannot be read ({type(error).__name__}: {error}). Look at its disk, and "
                "at the memory and the local disk of the tasks."
            ) from error
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, SLIPS):
            why = "it is damaged or cut short"
        raise ImageError(f"{name} cannot be decoded ({why}). Repair or remove it.") from error


def _is_failure(error: BaseException) -> bool:
    """Tell whether a disk or a server failed, or memory ran out; then the file may be good."""
    reason: BaseException | None = error
    while reason is not None:
        if isinstance(reason, (MemoryError, StorageError)):
            return True
        if isinstance(reason, OSError) and reason.errno in FAILING:
            return True
        reason = reason.__cause__ or reason.__context__
    return False


def _plane(start: bytes, stream: BinaryIO, name: str, choice: PlaneSelector) -> Plane | None:
    """Return one plane of a file that can hold several, None if the file is of another format."""
    if (container := open_by_own_reader(stream, name)) is not None:
        return _taken(container, name, choice)
    if isinstance(stream, Folder):
        start = ZARR_START
    if start.startswith(TIFF_STARTS):
        return _taken(TiffReader(stream, name, choice), name, choice)
    for known, kind in CONTAINERS:
        if start.startswith(known):
            return _taken(kind(stream, name), name, choice)
    return None


def _taken(container: ImageReader, name: str, choice: PlaneSelector) -> Plane:
    with ExitStack() as opening:
        opening.callback(container.close)
        plane = take(container, name, choice)
        opening.pop_all()
    return plane


def _open_plane(plane: Plane, name: str, max_pixels: int, region_bytes: int | None) -> DecodedPlane:
    with ExitStack() as opening:
        opening.callback(plane.close)
        if region_bytes is not None and plane.nbytes > region_bytes and plane.grain is not None:
            raster = ChunkedImage(_PlaneRegions(plane, plane.grain, name))
            opening.pop_all()
            return plane.picture(raster)
        plane.check_size(max_pixels)
        return plane.picture(plane.read())


class _PlaneRegions:
    """Reads parts of a plane, in the form that all images have.

    `grain`: height and width of the parts in which the file is decoded, pixels.
    """

    def __init__(self, plane: Plane, grain: tuple[int, int], name: str) -> None:
        self._plane = plane
        self._name = name
        self.grain = grain
        first = self.read(0, 0, 1, 1)
        height, width = plane.size
        self.shape = (height, width, first.shape[2])
        self.dtype: np.dtype[Any] = first.dtype

    def read(self, left: int, top: int, right: int, bottom: int) -> Pixels:
        """Decode a rectangle of the image, array [height, width, 1 or 3]."""
        with _named_errors(self._name, 0):
            pixels = _eight_or_sixteen(
                self._plane.read(PlaneWindow(left, top, right, bottom)), self._name
            )
        return pixels if pixels.ndim == 3 else pixels[:, :, np.newaxis]

    def close(self) -> None:
        """Close what reads the file."""
        self._plane.close()


def _common_form(pixels: Pixels, name: str) -> Pixels:
    """Return [height, width, 1 or 3] of uint8 or uint16; gray stored as colour gets one channel."""
    pixels = _eight_or_sixteen(pixels, name)
    if pixels.ndim == 2:
        return np.ascontiguousarray(pixels[:, :, np.newaxis])
    first: Pixels = pixels[:, :, :1]
    return np.ascontiguousarray(first if is_gray(pixels) else pixels)


def is_gray(pixels: Pixels) -> bool:
    """Tell whether all channels of an image are equal, array [height, width, channels]."""
    rows = max(1, COMPARED_VALUES // max(1, pixels[0].size))
    parts = (pixels[top : top + rows] for top in range(0, len(pixels), rows))
    return all(bool((part == part[:, :, :1]).all()) for part in parts)


def _eight_or_sixteen(pixels: Pixels, name: str) -> Pixels:
    return pixels if pixels.dtype in (np.uint8, np.uint16) else _as_uint16(pixels, name)


def _read_by_pillow(
    stream: BinaryIO, name: str, choice: PlaneSelector, max_pixels: int
) -> DecodedPlane:
    with Image.open(stream, formats=FORMATS) as image:
        width, height = image.size
        if width * height > max_pixels:
            raise ImageError(
                f"{name} has {width}x{height} pixels, and can only be decoded as a whole, up to "
                f"{max_pixels:,} pixels. Save it as a tiled TIFF, or allow more by --max-pixels."
            )
        # Pillow would reduce most PNG of 16 bits to 8, and OpenCV knows no pages.
        is_deep = image.format == "PNG" and _bits_of_png(stream) == 16
        if is_deep and _count_of(image) > 1:
            raise ImageError(
                f"{name} is a 16-bit PNG with {_count_of(image)} pictures, which cannot be read "
                "apart. Save each as a file of its own."
            )
        _seek(image, name, choice)
        if image.format in JPEGS:
            stream.seek(getattr(image, "offset", 0))
            jpeg.check_whole(stream.read())
        if is_deep:
            pixels = _decode_deep_png(image, stream, name)
        else:
            pixels = _decode_by_pillow(image, name)
    return DecodedPlane(_chosen_channel(pixels, name, choice))


def _count_of(image: Image.Image) -> int:
    count: int = getattr(image, "n_frames", 1)
    return count


def _seek(image: Image.Image, name: str, choice: PlaneSelector) -> None:
    """Go to the chosen page; animated PNG of 8 bits and JPEG files can have several."""
    count = _count_of(image)
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


def _chosen_channel(pixels: Pixels, name: str, choice: PlaneSelector) -> Pixels:
    if choice.channel is None:
        return pixels
    names = ("red", "green", "blue") if pixels.ndim == 3 else ()
    count = len(names) or 1
    numbers = [channel_number(text, count, names, name) for text in choice.channels]
    if pixels.ndim == 2:
        return pixels
    return pixels[:, :, numbers[0]] if len(numbers) == 1 else pixels[:, :, numbers]


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
    # In place, and without needless conversions: each copy would take as much memory again.
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info:
        return without_alpha(np.asarray(_in_mode(image, "RGBA")), name)
    if image.mode.startswith("I"):
        return np.asarray(image)
    return np.asarray(_in_mode(image, "L" if image.mode in ("1", "L") else "RGB"))


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    return image if image.mode == mode else image.convert(mode)


def _as_uint16(pixels: Pixels, name: str) -> Pixels:
    low, high = int(pixels.min()), int(pixels.max())
    if low < 0 or high > np.iinfo(np.uint16).max:
        raise ImageError(
            f"{name} holds values from {low} to {high}. Convert it to 16 bits (0 to 65535)."
        )
    return pixels.astype(np.uint16)
