"""From an image file to an array.

PNG, JPEG, TIFF and BMP with 8 or 16 bits are read; with the extras ``formats`` and ``dm`` also CZI,
ND2, OME-Zarr, dm3 and dm4; and what readers of other packages read
(`data_prep.images.own_readers`). An EXIF orientation is applied, a fully opaque alpha channel is
dropped, and colour images with equal channels become gray. Each format has an `ImageReader`; the
first bytes of a file choose it. A large image becomes a `ChunkedImage`, which decodes it part by
part, if its format allows that.
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

import numpy as np
from PIL import Image, UnidentifiedImageError

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
from data_prep.images.pillow import FORMATS, PillowFile
from data_prep.images.plane_selection import DecodedPlane, Pixels, PlaneSelector
from data_prep.images.reader_base import ImageReader, Plane, take
from data_prep.images.tiff import TiffReader
from data_prep.images.tiff_planes import PlaneWindow
from distkeras_grid.errors import GridError, ImageError, StorageError, UnreadableImageError

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
    with _named_errors(name, length), ExitStack() as opening:
        reader = _reader(stream, name, chosen, length)
        opening.callback(reader.close)
        picture = _open_plane(take(reader, name, chosen), name, max_pixels, region_bytes)
        if isinstance(picture.pixels, ChunkedImage):
            opening.pop_all()
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


def _reader(stream: BinaryIO, name: str, choice: PlaneSelector, length: int) -> ImageReader:
    """Return the reader of a file, by its first bytes; any other file is Pillow's."""
    start = stream.read(START_BYTES)
    stream.seek(0)
    if (own := open_by_own_reader(stream, name)) is not None:
        return own
    if isinstance(stream, Folder):
        start = ZARR_START
    if start.startswith(TIFF_STARTS):
        return TiffReader(stream, name, choice)
    for known, kind in CONTAINERS:
        if start.startswith(known):
            return kind(stream, name)
    if length > MOST_WHOLE_BYTES:
        raise ImageError(
            f"{name} has {length:,} bytes, and such files can only be decoded as a whole, up to "
            f"{MOST_WHOLE_BYTES:,} bytes. Save it as a tiled TIFF."
        )
    return PillowFile(stream, name)


def _open_plane(plane: Plane, name: str, max_pixels: int, region_bytes: int | None) -> DecodedPlane:
    if region_bytes is not None and plane.nbytes > region_bytes and plane.grain is not None:
        return plane.picture(ChunkedImage(_PlaneRegions(plane, plane.grain, name)))
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


def _as_uint16(pixels: Pixels, name: str) -> Pixels:
    low, high = int(pixels.min()), int(pixels.max())
    if low < 0 or high > np.iinfo(np.uint16).max:
        raise ImageError(
            f"{name} holds values from {low} to {high}. Convert it to 16 bits (0 to 65535)."
        )
    return pixels.astype(np.uint16)
