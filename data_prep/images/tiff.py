"""TIFF files, by tifffile: which pages, focal planes and channels they hold, and what they say.

Reduced copies of an image (pyramid levels, thumbnails) do not count.
"""

from __future__ import annotations

import logging
import math
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np
import tifffile

from data_prep.images.plane_selection import Pixels, PlaneSelector
from data_prep.images.reader_base import PlaneInfo
from data_prep.images.tiff_metadata import Ome, tiff_pixel_size
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
from distkeras_grid.errors import ImageError

# Axes as tifffile names them: I, Q and R stand for "some sequence" that the file does not name.
UNNAMED = "IQR"


class TiffReader:
    """A TIFF file as a `data_prep.images.reader_base.ImageReader`.

    Pages are its images, and places on the axes that are neither focal planes nor channels.

    `stream`: must stay open for as long as planes are read.
    `choice`: an axis without a name is taken for that of the focal planes or of the channels, if
    one of these is chosen.
    """

    def __init__(self, stream: BinaryIO, name: str, choice: PlaneSelector) -> None:
        self._stream, self._name, self._choice = stream, name, choice
        self._length = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        with warnings_kept_away():
            self._tiff = open_tiff(stream, name)
            _check_chain(self._tiff, stream, name)
            self._stacks = list(_stacks(self._tiff))
        if not self._stacks:
            raise ImageError(f"{name} holds no image. Remove it.")
        self._rests = [self._other_axes(stack) for stack in self._stacks]
        self.pages = sum(math.prod(rest.values()) for rest in self._rests)
        self._known: dict[int, Planes] = {}
        self._last: tuple[object, Pixels] | None = None

    def form(self, page: int) -> PlaneInfo:
        """Return what the planes of a page are like."""
        with warnings_kept_away():
            planes = self._page(page)
            stack = planes.stack
            first = stack.first
            _check_kind(first, self._name)
            described = Ome.of(self._tiff, stack.number)
            pixel_size = tiff_pixel_size(self._tiff, first, described)
            if orientation(first) >= 5 and pixel_size is not None:
                pixel_size = pixel_size[::-1]
            channels, samples = stack.length(planes.channel_axis), _sample_channels(first)
            if planes.channel_axis is None:
                channels = samples
            elif samples > 1:
                raise ImageError(
                    f"{self._name} has {channels} channels of {samples} samples. Save it as a "
                    "stack of gray images."
                )
            size = first.imagelength, first.imagewidth
            notes = []
            if first.photometric == MIN_IS_WHITE:
                notes.append("inverted, for it stores white as 0")
            if has_display_table(first):
                notes.append("gray, without the colours in which ImageJ shows it")
            return PlaneInfo(
                *(size, np.dtype(first.dtype).itemsize, planes.grain, channels),
                planes=stack.length(planes.z_axis),
                channel_names=described.channels,
                is_colour=channels == 1 and _is_colour(first),
                bits=described.bits if described.bits is not None else int(first.bitspersample),
                pixel_size=pixel_size,
                notes=tuple(notes),
                samples=first.size // max(1, math.prod(size)),
                chunk=first.chunks[:2],
            )

    def read(self, page: int, channel: int, plane: int, window: PlaneWindow) -> Pixels:
        """Decode a rectangle, array [height, width] or [height, width, 3]."""
        planes = self._page(page)
        if planes.channel_axis is not None or _sample_channels(planes.stack.first) == 1:
            with warnings_kept_away():
                return planes.read(channel, plane, window)
        # All samples are decoded together.
        key = page, plane, window
        if self._last is None or self._last[0] != key:
            with warnings_kept_away():
                self._last = key, planes.read(channel, plane, window)
        return self._last[1][:, :, channel]

    def close(self) -> None:
        """Forget what was decoded; the file belongs to whoever opened it."""
        self._last = None

    def _page(self, number: int) -> Planes:
        if number not in self._known:
            stack, place = self._stack_of(number)
            z_axis, channel_axis = self._z_axis(stack), self._channel_axis(stack)
            self._known[number] = Planes(
                *(stack, place, self._name, self._stream, self._length),
                z_axis=z_axis if stack.length(z_axis) > 1 else None,
                channel_axis=channel_axis if stack.length(channel_axis) > 1 else None,
            )
        return self._known[number]

    def _stack_of(self, page: int) -> tuple[TiffSeries, dict[str, int]]:
        """Return the series that holds a page, and the page's place on its other axes."""
        for stack, rest in zip(self._stacks, self._rests, strict=True):
            if page < (count := math.prod(rest.values())):
                place = np.unravel_index(page, tuple(rest.values())) if rest else ()
                return stack, dict(zip(rest, map(int, place), strict=True))
            page -= count
        raise ImageError(f"{self._name} has {self.pages} pages, from 0.")

    def _other_axes(self, stack: TiffSeries) -> dict[str, int]:
        """Return the lengths of the axes that are neither focal planes nor channels."""
        used = {self._z_axis(stack), self._channel_axis(stack)}
        return {axis: length for axis, length in stack.leading if axis not in used}

    def _z_axis(self, stack: TiffSeries) -> str | None:
        return _axis(stack, "Z", set(), is_chosen=self._choice.z is not None)

    def _channel_axis(self, stack: TiffSeries) -> str | None:
        used = {self._z_axis(stack)}
        return _axis(stack, "C", used, is_chosen=self._choice.channel is not None)


def _axis(stack: TiffSeries, letter: str, used: set[str | None], *, is_chosen: bool) -> str | None:
    """Return the axis of this name; if a place on it is chosen, else one without a name."""
    names = [axis for axis, _ in stack.leading]
    if letter in names:
        return letter
    unnamed = [axis for axis in names if axis[0] in UNNAMED and axis not in used]
    return unnamed[0] if unnamed and is_chosen else None


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


def _sample_channels(page: tifffile.TiffPage) -> int:
    """Return the number of channels in the samples of a pixel; 1 for gray and for colour."""
    return 1 if _is_colour(page) or has_alpha(page) else int(page.samplesperpixel)


def _is_colour(page: tifffile.TiffPage) -> bool:
    """Tell whether a pixel has red, green and blue."""
    if page.photometric == PALETTE:
        return page.colormap is not None and not has_display_table(page)
    samples = int(page.samplesperpixel)
    return (
        samples == 4
        if page.photometric == CMYK
        else page.photometric in COLOUR and samples in (3, 4)
    )


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
