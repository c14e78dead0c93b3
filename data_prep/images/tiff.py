"""From a TIFF file to one plane of it, and what the file says about its pixels.

A TIFF file can hold many images: pages, channels, focal planes and times. `find_plane` takes one of
them. A file with several is refused, unless a `PlaneSelector` says which one. Reduced copies of an
image (pyramid levels, thumbnails) do not count.
"""

from __future__ import annotations

import logging
import math
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import tifffile

from data_prep.images.chunked_image import ChunkedImage
from data_prep.images.plane_selection import (
    PROJECTIONS,
    DecodedPlane,
    Pixels,
    PlaneSelector,
    project,
)
from data_prep.images.tiff_metadata import Ome, planes_stated, tiff_pixel_size
from data_prep.images.tiff_planes import (
    CMYK,
    COLOUR,
    MIN_IS_BLACK,
    MIN_IS_WHITE,
    PALETTE,
    RGB,
    YCBCR,
    Planes,
    PlaneWindow,
    TiffSeries,
    has_alpha,
    has_display_table,
    orientation,
)
from distkeras_grid.errors import AmbiguousImageError, ImageError

COLOUR_NAMES = ("red", "green", "blue")
# Axes as tifffile names them: I, Q and R stand for "some sequence" that the file does not name.
UNNAMED = "IQR"
# Largest number of samples of one pixel: hyperspectral cameras have hundreds.
MAX_SAMPLES = 1024
# A plane has at most as many bytes as the largest image with 4 channels of 16 bits.
MAX_PIXEL_BYTES = 8
# A damaged or hostile description can state any number of planes; tifffile allocates them all.
MAX_PLANES = 1_000_000
# Most pixels of a plane that is read by region: tables of its tiles stay small.
MAX_REGION_PIXELS = 1 << 34


@dataclass(frozen=True)
class TiffPlane:
    """One plane of a TIFF file, as a `PlaneSelector` selects it."""

    planes: Planes  # Planes of the file
    described: Ome
    choice: PlaneSelector
    pixel_size: tuple[float, float] | None  # Width and height of a pixel, micrometres

    @property
    def _page(self) -> tifffile.TiffPage:
        return self.planes.stack.first

    @property
    def size(self) -> tuple[int, int]:
        """Height and width as stored, pixels."""
        return self._page.imagelength, self._page.imagewidth

    @property
    def nbytes(self) -> int:
        """Size of the whole plane, bytes."""
        return int(self._page.size) * (self._page.dtype.itemsize if self._page.dtype else 1)

    @property
    def grain(self) -> tuple[int, int] | None:
        """Height and width of the parts that can be decoded alone; None if only the whole can."""
        height, width = self.size
        is_known = height * width <= MAX_REGION_PIXELS
        is_known &= self._page.samplesperpixel <= MAX_SAMPLES
        return self.planes.grain if is_known else None

    def read(self, window: PlaneWindow | None = None) -> Pixels:
        """Decode the plane, or a rectangle of it."""
        planes = self.planes if window is None else self.planes.crop(window)
        with warnings_kept_away():
            pixels = _chosen_planes(planes, self.described, self.planes.name, self.choice)
        return np.ascontiguousarray(pixels)

    def close(self) -> None:
        """Do nothing: the file belongs to whoever opened it."""

    def picture(self, pixels: Pixels | ChunkedImage) -> DecodedPlane:
        """Return pixels of the plane together with what the file says about them."""
        page, described = self._page, self.described
        stated = described.bits if described.bits is not None else int(page.bitspersample)
        pixel_size = self.pixel_size
        if orientation(page) >= 5 and pixel_size is not None:
            pixel_size = pixel_size[::-1]
        notes = []
        if page.photometric == MIN_IS_WHITE:
            notes.append("inverted, for it stores white as 0")
        if has_display_table(page):
            notes.append("gray, without the colours in which ImageJ shows it")
        return DecodedPlane(
            pixels,
            stated if 8 < stated < 16 else None,
            pixel_size,
            tuple(notes),
        )

    def check_size(self, max_pixels: int) -> None:
        """Refuse a plane that is too large to be decoded as a whole."""
        page, name = self._page, self.planes.name
        # A damaged header can ask for more memory than there is.
        sizes = ((page.imagewidth, page.imagelength), page.chunks[1::-1])
        item = page.dtype.itemsize if page.dtype is not None else 1
        if max(page.size, math.prod(page.chunks)) * item > MAX_PIXEL_BYTES * max_pixels:
            raise ImageError(
                f"{name} would take {page.size * item:,} bytes for one plane of {page.shape} "
                "values. Cut it into smaller images, or save it with fewer channels."
            )
        for width, height in sizes:
            if width * height > max_pixels or page.samplesperpixel > MAX_SAMPLES:
                raise ImageError(
                    f"{name} has {width}x{height} pixels of {page.samplesperpixel} samples, and "
                    f"can only be decoded as a whole, up to {max_pixels:,} pixels. Save it as a "
                    "tiled TIFF, or allow more by --max-pixels."
                )


def find_plane(stream: BinaryIO, name: str, choice: PlaneSelector) -> TiffPlane:
    """Find one plane in a TIFF file; nothing is decoded.

    `stream`: must stay open for as long as the plane is read.
    """
    length = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    with warnings_kept_away():
        tiff = open_tiff(stream, name)
        _check_chain(tiff, stream, name)
        if (stated := planes_stated(tiff)) > MAX_PLANES:
            raise ImageError(
                f"{name} states {stated:,} planes, more than {MAX_PLANES:,}. Split it first."
            )
        stacks = list(_stacks(tiff))
        if not stacks:
            raise ImageError(f"{name} holds no image. Remove it.")
        stack, others = _chosen_page(stacks, name, choice)
        page = stack.first
        _check_kind(page, name)
        described = Ome.of(tiff, stack.number)
        planes = Planes(stack, others, name, stream, length)
        return TiffPlane(planes, described, choice, tiff_pixel_size(tiff, page, described))


def open_tiff(stream: BinaryIO, name: str) -> tifffile.TiffFile:
    """Open a TIFF file that has a first page; its name is told otherwise."""
    # Without `_multifile` tifffile would open whatever path the OME-XML names.
    tiff = tifffile.TiffFile(stream, _multifile=False)
    if not tiff.pages:
        raise ImageError(
            f"{name} is cut short: the list of its pages lies behind its end. Copy it again."
        )
    return tiff


def _check_chain(tiff: tifffile.TiffFile, stream: BinaryIO, name: str) -> None:
    """Refuse pages that lead back to an earlier one: tifffile would follow them forever."""
    form, at = tiff.tiff, tiff.pages.first.offset
    offsets: set[int] = set()

    def number(layout: str, place: int) -> int:
        stream.seek(place)
        return int(struct.unpack(layout, stream.read(struct.calcsize(layout)))[0])

    while at and at not in offsets:
        offsets.add(at)
        try:
            tags = number(form.tagnoformat, at)
            at = number(form.offsetformat, at + form.tagnosize + tags * form.tagsize)
        except struct.error:
            return  # the chain ends beyond the file, where tifffile stops, too
    if at:
        raise ImageError(f"{name} has pages that lead back to an earlier one. Save it again.")


def _stacks(tiff: tifffile.TiffFile) -> Iterator[TiffSeries]:
    """Yield every image of the file at its full size."""
    for number, series in enumerate(tiff.series):
        page = series.keyframe
        # The thumbnail of Aperio does not say that it is one.
        is_thumbnail = (series.kind, series.name) == ("svs", "Thumbnail")
        if number > 0 and (page.is_reduced or is_thumbnail):
            continue
        count = len(series.axes) - len(page.axes)
        # Two axes without a name have the same letter.
        names = (
            axis + str(series.axes[:place].count(axis) or "")
            for place, axis in enumerate(series.axes[:count])
        )
        yield TiffSeries(series, number, tuple(zip(names, series.shape[:count], strict=True)))


def _chosen_page(
    stacks: list[TiffSeries], name: str, choice: PlaneSelector
) -> tuple[TiffSeries, dict[str, int]]:
    """Return the series that holds the chosen page, and the page's place on its other axes."""
    rests = [_other_axes(stack, choice) for stack in stacks]
    counts = [math.prod(rest.values()) for rest in rests]
    if choice.page is None and sum(counts) > 1:
        raise AmbiguousImageError(
            f"{name} holds {sum(counts)} pages. Received: none to take. Choose one by --page 0 to "
            f"{sum(counts) - 1}, or, if they are focal planes or channels, by --z or --channel."
        )
    number = choice.page or 0
    for stack, rest, count in zip(stacks, rests, counts, strict=True):
        if number < count:
            place = np.unravel_index(number, tuple(rest.values())) if rest else ()
            return stack, dict(zip(rest, map(int, place), strict=True))
        number -= count
    raise ImageError(
        f"{name} has {sum(counts)} pages. Received: page {choice.page}, counted from 0."
    )


def _other_axes(stack: TiffSeries, choice: PlaneSelector) -> dict[str, int]:
    """Return the lengths of the axes that are neither focal planes nor channels."""
    used = {_z_axis(stack, choice), _channel_axis(stack, choice)}
    return {axis: length for axis, length in stack.leading if axis not in used}


def _z_axis(stack: TiffSeries, choice: PlaneSelector) -> str | None:
    """Return the axis of focal planes; one without a name is taken for it if `z` is chosen."""
    names = [axis for axis, _ in stack.leading]
    if "Z" in names:
        return "Z"
    unnamed = [axis for axis in names if axis[0] in UNNAMED]
    return unnamed[0] if unnamed and choice.z is not None else None


def _channel_axis(stack: TiffSeries, choice: PlaneSelector) -> str | None:
    names = [axis for axis, _ in stack.leading]
    if "C" in names:
        return "C"
    unnamed = [axis for axis in names if axis[0] in UNNAMED and axis != _z_axis(stack, choice)]
    return unnamed[0] if unnamed and choice.channel is not None else None


def _chosen_planes(planes: Planes, described: Ome, name: str, choice: PlaneSelector) -> Pixels:
    """Return the chosen channels of the chosen focal planes as one array."""
    stack = planes.stack
    axis = _channel_axis(stack, choice)
    samples = _sample_channels(stack.first)
    if axis is not None and stack.length(axis) > 1:
        count = stack.length(axis)
    else:
        axis, count = None, samples
    numbers = _channel_numbers(count, described.channels, stack.first, name, choice)
    if numbers is None:
        return _chosen_z(planes, name, choice)
    if axis is None:
        pixels = _chosen_z(planes, name, choice)
        return pixels[:, :, numbers[0]] if len(numbers) == 1 else pixels[:, :, numbers]
    channels = [_chosen_z(planes, name, choice, **{axis: number}) for number in numbers]
    if channels[0].ndim == 3 and (samples > 1 or len(channels) > 1):
        raise ImageError(
            f"{name} has {count} channels of {channels[0].shape[2]} samples. Save it as a stack of "
            "gray images."
        )
    return channels[0] if len(channels) == 1 else np.stack(channels, axis=2)


def _chosen_z(planes: Planes, name: str, choice: PlaneSelector, **place: int) -> Pixels:
    axis = _z_axis(planes.stack, choice)
    count = planes.stack.length(axis)
    if choice.z is None and count > 1:
        raise AmbiguousImageError(
            f"{name} holds {count} focal planes. Received: none to take. Choose one by --z 0 to "
            f"{count - 1}, or make one of all by --z max or --z mean."
        )
    if axis is None or count == 1:
        if choice.z is not None and choice.z not in PROJECTIONS and int(choice.z) > 0:
            raise ImageError(f"{name} has one focal plane. Received: z {choice.z}, from 0.")
        return planes.read(**place)
    if choice.z in PROJECTIONS:
        return project((planes.read(**place, **{axis: z}) for z in range(count)), choice.z)
    z = int(choice.z or 0)
    if z >= count:
        raise ImageError(f"{name} has {count} focal planes. Received: z {z}, counted from 0.")
    return planes.read(**place, **{axis: z})


def _sample_channels(page: tifffile.TiffPage) -> int:
    """Return the number of channels in the samples of a pixel; 1 for gray and for colour."""
    samples = int(page.samplesperpixel)
    is_colour = page.photometric in COLOUR and samples in (3, 4)
    is_cmyk = page.photometric == CMYK and samples == 4
    return 1 if is_colour or is_cmyk or has_alpha(page) else samples


def _channel_numbers(
    count: int, names: Sequence[str], page: tifffile.TiffPage, name: str, choice: PlaneSelector
) -> list[int] | None:
    """Return the chosen channels, None if all samples of the one image are taken."""
    if choice.channel is None:
        if count > 1:
            known = f" ({', '.join(names)})" if names else ""
            raise AmbiguousImageError(
                f"{name} holds {count} channels{known}. Received: none to take. Choose one by "
                f"--channel 0 to {count - 1}, or three such as --channel 0,1,2 for red, green and "
                "blue."
            )
        return None
    is_colour = count == 1 and page.photometric in COLOUR
    if is_colour:
        count, names = len(COLOUR_NAMES), COLOUR_NAMES
    numbers = [channel_number(text, count, names, name) for text in choice.channels]
    return None if count == 1 else numbers


def channel_number(text: str, count: int, names: Sequence[str], name: str) -> int:
    """Return the number of the channel whose name or number is `text`."""
    if text in names:
        return list(names).index(text)
    if text.isdecimal() and int(text) < count:
        return int(text)
    known = f": {', '.join(names)}" if names else ""
    raise ImageError(f"{name} has {count} channels{known}. Received: channel {text}, from 0.")


def _check_kind(page: tifffile.TiffPage, name: str) -> None:
    """Refuse colour spaces and numbers whose meaning is not known."""
    known = (MIN_IS_WHITE, MIN_IS_BLACK, RGB, PALETTE, CMYK, YCBCR)
    if page.photometric not in known:
        space = getattr(page.photometric, "name", page.photometric)
        raise ImageError(f"{name} has the colour space {space}. Convert it to gray or RGB.")
    if page.sampleformat == 3 or page.dtype is None or page.dtype.kind not in "uib":
        raise ImageError(
            f"{name} holds floating-point pixels. Convert it to 8 or 16 bits, so that black and "
            "white mean the same in every image."
        )
    if page.photometric in (PALETTE, CMYK) and page.bitspersample > 8:
        raise ImageError(
            f"{name} has {page.bitspersample} bits in a palette or in CMYK. Convert it to gray or "
            "RGB."
        )


@contextmanager
def warnings_kept_away() -> Iterator[None]:
    """Silence tifffile's log messages, which repeat the errors raised here."""
    logger = logging.getLogger("tifffile")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
