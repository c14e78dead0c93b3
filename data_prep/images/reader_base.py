"""What the formats of microscopes have in common; each is read by its own library.

An `ImageReader` is a file with pages, channels and focal planes; a library decodes any rectangle.
`take` makes one plane of it as a `PlaneSelector` says, by the same rules as for TIFF files.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
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
from data_prep.images.tiff import COLOUR_NAMES, MAX_REGION_PIXELS, channel_number
from data_prep.images.tiff_planes import PlaneWindow
from distkeras_grid.errors import AmbiguousImageError, ImageError
from distkeras_grid.feeding.local_file import local_folder

Size = tuple[float, float]


@dataclass(frozen=True)
class PlaneInfo:
    """Properties that all planes of one page share.

    Parameters
    ----------
    size : (int, int)
        Height and width, pixels.
    itemsize : int
        Bytes of a value.
    grain : (int, int)
        Height and width of the parts that are decoded at once, pixels.
    channels, planes : int
        Numbers of channels and of focal planes.
    channel_names : sequence of str
        Names of all channels; empty if one has no name.
    is_colour : bool
        Whether each plane has red, green and blue; then there is one channel.
    bits : int, optional
        Significant bits, if they are stated.
    pixel_size : pair of float, optional
        Width and height of a pixel, micrometres.
    """

    size: tuple[int, int]
    itemsize: int
    grain: tuple[int, int]
    channels: int = 1
    planes: int = 1
    channel_names: Sequence[str] = ()
    is_colour: bool = False
    bits: int | None = None
    pixel_size: Size | None = None


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
class VendorPlane:
    """One plane of a container, as a `PlaneSelector` selects it."""

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
    def nbytes(self) -> int:
        """Size of the whole plane, bytes."""
        samples = 3 if self.form.is_colour else len(self.channels)
        return math.prod(self.size) * samples * self.form.itemsize

    @property
    def grain(self) -> tuple[int, int] | None:
        """Height and width of the parts that can be decoded alone; None if only the whole can."""
        part_bytes = math.prod(self.form.grain) * 3 * self.form.itemsize
        is_known = math.prod(self.size) <= MAX_REGION_PIXELS and part_bytes <= MOST_PART_BYTES
        return self.form.grain if is_known else None

    def read(self, window: PlaneWindow | None = None) -> Pixels:
        """Decode the plane, or a rectangle of it, array [height, width] or [height, width, 3]."""
        height, width = self.size
        part = window or PlaneWindow(0, 0, width, height)
        channels = [self._channel(channel, part) for channel in self.channels]
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
        return DecodedPlane(pixels, bits if bits and 8 < bits < 16 else None, self.form.pixel_size)

    def check_size(self, max_pixels: int) -> None:
        """Refuse a plane that is too large to be decoded as a whole."""
        height, width = self.size
        if height * width > max_pixels:
            raise ImageError(
                f"{self.name} has {width}x{height} pixels, and can only be decoded as a whole, up "
                f"to {max_pixels:,} pixels. Allow more by --max-pixels."
            )

    def close(self) -> None:
        """Close the file."""
        self.container.close()


def places_of(lengths: Mapping[str, int]) -> list[dict[str, int]]:
    """Return all places on some axes, the first axis outermost.

    Examples
    --------
    >>> places_of({"T": 1, "H": 2})
    [{'T': 0, 'H': 0}, {'T': 0, 'H': 1}]
    """
    places = itertools.product(*map(range, lengths.values()))
    return [dict(zip(lengths, place, strict=True)) for place in places]


def take(container: ImageReader, name: str, choice: PlaneSelector) -> VendorPlane:
    """Choose one plane."""
    page = _number(container.pages, choice.page, name, "pages", "--page")
    form = container.form(page)
    planes, projection = _planes(form, name, choice)
    if form.is_colour:
        samples = None
        if choice.channel is not None:
            samples = tuple(channel_number(c, 3, COLOUR_NAMES, name) for c in choice.channels)
        return VendorPlane(container, form, name, page, (0,), planes, projection, samples)
    if choice.channel is None:
        if form.channels > 1:
            names = ", ".join(form.channel_names)
            raise AmbiguousImageError(
                f"{name} holds {form.channels} channels ({names}). Received: none to take. "
                f"Choose one by --channel 0 to {form.channels - 1}, or three such as "
                "--channel 0,1,2 for red, green and blue."
            )
        return VendorPlane(container, form, name, page, (0,), planes, projection)
    channels = tuple(
        channel_number(text, form.channels, form.channel_names, name) for text in choice.channels
    )
    return VendorPlane(container, form, name, page, channels, planes, projection)


def _planes(
    form: PlaneInfo, name: str, choice: PlaneSelector
) -> tuple[tuple[int, ...], str | None]:
    if choice.z in PROJECTIONS:
        return tuple(range(form.planes)), choice.z
    z = None if choice.z is None else int(choice.z)
    return (_number(form.planes, z, name, "focal planes", "--z"),), None


def _number(count: int, chosen: int | None, name: str, things: str, option: str) -> int:
    if chosen is None and count > 1:
        raise AmbiguousImageError(
            f"{name} holds {count} {things}. Received: none to take. Choose one by {option} 0 to "
            f"{count - 1}."
        )
    if (chosen or 0) >= count:
        raise ImageError(f"{name} has {count} {things}. Received: {chosen}, counted from 0.")
    return chosen or 0


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

    Parameters
    ----------
    stream : file
        What a reader is called with.
    resources : ExitStack
        Deletes the copy.

    Raises
    ------
    NoSpaceError
        If the local disk has no room for a copy.
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
