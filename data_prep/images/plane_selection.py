"""Which image is taken from a file of several, and what one image is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import ConfigurationError, ImageError

if TYPE_CHECKING:
    from data_prep.images.chunked_image import ChunkedImage

Pixels = NDArray[Any]

PROJECTIONS = ("max", "mean")
ITU_R_601 = (0.299, 0.587, 0.114)  # weights of red, green and blue in gray, as in Pillow
# Rows of an image are converted this many pixels at a time.
CONVERTED_PIXELS = 1 << 20


@dataclass(frozen=True)
class PlaneSelector:
    """Which plane to take from a file that holds several.

    Examples
    --------
    >>> PlaneSelector(channel="DAPI", z="max").to_json()
    {'page': None, 'channel': 'DAPI', 'z': 'max'}
    """

    # Number of the page, from 0. Times and separate images of a file count as pages, too.
    page: int | None = None
    # Number of a channel from 0, its name, or three of either separated by commas, which become
    # red, green and blue
    channel: str | None = None
    # Number of a focal plane from 0, or ``max`` or ``mean``, which combines all planes
    z: str | None = None

    def __post_init__(self) -> None:
        if self.page is not None and self.page < 0:
            raise ConfigurationError(f"page is a number from 0. Received: {self.page!r}.")
        if self.z is not None and self.z not in PROJECTIONS and not self.z.isdecimal():
            raise ConfigurationError(
                f"z is a number from 0, {' or '.join(PROJECTIONS)}. Received: {self.z!r}."
            )
        if self.channel is not None and len(self.channels) not in (1, 3):
            raise ConfigurationError(
                "channel is one number or name, or three with commas: red, green, blue. "
                f"Received: {self.channel!r}."
            )

    @property
    def channels(self) -> list[str]:
        """Numbers or names of the channels to take, as text."""
        return [part.strip() for part in (self.channel or "").split(",") if part.strip()]

    def to_json(self) -> dict[str, Any]:
        """Return the values as JSON types."""
        return dict(vars(self))


@dataclass(frozen=True)
class DecodedPlane:
    """One image, and what its file says about it."""

    pixels: Pixels | ChunkedImage  # The pixels, upright; 0 is black
    # Significant bits of a value, where the file states fewer than the type of `pixels` has
    bits: int | None = None
    pixel_size: tuple[float, float] | None = None  # Width and height of a pixel, micrometres
    notes: tuple[str, ...] = ()  # Changes that were made to the values while they were read


def project(planes: Iterable[Pixels], how: str) -> Pixels:
    """Combine several planes into one; only two of them are in memory at a time.

    `planes`: planes of one shape and one integer type.

    Examples
    --------
    >>> project([np.array([[1, 9]]), np.array([[4, 2]])], "max")
    array([[4, 9]])
    """
    each = iter(planes)
    first = next(each)
    if how == "max":
        highest = first
        for plane in each:
            highest = np.maximum(highest, plane)
        return highest
    total, count = first.astype(np.float64), 1
    for plane in each:
        total += plane
        count += 1
    return np.rint(total / count).astype(first.dtype)


def paste(piece: Pixels, at: tuple[int, int], pixels: Pixels, corner: tuple[int, int]) -> None:
    """Copy the part of a piece that lies in an array to its place there.

    `at` and `corner`: left and top edge of the piece and of the array, in the same image.

    Examples
    --------
    >>> row = np.zeros((1, 3), int)
    >>> paste(np.array([[1, 2]]), (4, 7), row, (5, 7))
    >>> row
    array([[2, 0, 0]])
    """
    x, y = at[0] - corner[0], at[1] - corner[1]
    left, top = max(x, 0), max(y, 0)
    right = min(x + piece.shape[1], pixels.shape[1])
    bottom = min(y + piece.shape[0], pixels.shape[0])
    pixels[top:bottom, left:right] = piece[top - y : bottom - y, left - x : right - x]


def as_channels(pixels: Pixels, channels: int) -> Pixels:
    """Return the image with 1 or 3 channels."""
    if pixels.shape[2] == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, axis=2)
    height, width = pixels.shape[:2]
    converted = np.empty((height, width, 1), pixels.dtype)
    rows = max(1, CONVERTED_PIXELS // max(1, width))
    for top in range(0, height, rows):
        part = pixels[top : top + rows]
        # One channel after another: a matrix product rounds differently for different shapes, and
        # a part of an image must give the same pixels as the whole.
        red, green, blue = (part[:, :, i] * np.float32(ITU_R_601[i]) for i in range(3))
        converted[top : top + rows, :, 0] = np.rint(red + green + blue)
    return converted


def without_alpha(pixels: Pixels, name: str) -> Pixels:
    """Return the image without its last channel, which must be opaque."""
    alpha = pixels[:, :, -1]
    if alpha.min() != np.iinfo(alpha.dtype).max:
        raise ImageError(
            f"{name} has transparent pixels. Received: alpha from {alpha.min()}. Save it without "
            "an alpha channel, on the background that it should have."
        )
    return pixels[:, :, :-1]
