"""One tile or strip of a TIFF page, decoded; it is refused if its pixels are not all there.

Most decoders fail if a piece ends early. Those of JPEG, JPEG XR and CCITT fill the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import tifffile
from PIL import Image, UnidentifiedImageError

from data_prep.images import jpeg
from data_prep.images.plane_selection import Pixels
from distkeras_grid.errors import ImageError

UNCOMPRESSED = 1
PLANAR = 2
Stored = tifffile.TiffPage | tifffile.TiffFrame
# In these formats pieces of a page have a header of their own, which can state another size.
CODED = ("JPEG", "JPEG2000", "PNG", "WEBP")
CODED_COMPRESSIONS = (*jpeg.COMPRESSIONS, 33003, 33004, 33005, 34712, 34927, 34933, 50001)
# JPEG fills the last blocks of a piece up to a multiple of this many pixels.
JPEG_BLOCK = 16
JPEG_XR = (22610, 34934)
# Tags of its container: offsets and lengths of the image and of its opacity.
JPEG_XR_TAGS = ((0xBCC0, 0xBCC1), (0xBCC2, 0xBCC3))
FAX = (2, 3, 4)
# Bits that mean different rows to a decoder that has not seen all of its rows.
FAX_GOES_ON = tuple(bytes.fromhex(more) * 32 for more in ("ff", "55", "35d1c8b7", "000135d1"))


def piece_counts(page: tifffile.TiffPage) -> tuple[int, int]:
    """Return how many pieces a plane has, from top to bottom and from left to right."""
    high, wide = page.chunks[:2]
    return -(-page.imagelength // high), -(-page.imagewidth // wide)


def byte_count(page: tifffile.TiffPage, stored: Stored, number: int) -> int:
    """Return the bytes of a piece; some programs state 0 for one that is not compressed."""
    count = int(stored.databytecounts[number])
    if count or page.compression != UNCOMPRESSED or not stored.dataoffsets[number]:
        return count
    high = page.chunks[0] if page.is_tiled else _inside(page, number)[0]
    samples = page.samplesperpixel if page.planarconfig != PLANAR else 1
    return int(high * -(-page.chunks[1] * samples * page.bitspersample // 8))


def decode_piece(
    page: tifffile.TiffPage, stored: Stored, number: int, content: bytes, name: str
) -> Pixels:
    """Decode a piece, array [height, width, samples]."""
    more: dict[str, Any] = {}
    if page.compression in jpeg.COMPRESSIONS:
        more = {"jpegtables": stored.jpegtables, "jpegheader": page.jpegheader}
        jpeg.check_whole(jpeg.joined(content, stored.jpegtables, page.jpegheader))
    elif page.compression in JPEG_XR:
        _check_jpeg_xr(content, name)
    if page.compression in CODED_COMPRESSIONS:
        _check_size(page, number, content, name)

    def decoded(content: bytes) -> Pixels:
        values, _, shape = page.decode(content, number, **more)
        piece: Pixels = np.asarray(values).reshape(shape)[0]
        return piece

    piece = decoded(content)
    if page.compression in FAX and not _is_whole_fax(content, piece, decoded):
        raise ImageError(f"{name} has a strip that ends early. Copy it again.")
    return piece


def _inside(page: tifffile.TiffPage, number: int) -> tuple[int, int]:
    """Return height and width of the part of a piece that lies inside the image."""
    (high, wide), (down, across) = page.chunks[:2], piece_counts(page)
    row, column = divmod(number % (down * across), across)
    return min(high, page.imagelength - row * high), min(wide, page.imagewidth - column * wide)


def _check_size(page: tifffile.TiffPage, number: int, content: bytes, name: str) -> None:
    """Refuse a piece whose own header states another size."""
    own = _coded_size(content)
    most = (JPEG_BLOCK * -(-side // JPEG_BLOCK) for side in page.chunks[:2])
    for side, low, high in zip(own, _inside(page, number), most, strict=True):
        if side and not low <= side <= high:
            raise ImageError(
                f"{name} has a piece of {own[1]}x{own[0]} pixels where its header states "
                f"{page.chunks[1]}x{page.chunks[0]}. Save it again."
            )


def _coded_size(piece: bytes) -> tuple[int, int]:
    """Return height and width as a piece's own header states them, 0 where it has none."""
    try:
        with Image.open(BytesIO(piece), formats=CODED) as image:
            return image.height, image.width
    except UnidentifiedImageError:
        return 0, 0


def _check_jpeg_xr(content: bytes, name: str) -> None:
    """Refuse a piece that ends before its image does, as its container states it."""
    (at,) = struct.unpack_from("<I", content, 4)
    (count,) = struct.unpack_from("<H", content, at)
    tags = {}
    for place in range(at + 2, at + 2 + 12 * count, 12):
        tag, _, _, value = struct.unpack_from("<HHII", content, place)
        tags[tag] = value
    for start, length in JPEG_XR_TAGS:
        if tags.get(start, 0) + tags.get(length, 0) > len(content):
            raise ImageError(f"{name} has a piece that ends early. Copy it again.")


def _is_whole_fax(content: bytes, piece: Pixels, decoded: Callable[[bytes], Pixels]) -> bool:
    """Tell whether the rows of a piece do not depend on what comes behind it."""
    return all(np.array_equal(decoded(content + more), piece) for more in FAX_GOES_ON)
