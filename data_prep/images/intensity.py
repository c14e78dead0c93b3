"""Bringing the values of each image to one range: pure.

Most methods find a pair of values. They become 0 and white; values between them are spread evenly,
and values beyond them are cut off. ``macenko`` finds a matrix for the stains of histology, see
`data_prep.images.stain_normalization`. These numbers suffice to repeat the normalisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from data_prep.images.plane_selection import Pixels
from data_prep.images.stain_normalization import NUMBERS, apply_stain_matrix, find_stains
from distkeras_grid.errors import ConfigurationError

MIN_MAX, PERCENTILE, STANDARD = "min-max", "percentile", "standard"
MACENKO = "macenko"
# In a normal distribution 0.3 % of the values lie beyond three deviations, and are cut off.
DEVIATIONS = 3.0
# OpenCV counts in float32, which is exact up to 2**24.
COUNTED_VALUES = 1 << 24

Counts = NDArray[np.int64]
#: The values that become 0 and white, or the nine numbers of a
#: `data_prep.images.stain_normalization.StainMatrix`.
ValueRange = tuple[float, ...]


@dataclass(frozen=True)
class Normalization:
    """How the value range, or the stains, of an image are found."""

    # ``min-max``: the smallest and the largest value. ``percentile``: the values at two
    # percentiles. ``standard``: three standard deviations below and above the mean, which becomes
    # the middle of the range. ``macenko``: the stains of the image.
    method: str
    low: float = 0.0  # low and high: Percentiles; used by ``percentile`` only
    high: float = 100.0

    @property
    def is_of_stains(self) -> bool:
        """Whether stains are normalised, instead of a value range."""
        return self.method == MACENKO

    def estimate_range(self, pixels: Pixels) -> ValueRange | None:
        """Return the range or the stains of an image, None if it shows no stains."""
        if not self.is_of_stains:
            return self.range_of(count_values(pixels))
        is_colour = pixels.dtype == np.uint8 and pixels.shape[2] == 3
        return find_stains(pixels) if is_colour else None

    def range_of(self, counts: Counts) -> tuple[float, float]:
        """Return the values that become 0 and white.

        Examples
        --------
        >>> counts = np.bincount([10, 20, 20, 30])
        >>> Normalization("percentile", 25, 75).range_of(counts)
        (10.0, 20.0)
        """
        levels = np.arange(len(counts), dtype=np.float64)
        total = int(counts.sum())
        if self.method == STANDARD:
            mean = float(levels @ counts) / total
            deviation = float(np.sqrt(((levels - mean) ** 2) @ counts / total))
            return mean - DEVIATIONS * deviation, mean + DEVIATIONS * deviation
        running = np.cumsum(counts)
        # The smallest value such that at least this many values are not above it. A little less,
        # because a rounding error could require one more.
        ranks = (max(1.0, total * percent / 100 - 1e-6) for percent in (self.low, self.high))
        low, high = (float(np.searchsorted(running, rank)) for rank in ranks)
        return low, high


def parse_normalising(text: str | None) -> Normalization | None:
    """Read the method of normalising.

    Examples
    --------
    >>> parse_normalising("percentile:1:99")
    Normalization(method='percentile', low=1.0, high=99.0)
    """
    if text is None:
        return None
    method, *numbers = text.split(":")
    if (method in (MIN_MAX, STANDARD, MACENKO) and not numbers) or (
        method == PERCENTILE and len(numbers) == 2
    ):
        try:
            normalization = Normalization(method, *map(float, numbers))
        except ValueError:
            normalization = None
        if normalization is not None and 0 <= normalization.low < normalization.high <= 100:
            return normalization
    raise ConfigurationError(
        "normalise is min-max, percentile:LOW:HIGH with 0 <= LOW < HIGH <= 100, standard, or "
        f"macenko. Received: {text!r}."
    )


def count_values(pixels: Pixels) -> Counts:
    """Return how often each value occurs, over all channels."""
    levels = int(np.iinfo(pixels.dtype).max) + 1
    counts = np.zeros(levels, np.int64)
    rows = max(1, COUNTED_VALUES // max(1, pixels[0].size)) if len(pixels) else 1
    for top in range(0, len(pixels), rows):
        part = np.ascontiguousarray(pixels[top : top + rows]).reshape(1, -1)
        counts += cv2.calcHist([part], [0], None, [levels], [0, levels]).ravel().astype(np.int64)
    return counts


def range_from_columns(
    low: float | None, high: float | None, stain: str | None
) -> ValueRange | None:
    """Return the range or the stains of an image from the stored values.

    Examples
    --------
    >>> range_from_columns(3, 250, None), range_from_columns(None, None, "1 0 0 0 1 0 0 0 1")[:4]
    ((3, 250), (1.0, 0.0, 0.0, 0.0))
    """
    if stain is not None:
        return tuple(map(float, stain.split()))
    return None if low is None or high is None else (low, high)


def range_to_columns(
    value_range: ValueRange | None,
) -> tuple[float | None, float | None, str | None]:
    """Return the arguments of `range_from_columns`, the stored values."""
    if value_range is None:
        return None, None, None
    if len(value_range) == NUMBERS:
        return None, None, " ".join(map(repr, value_range))
    return value_range[0], value_range[1], None


def normalise(pixels: Pixels, value_range: ValueRange) -> Pixels:
    """Spread a value range over the range of the type, or bring stains to the reference.

    Examples
    --------
    >>> normalise(np.array([5, 10, 15, 20, 99], np.uint8), (10.0, 20.0)).tolist()
    [0, 0, 128, 255, 255]
    """
    if len(value_range) == NUMBERS:
        return apply_stain_matrix(pixels, value_range)
    return np.asarray(table_of(value_range, pixels.dtype)[pixels])


def table_of(value_range: ValueRange, dtype: np.dtype[Any]) -> Pixels:
    """Return a table of the new value of each value."""
    low, high = value_range
    white = int(np.iinfo(dtype).max)
    levels = np.arange(white + 1, dtype=np.float64)
    # An image of a single value has no range: larger values become white.
    spread = (levels - low) * (white / max(high - low, 1e-9))
    table: Pixels = np.floor(np.clip(spread, 0, white) + 0.5).astype(dtype)
    return table
