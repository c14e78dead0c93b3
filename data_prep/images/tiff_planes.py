"""The pages of a TIFF file as planes of pixels: whole, or a rectangle of one.

A page consists of pieces, tiles or strips, each compressed separately. To read a rectangle, only
the pieces that it touches are decoded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import tifffile
from PIL import Image

from data_prep.images.chunked_image import MOST_PART_BYTES
from data_prep.images.plane_selection import Pixels, paste, without_alpha
from data_prep.images.tiff_segments import PLANAR, Stored, byte_count, decode_piece, piece_counts
from distkeras_grid.errors import ImageError

# TIFF numbers of colour spaces (photometric interpretation) and of extra samples.
MIN_IS_WHITE, MIN_IS_BLACK, RGB, PALETTE, CMYK, YCBCR = 0, 1, 2, 3, 5, 6
COLOUR = (RGB, YCBCR)
JPEG_COMPRESSIONS = (6, 7, 33007, 34712)
ALPHA = (1, 2)
# By orientation: the function that turns stored pixels [height, width, ...] upright.
UPRIGHT: dict[int, Callable[[Pixels], Pixels]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: np.rot90(a, 1),
}


@dataclass(frozen=True)
class PlaneWindow:
    """A rectangle of a plane: left and top edge inclusive, right and bottom edge exclusive."""

    left: int
    top: int
    right: int
    bottom: int


@dataclass(frozen=True)
class TiffSeries:
    """The planes of one image of the file: a TIFF series."""

    series: tifffile.TiffPageSeries
    number: int  # Index among the file's series
    leading: tuple[tuple[str, int], ...]  # Names and lengths of the axes before those of a page

    @property
    def first(self) -> tifffile.TiffPage:
        """The page that describes all of the series."""
        return self.series.keyframe

    @property
    def is_one_block(self) -> bool:
        """Whether the planes are stored one after another behind a single page."""
        return len(self.series) != math.prod(length for _, length in self.leading)

    def length(self, axis: str | None) -> int:
        """Return the length of an axis, 1 if there is none of that name."""
        return dict(self.leading).get(axis or "", 1)


@dataclass(frozen=True)
class Planes:
    """Decodes pages of one series by their places on the series' axes."""

    stack: TiffSeries
    place: dict[str, int]  # Place on the axes that are neither focal planes nor channels
    name: str  # Named in errors
    stream: BinaryIO = field(repr=False)  # The TIFF file
    length: int  # Bytes of the file
    z_axis: str | None = None
    channel_axis: str | None = None  # None where channels are samples of a pixel, or there is one
    _pages: dict[int, tuple[tifffile.TiffPage, Stored]] = field(default_factory=dict, repr=False)

    @property
    def grain(self) -> tuple[int, int] | None:
        """Height and width of the pieces of a page; None if only whole pages can be decoded."""
        page = self.stack.first
        is_plain_ycbcr = page.photometric == YCBCR and page.compression not in JPEG_COMPRESSIONS
        if is_plain_ycbcr or orientation(page) != 1 or page.imagedepth != 1 or page.dtype is None:
            return None
        if self.stack.is_one_block or page.is_final:
            return (1, page.imagewidth)
        high, wide = page.chunks[:2]
        samples = page.samplesperpixel if page.planarconfig != PLANAR else 1
        part_bytes = high * wide * samples * page.dtype.itemsize
        return (high, wide) if part_bytes <= MOST_PART_BYTES else None

    def read(self, channel: int, plane: int, window: PlaneWindow) -> Pixels:
        """Return a page [height, width] or [height, width, samples], upright; 0 is black.

        `window`: part of the page to decode; of a page that is not upright, all of it.
        """
        asked = {self.z_axis: plane, self.channel_axis: channel}
        lengths = [length for _, length in self.stack.leading]
        indices = [asked.get(axis, self.place.get(axis, 0)) for axis, _ in self.stack.leading]
        number = int(np.ravel_multi_index(indices, lengths)) if lengths else 0
        if self.stack.is_one_block:
            page = self.stack.first
            pixels = self._in_one_block(number, window)
        else:
            page, stored = self._page(number)
            pixels = self._decoded(page, stored, window)
        axes = page.axes
        order = [axes.index(axis) for axis in "YXS" if axis in axes]
        if len(order) != pixels.ndim:
            raise ImageError(
                f"{self.name} has pages with the axes {axes}. Save it as a stack of flat pages."
            )
        pixels = pixels.transpose(order)
        if has_alpha(page):
            pixels = without_alpha(pixels, self.name)
        return UPRIGHT.get(orientation(page), UPRIGHT[1])(_with_meaning(pixels, page, self.name))

    def _page(self, number: int) -> tuple[tifffile.TiffPage, Stored]:
        """Return what describes a page, and what holds its pixels; it must be of the stack's kind.

        tifffile assumes that all pages of a stack are like the first, so a page's tags are read.
        """
        if number not in self._pages:
            self._pages[number] = self._checked_page(number)
        return self._pages[number]

    def _checked_page(self, number: int) -> tuple[tifffile.TiffPage, Stored]:
        stored, first = self.stack.series[number], self.stack.first
        if stored is None:
            raise ImageError(
                f"{self.name} keeps this plane in another file. Convert it to one file."
            )
        if stored.is_virtual:  # it has no tags
            self._check_pieces(first, stored)
            return first, stored
        page = stored.aspage()
        if _kind(page) != _kind(first):
            raise ImageError(
                f"{self.name} has planes of different kinds in one stack. Received: "
                f"{_kind(first)} in the first, {_kind(page)} in page {page.index}. Save them as "
                "separate files."
            )
        self._check_pieces(page, page)
        return page, page

    def _in_one_block(self, number: int, window: PlaneWindow) -> Pixels:
        """Return one of the planes that are stored one after another behind a single page."""
        first, start = self.stack.first, self.stack.series.dataoffset
        end = (start or 0) + (number + 1) * first.nbytes
        if start is None or first.dtype is None or end > self.length:
            raise ImageError(
                f"{self.name} states more planes than it holds. Received: plane {number}, from 0. "
                "Copy it again."
            )
        return self._in_rows(first, end - first.nbytes, window)

    def _in_rows(self, page: tifffile.TiffPage, start: int, window: PlaneWindow) -> Pixels:
        """Return pixels of a page that is stored uncompressed, row by row."""
        stored = np.dtype(page.dtype).newbyteorder(page.parent.byteorder)
        is_planar = page.planarconfig == PLANAR and page.samplesperpixel > 1
        samples = 1 if is_planar else page.samplesperpixel
        row = page.imagewidth * samples * stored.itemsize
        rows = window.bottom - window.top
        parts = []
        for plane in range(page.samplesperpixel if is_planar else 1):
            self.stream.seek(start + (plane * page.imagelength + window.top) * row)
            values = np.frombuffer(_exactly(self.stream, rows * row, self.name), stored)
            part = values.reshape(rows, page.imagewidth, samples)[:, window.left : window.right]
            parts.append(part.astype(np.dtype(page.dtype), copy=False))
        if is_planar:
            return np.stack([part[:, :, 0] for part in parts])
        return parts[0] if "S" in page.axes else parts[0][:, :, 0]

    def _decoded(self, page: tifffile.TiffPage, stored: Stored, window: PlaneWindow) -> Pixels:
        if page.photometric == YCBCR and page.compression not in JPEG_COMPRESSIONS:
            # tifffile returns YCbCr values as they are stored; Pillow converts them.
            self.stream.seek(0)
            with Image.open(self.stream, formats=("TIFF",)) as image:
                image.seek(page.index)
                return np.asarray(image.convert("RGB"))
        if page.imagedepth != 1:
            # A Spark task has one core.
            return np.asarray(stored.asarray(maxworkers=1))
        if page.is_final:
            return self._in_rows(page, stored.dataoffsets[0], window)
        return self._in_pieces(page, stored, window)

    def _in_pieces(self, page: tifffile.TiffPage, stored: Stored, window: PlaneWindow) -> Pixels:
        """Return a rectangle of a page; only the pieces that it touches are decoded."""
        is_planar = page.planarconfig == PLANAR and page.samplesperpixel > 1
        planes = page.samplesperpixel if is_planar else 1
        samples = 1 if is_planar else page.samplesperpixel
        size = (window.bottom - window.top, window.right - window.left)
        pixels = np.zeros((planes, *size, samples), page.dtype)
        high, wide = page.chunks[:2]
        down, across = piece_counts(page)
        for plane in range(planes):
            for row in range(window.top // high, -(-window.bottom // high)):
                for column in range(window.left // wide, -(-window.right // wide)):
                    number = (plane * down + row) * across + column
                    piece = self._piece(page, stored, number)
                    at = column * wide, row * high
                    paste(piece, at, pixels[plane], (window.left, window.top))
        if is_planar:
            return pixels[:, :, :, 0]
        return pixels[0] if "S" in page.axes else pixels[0, :, :, 0]

    def _piece(self, page: tifffile.TiffPage, stored: Stored, number: int) -> Pixels:
        self.stream.seek(stored.dataoffsets[number])
        content = _exactly(self.stream, byte_count(page, stored, number), self.name)
        return decode_piece(page, stored, number, content, self.name)

    def _check_pieces(self, page: tifffile.TiffPage, stored: Stored) -> None:
        """Refuse missing pieces, which would be filled with zeros."""
        counts = [byte_count(page, stored, number) for number in range(len(stored.dataoffsets))]
        if any(
            at + count > self.length for at, count in zip(stored.dataoffsets, counts, strict=True)
        ):
            raise ImageError(f"{self.name} is cut short. Copy it again.")
        if not all(counts):
            raise ImageError(f"{self.name} has tiles without content. Save it with all pixels.")


def has_alpha(page: tifffile.TiffPage) -> bool:
    """Tell whether the last sample of a pixel is its opacity."""
    samples = int(page.samplesperpixel)
    if page.photometric in COLOUR:
        # A fourth sample without a stated meaning counts, too: it is dropped only if it is opaque.
        return samples == 4
    return samples == 2 and bool(page.extrasamples) and int(page.extrasamples[0]) in ALPHA


def has_display_table(page: tifffile.TiffPage) -> bool:
    """Tell whether a palette only says how ImageJ shows gray values."""
    return bool(page.photometric == PALETTE and page.parent.is_imagej)


def orientation(page: tifffile.TiffPage) -> int:
    """Return how the page is turned; 1 is upright."""
    tag = page.tags.get("Orientation")
    return int(tag.value) if tag else 1


def _exactly(stream: BinaryIO, count: int, name: str) -> bytes:
    content = stream.read(count)
    if len(content) != count:
        raise ImageError(f"{name} is cut short. Copy it again.")
    return content


def _kind(page: tifffile.TiffPage) -> str:
    """Return in words what the pages of one stack must share."""
    space = getattr(page.photometric, "name", page.photometric)
    shape = "x".join(map(str, page.shape))
    extra = f" {tuple(map(int, page.extrasamples))}" if page.extrasamples else ""
    return f"{shape} {page.axes} {page.dtype} of {page.bitspersample} bits, {space}{extra}"


def _with_meaning(pixels: Pixels, page: tifffile.TiffPage, name: str) -> Pixels:
    """Give the values of a page their common meaning: 0 is black, the largest is white."""
    if page.photometric == PALETTE and page.colormap is not None and not has_display_table(page):
        # The upper byte of 16 bits, as in Pillow; libtiff takes smaller values for 8 bits.
        shift = 8 if page.colormap.max() > 255 else 0
        colours = (page.colormap[:, pixels.astype(np.intp)] >> shift).astype(np.uint8)
        return np.moveaxis(colours, 0, 2)
    if page.photometric == CMYK and pixels.ndim == 3:
        return np.asarray(Image.fromarray(pixels, "CMYK").convert("RGB"))
    if pixels.dtype.kind == "i":
        if page.photometric == MIN_IS_WHITE:
            raise ImageError(
                f"{name} has signed values with white as 0. Convert it to unsigned ones."
            )
        return pixels
    bits = int(page.bitspersample)
    white = (1 << bits) - 1
    if page.photometric == MIN_IS_WHITE:
        pixels = (white - pixels.astype(np.int64)).astype(_unsigned(bits))
    return (pixels.astype(np.uint8) * (255 // white)).astype(np.uint8) if bits < 8 else pixels


def _unsigned(bits: int) -> type[np.unsignedinteger[Any]]:
    return np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32
