"""What files of several planes have in common: TIFF, and the formats of microscopes.

An `ImageReader` is a file with pages, channels and focal planes; a library decodes any rectangle.
`take` makes one plane of it as a `PlaneSelector` says. A file with several is refused, unless it
says which one.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import ModuleType
from typing import BinaryIO, Protocol

import numpy as np

from data_prep.images.chunked_image import MOST_PART_BYTES, ChunkedImage
from data_prep.images.multifile_images import check_disk_space
from data_prep.images.plane_selection import (
    PROJECTIONS,
    DecodedPlane,
    Pixels,
    PlaneSelector,
    project,
)
from data_prep.images.tiff_planes import PlaneWindow
from distkeras_grid.errors import AmbiguousImageError, ImageError
from distkeras_grid.feeding.local_file import local_folder

Size = tuple[float, float]
COLOUR_NAMES = ("red", "green", "blue")
# Largest number of samples of one pixel: hyperspectral cameras have hundreds.
MAX_SAMPLES = 1024
# A plane has at most as many bytes as the largest image with 4 channels of 16 bits.
MAX_PIXEL_BYTES = 8
# Most pixels of a plane that is read by region: tables of its tiles stay small.
MAX_REGION_PIXELS = 1 << 34


@dataclass(frozen=True)
class PlaneInfo:
    """Properties that all planes of one page share."""

    size: tuple[int, int]  # Height and width, pixels
    itemsize: int  # Bytes of a value
    # Height and width of the parts that are decoded at once, pixels; None: only the whole plane is
    grain: tuple[int, int] | None
    channels: int = 1
    planes: int = 1  # Number of focal planes
    channel_names: Sequence[str] = ()  # Of all channels; empty if one has no name
    is_colour: bool = False  # Whether a plane has red, green and blue; then there is one channel
    bits: int | None = None  # Significant bits, if they are stated
    pixel_size: Size | None = None  # Width and height of a pixel, micrometres
    notes: tuple[str, ...] = ()  # Changes that are made to the values while they are read
    samples: int = 1  # Number of values of a pixel that can only be decoded together
    # Height and width of what is stored in one piece, where that may exceed the plane, pixels
    chunk: tuple[int, ...] = ()


class ImageReader(Protocol):
    """An image file as its library shows it."""

    @property
    def pages(self) -> int:
        """Number of images: scenes, positions and times."""
        ...

    def form(self, page: int) -> PlaneInfo:
        """Return the properties of the planes of a page."""
        ...

    def read(self, page: int, channel: int, plane: int, window: PlaneWindow) -> Pixels:
        """Decode a rectangle, array [height, width] or [height, width, 3]."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


@dataclass(frozen=True)
class Plane:
    """One plane of a file, as a `PlaneSelector` selects it."""

    container: ImageReader
    form: PlaneInfo  # Properties of the page
    name: str  # Named in errors
    page: int
    channels: tuple[int, ...]  # Numbers of one channel, or of three for red, green and blue
    planes: tuple[int, ...]  # Numbers of the focal planes
    projection: str | None = None  # How several focal planes become one
    # In a colour image, which of red, green and blue to take; None: all
    samples: tuple[int, ...] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, pixels."""
        return self.form.size

    @property
    def _values(self) -> int:
        """Number of values of a pixel that are decoded."""
        chosen = 3 if self.form.is_colour else len(self.channels)
        return max(chosen, self.form.samples)

    @property
    def nbytes(self) -> int:
        """Size of the whole plane, bytes."""
        return math.prod(self.size) * self._values * self.form.itemsize

    @property
    def grain(self) -> tuple[int, int] | None:
        """Height and width of the parts that can be decoded alone; None if only the whole can."""
        form = self.form
        if form.grain is None or form.samples > MAX_SAMPLES:
            return None
        part_bytes = math.prod(form.grain) * (3 if form.is_colour else 1) * form.itemsize
        is_known = math.prod(self.size) <= MAX_REGION_PIXELS and part_bytes <= MOST_PART_BYTES
        return form.grain if is_known else None

    def read(self, window: PlaneWindow | None = None) -> Pixels:
        """Decode the plane, or a rectangle of it, array [height, width] or [height, width, 3]."""
        height, width = self.size
        part = window or PlaneWindow(0, 0, width, height)
        channels = [self._channel(channel, part) for channel in self.channels]
        if len(channels) > 1 and channels[0].ndim == 3:
            raise ImageError(
                f"{self.name} has channels of {channels[0].shape[2]} samples. Save it as a stack "
                "of gray images."
            )
        pixels = channels[0] if len(channels) == 1 else np.stack(channels, axis=2)
        if self.samples is not None and pixels.ndim == 3:
            chosen = pixels[:, :, list(self.samples)]
            pixels = chosen[:, :, 0] if len(self.samples) == 1 else chosen
        return np.ascontiguousarray(pixels)

    def _channel(self, channel: int, window: PlaneWindow) -> Pixels:
        each = (self.container.read(self.page, channel, plane, window) for plane in self.planes)
        return next(each) if self.projection is None else project(each, self.projection)

    def picture(self, pixels: Pixels | ChunkedImage) -> DecodedPlane:
        """Return pixels of the plane together with what the file says about them."""
        bits = self.form.bits
        stated = bits if bits and 8 < bits < 16 else None
        return DecodedPlane(pixels, stated, self.form.pixel_size, self.form.notes)

    def check_size(self, max_pixels: int) -> None:
        """Refuse a plane that is too large to be decoded as a whole."""
        # A damaged header can ask for more memory than there is.
        (height, width), form = self.size, self.form
        pixels = max(height * width, math.prod(form.chunk))
        if (total := pixels * self._values * form.itemsize) > MAX_PIXEL_BYTES * max_pixels:
            raise ImageError(
                f"{self.name} would take {total:,} bytes for one plane of {width}x{height} pixels. "
                "Cut it into smaller images, or save it with fewer channels."
            )
        if pixels > max_pixels or form.samples > MAX_SAMPLES:
            raise ImageError(
                f"{self.name} has {width}x{height} pixels of {self._values} values, and can only "
                f"be decoded as a whole, up to {max_pixels:,} pixels. Save it as a tiled TIFF, or "
                "allow more by --max-pixels."
            )

    def close(self) -> None:
        """Close the file."""
        self.container.close()


def take(container: ImageReader, name: str, choice: PlaneSelector) -> Plane:
    """Choose one plane."""
    others = ", or, if they are focal planes or channels, by --z or --channel"
    page = _number(container.pages, choice.page, name, "pages", "--page", others)
    form = container.form(page)
    planes, projection = _planes(form, name, choice)
    if form.is_colour:
        samples = None
        if choice.channel is not None:
            samples = tuple(channel_number(c, 3, COLOUR_NAMES, name) for c in choice.channels)
        return Plane(container, form, name, page, (0,), planes, projection, samples)
    if choice.channel is None:
        if form.channels > 1:
            known = f" ({', '.join(form.channel_names)})" if form.channel_names else ""
            raise AmbiguousImageError(
                f"{name} holds {form.channels} channels{known}. Received: none to take. "
                f"Choose one by --channel 0 to {form.channels - 1}, or three such as "
                "--channel 0,1,2 for red, green and blue."
            )
        return Plane(container, form, name, page, (0,), planes, projection)
    channels = tuple(
        channel_number(text, form.channels, form.channel_names, name) for text in choice.channels
    )
    return Plane(container, form, name, page, channels, planes, projection)


def _planes(
    form: PlaneInfo, name: str, choice: PlaneSelector
) -> tuple[tuple[int, ...], str | None]:
    if choice.z in PROJECTIONS:
        return tuple(range(form.planes)), choice.z
    z = None if choice.z is None else int(choice.z)
    more = ", or make one of all by --z max or --z mean"
    return (_number(form.planes, z, name, "focal planes", "--z", more),), None


def _number(
    count: int, chosen: int | None, name: str, things: str, option: str, more: str = ""
) -> int:
    if chosen is None and count > 1:
        raise AmbiguousImageError(
            f"{name} holds {count} {things}. Received: none to take. Choose one by {option} 0 to "
            f"{count - 1}{more}."
        )
    if (chosen or 0) >= count:
        raise ImageError(f"{name} has {count} {things}. Received: {chosen}, counted from 0.")
    return chosen or 0


def channel_number(text: str, count: int, names: Sequence[str], name: str) -> int:
    """Return the number of the channel whose name or number is `text`."""
    if text in names:
        return list(names).index(text)
    if text.isdecimal() and int(text) < count:
        return int(text)
    known = f": {', '.join(names)}" if names else ""
    raise ImageError(f"{name} has {count} channels{known}. Received: channel {text}, from 0.")


def library(load: Callable[[], ModuleType], name: str, extra: str = "formats") -> ModuleType:
    """Import the library of a format."""
    try:
        return load()
    except ImportError as error:
        raise ImageError(
            f"{name} needs a package that is not installed ({error.name}). Install it on all "
            f"hosts: pip install 'distkeras_grid[{extra}]'."
        ) from error


def local_path(stream: BinaryIO, resources: ExitStack) -> str:
    """Return a path that a library can open; a copy, if the file is on no local disk.

    `stream`: what a reader is called with. `resources`: deletes the copy.
    """
    name = getattr(stream, "name", None)
    if isinstance(name, str) and os.path.isfile(name):
        return name
    check_disk_space(stream.seek(0, os.SEEK_END))
    copy = tempfile.NamedTemporaryFile(dir=local_folder())  # noqa: SIM115  closed by the stack
    resources.enter_context(copy)
    stream.seek(0)
    shutil.copyfileobj(stream, copy, 1 << 20)
    copy.flush()
    return copy.name
