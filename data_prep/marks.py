"""Finds what a program or a microscope drew into an image: data bars, rims, scale bars.

What is found is only reported: a person decides whether it becomes a zone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import cv2
import numpy as np

from data_prep.picture import Pixels, as_channels
from data_prep.polygons import Polygon, touch

SIDES = ("bottom", "top", "left", "right")
# Most pixels in the rows of a strip have one value, unlike in the rows beside it. Text on a data
# bar covers less than half of a row.
UNIFORM, BUSY = 0.5, 0.3
# Least and largest part of the side that a strip takes, and its least number of rows.
STRIP_PARTS = (0.004, 0.3)
STRIP_ROWS = 2
# Part of the rows that can interrupt a strip, for instance a line with much text.
GAP = 0.02
# Values, of 255, that count as pure black or white: JPEG blurs them.
PURE = 12
# A scale bar has at least this part of the image's width, and this ratio of width to height.
BAR_PART = 0.08
BAR_PIXELS = 16
BAR_ROWS = 3
BAR_ASPECT = 5
BAR_FILL = 0.97
# Few pixels beside a bar may have its value; the grains of a rock are ragged.
BAR_RIM = 0.05

# Distance from the corners of a mark inwards, so that the border decides nothing.
INWARDS = np.array([0.01, -0.01, 0.01, -0.01])


@dataclass(frozen=True)
class Mark:
    """Something drawn into an image.

    Parameters
    ----------
    kind : {"strip", "bar"}
    left, top, right, bottom : int
        Edges of the mark, pixels.
    """

    kind: str
    left: int
    top: int
    right: int
    bottom: int

    def lies_in(self, polygon: Polygon) -> bool:
        """Tell whether the whole mark lies in a polygon."""
        corners_x = np.array([self.left, self.right, self.left, self.right]) + INWARDS
        corners_y = np.array([self.top, self.top, self.bottom, self.bottom]) + INWARDS[[0, 2, 1, 3]]
        return bool(touch(corners_x, corners_y, 0, polygon).all())

    def enlarged(self, factor: int) -> Mark:
        """Return the mark in an image that is larger by a factor."""
        left, top, right, bottom = (
            side * factor for side in (self.left, self.top, self.right, self.bottom)
        )
        return Mark(self.kind, left, top, right, bottom)

    def describe(self) -> str:
        """Return the mark in words."""
        thing = "uniform strip" if self.kind == "strip" else "scale bar"
        return f"{thing} at {self.left},{self.top},{self.right},{self.bottom}"


def places_of(text: str) -> list[tuple[int, int, int, int]]:
    """Return left, top, right and bottom edges of the marks that `Mark.describe` told.

    Examples
    --------
    >>> places_of(f"{Mark('strip', 0, 0, 500, 4).describe()}; scale bar at 7,8,90,12")
    [(0, 0, 500, 4), (7, 8, 90, 12)]
    """
    found = re.findall(r" at (\d+),(\d+),(\d+),(\d+)", text)
    return [(int(left), int(top), int(right), int(bottom)) for left, top, right, bottom in found]


def find_marks(pixels: Pixels, white: int) -> list[Mark]:
    """Return the strips along the sides of an image, and the bars in it.

    Parameters
    ----------
    pixels : array [height, width, channels]
    white : int
        The largest value that the image can have.

    Examples
    --------
    >>> image = np.random.default_rng(0).integers(0, 200, (200, 300, 1), dtype=np.uint8)
    >>> image[180:] = 0
    >>> find_marks(image, 255)
    [Mark(kind='strip', left=0, top=180, right=300, bottom=200)]
    """
    gray = cv2.convertScaleAbs(as_channels(pixels, 1)[:, :, 0], alpha=255 / white)
    height, width = gray.shape
    strips = []
    for side in SIDES:
        depth = _strip(_bottom_first(gray, side))
        if depth:
            strips.append(_at(side, depth, width, height))
    return strips + [bar for bar in _bars(gray) if not any(_inside(bar, each) for each in strips)]


def _bottom_first(gray: Pixels, side: str) -> Pixels:
    """Return the image with the rows of one side first."""
    if side in ("left", "right"):
        gray = gray.T
    return gray if side in ("top", "left") else gray[::-1]


def _at(side: str, depth: int, width: int, height: int) -> Mark:
    boxes = {
        "bottom": (0, height - depth, width, height),
        "top": (0, 0, width, depth),
        "left": (0, 0, depth, height),
        "right": (width - depth, 0, width, height),
    }
    return Mark("strip", *boxes[side])


def _strip(rows: Pixels) -> int:
    """Return how many of the first rows are a strip, 0 if there is none."""
    count = len(rows)
    most = int(STRIP_PARTS[1] * count)
    value = int(np.bincount(rows[0]).argmax())
    near = np.abs(rows[: most + STRIP_ROWS].astype(np.int16) - value) <= 2
    share = near.mean(axis=1)
    uniform = np.flatnonzero(share >= UNIFORM)
    if not uniform.size or uniform[0] != 0:
        return 0
    gaps = np.flatnonzero(np.diff(uniform) > max(1, GAP * count))
    depth = int(uniform[gaps[0] if gaps.size else -1]) + 1
    if depth > most or depth < max(STRIP_ROWS, STRIP_PARTS[0] * count):
        return 0
    # A dark background fades into the image; a strip ends abruptly.
    beyond = share[depth : depth + max(3, depth // 4)]
    is_strip = share[:depth].mean() > 0.75 and (beyond.size == 0 or beyond.mean() < BUSY)
    return depth if is_strip else 0


def _bars(gray: Pixels) -> list[Mark]:
    """Return the horizontal rectangles of pure black or white."""
    least = max(BAR_PIXELS, int(BAR_PART * gray.shape[1]))
    found = []
    for pure in (gray >= 255 - PURE, gray <= PURE):
        mask = pure.astype(np.uint8)
        opened = cv2.morphologyEx(mask, cv2.MORPH_OPEN, np.ones((BAR_ROWS, least), np.uint8))
        _, _, boxes, _ = cv2.connectedComponentsWithStats(opened, connectivity=8)
        for left, top, across, down, area in boxes[1:].tolist():
            bar = Mark("bar", left, top, left + across, top + down)
            is_long = across >= BAR_ASPECT * down and area >= BAR_FILL * across * down
            if is_long and _is_alone(mask, bar):
                found.append(bar)
    return found


def _is_alone(mask: Pixels, bar: Mark) -> bool:
    """Tell whether few pixels around a rectangle have its value, not counting a blurred border."""
    height, width = mask.shape
    if bar.left < 4 or bar.top < 4 or bar.right > width - 4 or bar.bottom > height - 4:
        return False
    rows, columns = slice(bar.top, bar.bottom), slice(bar.left, bar.right)
    rim = [
        mask[bar.top - 4 : bar.top - 2, columns],
        mask[bar.bottom + 2 : bar.bottom + 4, columns],
        mask[rows, bar.left - 4 : bar.left - 2],
        mask[rows, bar.right + 2 : bar.right + 4],
    ]
    return all(float(side.mean()) <= BAR_RIM for side in rim)


def _inside(bar: Mark, strip: Mark) -> bool:
    return (
        bar.left >= strip.left
        and bar.right <= strip.right
        and bar.top >= strip.top
        and bar.bottom <= strip.bottom
    )
