"""What one pass over all pixels of an image finds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import cv2
import numpy as np

from data_prep.images.chunked_image import BAND_BYTES, ChunkedImage
from data_prep.images.content_hash import PixelDigest, pixel_digest
from data_prep.images.intensity import Normalization, ValueRange, count_values, table_of
from data_prep.images.open_image import REGION_BYTES
from data_prep.images.plane_selection import Pixels, as_channels
from data_prep.images.stain_normalization import NUMBERS

# Size of the small copy in which marks and features are looked for.
SMALL_PIXELS = 4_000_000
# Larger images are read a few rows at a time, whatever their format.
WHOLE_BYTES = REGION_BYTES


@dataclass(frozen=True)
class ImageStats:
    """The findings about all pixels of an image."""

    highest: int  # The largest value
    pixel_sha256: str  # See `data_prep.images.content_hash.pixel_digest`
    is_gray: bool  # Whether the image has three equal channels
    # The image, or a copy of it in which a pixel is the mean of `shrink` x `shrink`
    small: Pixels = field(repr=False)
    shrink: int = 1
    # The values that become 0 and white when the image is normalised, or the numbers that describe
    # its stains. None if it shows none.
    value_range: ValueRange | None = None

    def highest_as_cut(self, dtype: np.dtype[Any]) -> int:
        """Return the largest value, or its normalised value if the image is normalised."""
        if self.value_range is None:
            return self.highest
        if len(self.value_range) == NUMBERS:
            return int(np.iinfo(dtype).max)
        return int(table_of(self.value_range, dtype)[self.highest])


def survey(
    pixels: Pixels | ChunkedImage,
    channels: int | None = None,
    normalising: Normalization | None = None,
) -> ImageStats:
    """Look at all pixels of an image.

    `channels`: number of channels whose pixels are identified and normalised; default: those of the
    image.
    """
    wanted = channels or pixels.shape[2]
    if not isinstance(pixels, ChunkedImage) and pixels.nbytes <= WHOLE_BYTES:
        as_cut = as_channels(pixels, wanted)
        value_range = normalising.estimate_range(as_cut) if normalising else None
        # An array with three equal channels counts as one channel.
        return ImageStats(
            int(pixels.max()), pixel_digest(as_cut), False, pixels, value_range=value_range
        )
    height, width, own = pixels.shape
    shrink = max(1, math.ceil(math.sqrt(height * width / SMALL_PIXELS)))
    digest = PixelDigest((height, width, wanted), pixels.dtype)
    highest = 0
    counts = np.zeros(int(np.iinfo(pixels.dtype).max) + 1, np.int64)
    small: list[Pixels] = []
    rest = np.zeros((0, width, own), pixels.dtype)
    for band in pixels.bands() if isinstance(pixels, ChunkedImage) else _bands(pixels):
        highest = max(highest, int(band.max()))
        as_cut = as_channels(band, wanted)
        digest.add(as_cut)
        if normalising is not None and not normalising.is_of_stains:
            counts += count_values(as_cut)
        rows = np.concatenate([rest, band]) if len(rest) else band
        whole = len(rows) // shrink * shrink
        small.append(_shrunk(rows[:whole], shrink))
        rest = rows[whole:]
    together = np.concatenate(small)
    value_range = None
    if normalising is not None and normalising.is_of_stains:
        # A small copy suffices to find the stains.
        value_range = normalising.estimate_range(as_channels(together, wanted))
    elif normalising is not None:
        value_range = normalising.range_of(counts)
    return ImageStats(highest, digest.hexdigest(), digest.is_gray, together, shrink, value_range)


def _bands(pixels: Pixels) -> Iterator[Pixels]:
    rows = max(1, BAND_BYTES // pixels[0].nbytes)
    return (pixels[top : top + rows] for top in range(0, len(pixels), rows))


def _shrunk(rows: Pixels, factor: int) -> Pixels:
    """Return means of squares of pixels; incomplete squares at the right edge are left out."""
    height, width = rows.shape[0] // factor, rows.shape[1] // factor
    if not height:
        return np.zeros((0, width, rows.shape[2]), rows.dtype)
    whole = np.ascontiguousarray(rows[:, : width * factor])
    reduced = cv2.resize(whole, (width, height), interpolation=cv2.INTER_AREA)
    return np.asarray(reduced).reshape(height, width, rows.shape[2])
