"""From the bytes of a TIFF file to one plane of it, and what the file says about its pixels.

A TIFF file can hold many images: pages, channels, focal planes and times. `read_tiff` takes one of
them. A file with several is refused, unless a `Choice` says which one. Reduced copies of an image
(pyramid levels, thumbnails) do not count.
"""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
import tifffile
from PIL import Image, UnidentifiedImageError

from data_prep.picture import PROJECTIONS, Choice, Picture, Pixels, project, without_alpha
from data_prep.tiff_metadata import Ome, planes_stated, tiff_pixel_size
from distkeras_grid.errors import AmbiguousImageError, ImageError

COLOUR_NAMES = ("red", "green", "blue")
# Axes as tifffile names them: I, Q and R stand for "some sequence" that the file does not name.
UNNAMED = "IQR"
# TIFF numbers of colour spaces (photometric interpretation) and of extra samples.
MIN_IS_WHITE, MIN_IS_BLACK, RGB, PALETTE, CMYK, YCBCR = 0, 1, 2, 3, 5, 6
COLOUR = (RGB, YCBCR)
JPEG_COMPRESSIONS = (6, 7, 33007, 34712)
ALPHA = (1, 2)
Stored = tifffile.TiffPage | tifffile.TiffFrame
# Of one pixel: hyperspectral cameras have hundreds.
MAX_SAMPLES = 1024
# A plane takes at most as many bytes as the largest image of 4 channels of 16 bits.
MAX_PIXEL_BYTES = 8
# A damaged or hostile description states any number of planes, and tifffile makes room for them.
MAX_PLANES = 1_000_000
# Pieces of a page in these formats have a header of their own, which can state another size.
CODED = ("JPEG", "JPEG2000", "PNG", "WEBP")
CODED_COMPRESSIONS = (*JPEG_COMPRESSIONS, 33003, 33004, 33005, 34927, 34933, 50001)
# JPEG fills the last blocks of a piece up to a multiple of this, pixels.
JPEG_BLOCK = 16
# Each turns pixels [height, width, ...] stored with that orientation upright.
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
class Stack:
    """The planes of one image of the file: a TIFF series.

    Parameters
    ----------
    series : tifffile.TiffPageSeries
    number : int
        Which of the file's series it is.
    leading : tuple of (str, int)
        Names and lengths of the axes before those of a page.
    """

    series: tifffile.TiffPageSeries
    number: int
    leading: tuple[tuple[str, int], ...]

    @property
    def first(self) -> tifffile.TiffPage:
        """The page that describes all of the series."""
        return self.series.keyframe

    def length(self, axis: str | None) -> int:
        """Return the length of an axis, 1 where there is none of that name."""
        return dict(self.leading).get(axis or "", 1)


def read_tiff(content: bytes, name: str, choice: Choice, max_pixels: int) -> Picture:
    """Decode one plane of a TIFF file.

    Parameters
    ----------
    content : bytes
    name : str
        Named in errors.
    choice : Choice
    max_pixels : int
        A larger plane is refused before anything is decoded.

    Raises
    ------
    AmbiguousImageError
        If the file holds several planes and `choice` does not say which.
    ImageError
        If the plane cannot be decoded, or its values have no clear meaning.
    ValueError, struct.error, RuntimeError, ...
        From the libraries that decode, if the file is damaged.
    """
    # Without `_multifile` tifffile would open whatever path the OME-XML names.
    opened = partial(tifffile.TiffFile, BytesIO(content), _multifile=False)
    with _warnings_kept_away(), opened() as tiff:
        _check_chain(tiff, content, name)
        if (stated := planes_stated(tiff)) > MAX_PLANES:
            raise ImageError(
                f"{name} states {stated:,} planes, more than {MAX_PLANES:,}. Split it first."
            )
        stacks = list(_stacks(tiff))
        if not stacks:
            raise ImageError(f"{name} holds no image. Remove it.")
        stack, others = _chosen_page(stacks, name, choice)
        page = stack.first
        _check_size(page, name, max_pixels)
        _check_kind(page, name)
        described = Ome.of(tiff, stack.number)
        planes = _Planes(stack, others, name, content)
        pixels = _chosen_planes(planes, described, name, choice)
        return _picture(pixels, page, described, tiff_pixel_size(tiff, page, described))


def _check_chain(tiff: tifffile.TiffFile, content: bytes, name: str) -> None:
    """Refuse pages that lead back to an earlier one: tifffile would follow them for ever."""
    form, at = tiff.tiff, tiff.pages.first.offset
    seen: set[int] = set()
    while at and at not in seen:
        seen.add(at)
        try:
            (tags,) = struct.unpack_from(form.tagnoformat, content, at)
            end = at + form.tagnosize + tags * form.tagsize
            (at,) = struct.unpack_from(form.offsetformat, content, end)
        except struct.error:
            return  # the chain ends beyond the file, where tifffile stops, too
    if at:
        raise ImageError(f"{name} has pages that lead back to an earlier one. Save it again.")


def _stacks(tiff: tifffile.TiffFile) -> Iterator[Stack]:
    """Yield every image of the file at its full size."""
    for number, series in enumerate(tiff.series):
        page = series.keyframe
        if page.is_reduced and number > 0:
            continue
        count = len(series.axes) - len(page.axes)
        # Two axes without a name have the same letter.
        names = (
            axis + str(series.axes[:place].count(axis) or "")
            for place, axis in enumerate(series.axes[:count])
        )
        yield Stack(series, number, tuple(zip(names, series.shape[:count], strict=True)))


def _chosen_page(stacks: list[Stack], name: str, choice: Choice) -> tuple[Stack, dict[str, int]]:
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


def _other_axes(stack: Stack, choice: Choice) -> dict[str, int]:
    """Return the lengths of the axes that are neither focal planes nor channels."""
    used = {_z_axis(stack, choice), _channel_axis(stack, choice)}
    return {axis: length for axis, length in stack.leading if axis not in used}


def _z_axis(stack: Stack, choice: Choice) -> str | None:
    """Return the axis of focal planes; one without a name is taken for it if `z` is chosen."""
    names = [axis for axis, _ in stack.leading]
    if "Z" in names:
        return "Z"
    unnamed = [axis for axis in names if axis[0] in UNNAMED]
    return unnamed[0] if unnamed and choice.z is not None else None


def _channel_axis(stack: Stack, choice: Choice) -> str | None:
    names = [axis for axis, _ in stack.leading]
    if "C" in names:
        return "C"
    unnamed = [axis for axis in names if axis[0] in UNNAMED and axis != _z_axis(stack, choice)]
    return unnamed[0] if unnamed and choice.channel is not None else None


class _Planes:
    """Decodes pages of one series by their places on the series' axes.

    Parameters
    ----------
    stack : Stack
    place : dict of str to int
        Where on the axes that are neither focal planes nor channels.
    name : str
    content : bytes
        The file.
    """

    def __init__(self, stack: Stack, place: dict[str, int], name: str, content: bytes) -> None:
        self.stack = stack
        self._place = place
        self._name = name
        self._content = content

    def read(self, **more: int) -> Pixels:
        """Return a page [height, width] or [height, width, samples], upright; 0 is black."""
        place = self._place | more
        lengths = [length for _, length in self.stack.leading]
        indices = [place.get(axis, 0) for axis, _ in self.stack.leading]
        number = int(np.ravel_multi_index(indices, lengths)) if lengths else 0
        if len(self.stack.series) == math.prod(lengths):
            page, stored = self._page(number)
            pixels = self._decoded(page, stored)
        else:
            page = self.stack.first
            pixels = self._in_one_block(number)
        axes = page.axes
        order = [axes.index(axis) for axis in "YXS" if axis in axes]
        if len(order) != pixels.ndim:
            raise ImageError(
                f"{self._name} has pages with the axes {axes}. Save it as a stack of flat pages."
            )
        pixels = pixels.transpose(order)
        if _has_alpha(page):
            pixels = without_alpha(pixels, self._name)
        return _upright(_with_meaning(pixels, page, self._name), page)

    def _page(self, number: int) -> tuple[tifffile.TiffPage, Stored]:
        """Return what describes a page, and what holds its pixels; it must be of the stack's kind.

        tifffile takes all pages of a stack to be as the first one, so its own tags are read again.
        """
        stored, first = self.stack.series[number], self.stack.first
        if stored is None:
            raise ImageError(
                f"{self._name} keeps this plane in another file. Convert it to one file."
            )
        if stored.is_virtual:  # it has no tags
            self._check_whole(first, stored)
            return first, stored
        page = stored.aspage()
        if _kind(page) != _kind(first):
            raise ImageError(
                f"{self._name} has planes of different kinds in one stack. Received: "
                f"{_kind(first)} in the first, {_kind(page)} in page {page.index}. Save them as "
                "separate files."
            )
        self._check_whole(page, page)
        return page, page

    def _in_one_block(self, number: int) -> Pixels:
        """Return a plane of those that lie one after the other behind a single page."""
        first, start = self.stack.first, self.stack.series.dataoffset
        end = (start or 0) + (number + 1) * first.nbytes
        if start is None or first.dtype is None or end > len(self._content):
            raise ImageError(
                f"{self._name} states more planes than it holds. Received: plane {number}, from 0. "
                "Copy it again."
            )
        stored = first.dtype.newbyteorder(first.parent.byteorder)
        pixels = np.frombuffer(self._content, stored, first.size, end - first.nbytes)
        return pixels.reshape(first.shape).astype(first.dtype)

    def _decoded(self, page: tifffile.TiffPage, stored: Stored) -> Pixels:
        if page.photometric == YCBCR and page.compression not in JPEG_COMPRESSIONS:
            # tifffile returns such values as they are stored.
            with Image.open(BytesIO(self._content), formats=("TIFF",)) as image:
                image.seek(page.index)
                return np.asarray(image.convert("RGB"))
        # A Spark task has one core.
        return np.asarray(stored.asarray(maxworkers=1))

    def _check_whole(self, page: tifffile.TiffPage, stored: Stored) -> None:
        """Refuse a page with missing pieces, which would be filled with zeros, or larger ones."""
        pieces = list(zip(stored.dataoffsets, stored.databytecounts, strict=True))
        if any(at + count > len(self._content) for at, count in pieces):
            raise ImageError(f"{self._name} is cut short. Copy it again.")
        if any(count == 0 for _, count in pieces):
            raise ImageError(f"{self._name} has tiles without content. Save it with all pixels.")
        height, width = (JPEG_BLOCK * -(-side // JPEG_BLOCK) for side in page.chunks[:2])
        for at, count in pieces if page.compression in CODED_COMPRESSIONS else ():
            across, down = _coded_size(self._content[at : at + count])
            if across > width or down > height:
                raise ImageError(
                    f"{self._name} has a piece of {across}x{down} pixels where its header states "
                    f"{page.chunks[1]}x{page.chunks[0]}. Save it again."
                )


def _kind(page: tifffile.TiffPage) -> str:
    """Return in words what the pages of one stack must share."""
    space = getattr(page.photometric, "name", page.photometric)
    shape = "x".join(map(str, page.shape))
    extra = f" {tuple(map(int, page.extrasamples))}" if page.extrasamples else ""
    return f"{shape} {page.axes} {page.dtype} of {page.bitspersample} bits, {space}{extra}"


def _coded_size(piece: bytes) -> tuple[int, int]:
    """Return width and height as a piece's own header states them, 0 where it has none."""
    try:
        with Image.open(BytesIO(piece), formats=CODED) as image:
            return image.size
    except UnidentifiedImageError:
        return 0, 0


def _chosen_planes(planes: _Planes, described: Ome, name: str, choice: Choice) -> Pixels:
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
    found = [_chosen_z(planes, name, choice, **{axis: number}) for number in numbers]
    if found[0].ndim == 3 and (samples > 1 or len(found) > 1):
        raise ImageError(
            f"{name} has {count} channels of {found[0].shape[2]} samples. Save it as a stack of "
            "gray images."
        )
    return found[0] if len(found) == 1 else np.stack(found, axis=2)


def _chosen_z(planes: _Planes, name: str, choice: Choice, **place: int) -> Pixels:
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
    """Return how many channels the samples of a pixel are; 1 for gray and for colour."""
    samples = int(page.samplesperpixel)
    is_colour = page.photometric in COLOUR and samples in (3, 4)
    is_cmyk = page.photometric == CMYK and samples == 4
    return 1 if is_colour or is_cmyk or _has_alpha(page) else samples


def _has_alpha(page: tifffile.TiffPage) -> bool:
    samples = int(page.samplesperpixel)
    if page.photometric in COLOUR:
        # A fourth sample of no stated meaning is dropped only if it says nothing.
        return samples == 4
    return samples == 2 and bool(page.extrasamples) and int(page.extrasamples[0]) in ALPHA


def _channel_numbers(
    count: int, names: Sequence[str], page: tifffile.TiffPage, name: str, choice: Choice
) -> list[int] | None:
    """Return the chosen channels, None where all samples of the one image are taken."""
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
    """Return the number of the channel that is called `text`, or has it as its number."""
    if text in names:
        return list(names).index(text)
    if text.isdecimal() and int(text) < count:
        return int(text)
    known = f": {', '.join(names)}" if names else ""
    raise ImageError(f"{name} has {count} channels{known}. Received: channel {text}, from 0.")


def _check_size(page: tifffile.TiffPage, name: str, max_pixels: int) -> None:
    # A damaged header can ask for tiles that no memory holds.
    sizes = ((page.imagewidth, page.imagelength), page.chunks[1::-1])
    item = page.dtype.itemsize if page.dtype is not None else 1
    if max(page.size, math.prod(page.chunks)) * item > MAX_PIXEL_BYTES * max_pixels:
        raise ImageError(
            f"{name} would take {page.size * item:,} bytes for one plane of {page.shape} values. "
            "Cut it into smaller images, or save it with fewer channels."
        )
    for width, height in sizes:
        if width * height > max_pixels or page.samplesperpixel > MAX_SAMPLES:
            raise ImageError(
                f"{name} has {width}x{height} pixels of {page.samplesperpixel} samples, more than "
                f"{max_pixels:,}. Cut it into smaller images first."
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


def _with_meaning(pixels: Pixels, page: tifffile.TiffPage, name: str) -> Pixels:
    """Give the values of a page their common meaning: 0 is black, the largest is white."""
    if page.photometric == PALETTE and page.colormap is not None:
        # As Pillow does: the upper byte of a palette's 16 bits.
        colours = (page.colormap[:, pixels.astype(np.intp)] >> 8).astype(np.uint8)
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


def _orientation(page: tifffile.TiffPage) -> int:
    tag = page.tags.get("Orientation")
    return int(tag.value) if tag else 1


def _upright(pixels: Pixels, page: tifffile.TiffPage) -> Pixels:
    return UPRIGHT.get(_orientation(page), UPRIGHT[1])(pixels)


def _picture(
    pixels: Pixels, page: tifffile.TiffPage, described: Ome, pixel_size: tuple[float, float] | None
) -> Picture:
    """Return the pixels with what the file says about them."""
    stated = described.bits if described.bits is not None else int(page.bitspersample)
    if _orientation(page) >= 5 and pixel_size is not None:
        pixel_size = pixel_size[::-1]
    return Picture(
        np.ascontiguousarray(pixels),
        stated if 8 < stated < 16 else None,
        pixel_size,
        ("inverted, for it stores white as 0",) if page.photometric == MIN_IS_WHITE else (),
    )


def _unsigned(bits: int) -> type[np.unsignedinteger[Any]]:
    return np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32


@contextmanager
def _warnings_kept_away() -> Iterator[None]:
    """Keep tifffile from logging what the errors here say with the file's name."""
    logger = logging.getLogger("tifffile")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
