"""Where tiles lie: pure arithmetic, no pixels.

Coordinates have x to the right and y downwards, in pixels from the left and the top *edge*: an
image covers ``[0, width] x [0, height]`` and the centre of its first pixel is ``(0.5, 0.5)``.
Angles are degrees, counter-clockwise as seen on the screen, as in Pillow.

An image turned by an angle stands in a *frame*, the smallest whole-pixel rectangle around it; the
centres of image and frame coincide. An angle is a *base* angle in [0, 90) and a number of quarter
turns, which are exact: the tiles of 95 degrees are those of 5 degrees, each turned once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from data_prep.geometry.polygons import intersects
from distkeras_grid.errors import ConfigurationError, UnknownArgumentError

MODES = ("inside", "inscribed")
EDGES = ("drop", "shift", "pad")
INTERPOLATIONS = ("nearest", "linear", "cubic", "lanczos4")
# Angles that differ by less are the same: this moves no pixel of the largest image by 1/1000 of a
# pixel. A computed 90.00000000000001 means a quarter turn.
ANGLE_DIGITS = 9
# Largest error of a computed point, pixels.
ROUNDING = 1e-6

Positions = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class TileSpec:
    """How images are cut.

    Parameters
    ----------
    tile : int, default 256
        Side of the square tiles, pixels.
    overlap : float or int, default 0.5
        Overlap of neighbouring tiles: a fraction of their side, or pixels if it is an int. The
        stride is ``round(tile * (1 - overlap))`` or ``tile - overlap``. Negative values leave gaps.
    angles : iterable of float, default range(0, 360, 5)
        Rotations, degrees; kept sorted in [0, 360).
    mode : {"inside", "inscribed"}, default "inside"
        ``inside``: a grid centred in the frame, with every tile wholly inside the source.
        ``inscribed``: tiles from the top left corner of an inscribed rectangle that is no larger
        than the source. It gives fewer tiles (6,780 instead of 11,864 for 2272x1704). Rounding can
        put the pixel at a corner just outside, where the source is mirrored at its edge.
    interpolation : {"nearest", "linear", "cubic", "lanczos4"}, default "cubic"
        At oblique angles linear loses 45 % of the finest texture, at quarter turns none: a
        classifier can see the difference. Cubic keeps 95 %.
    edge : {"drop", "shift", "pad"}, default "drop"
        What happens to the remainder where tiles do not divide the image evenly. ``drop`` leaves
        it out. ``shift`` moves the last tile of each row and the last row back until they fit, so
        that they overlap their neighbours more. With ``pad`` tiles reach over the edge and are
        black there. ``shift`` and ``pad`` need mode ``inside``.
    include_original : bool, default False
        Cut the image without any rotation once more, in addition to 0 degrees: these tiles are in
        the data set twice.

    Raises
    ------
    ConfigurationError
        If a value cannot be used.

    Examples
    --------
    >>> TileSpec(tile=256, overlap=0.5).stride
    128
    >>> TileSpec(angles=[90, 0, 360.0, -45]).angles
    (0.0, 90.0, 315.0)
    """

    tile: int = 256
    overlap: float | int = 0.5
    angles: Iterable[float] = range(0, 360, 5)
    mode: str = "inside"
    interpolation: str = "cubic"
    edge: str = "drop"
    include_original: bool = False

    def __post_init__(self) -> None:
        if not _is_integer(self.tile) or self.tile < 1:
            raise ConfigurationError(
                f"tile must be a whole number of pixels. Received: {self.tile!r}."
            )
        if not _is_number(self.overlap) or self.stride < 1:
            raise ConfigurationError(
                "overlap must be a fraction below 1, or fewer whole pixels than a tile has, so "
                f"that the stride is 1 pixel or more. Received: {self.overlap!r} for tile "
                f"{self.tile}."
            )
        object.__setattr__(self, "angles", _sorted_angles(self.angles))
        if self.mode not in MODES:
            raise ConfigurationError(
                f"mode must be one of {', '.join(MODES)}. Received: {self.mode!r}."
            )
        if self.interpolation not in INTERPOLATIONS:
            raise ConfigurationError(
                f"interpolation must be one of {', '.join(INTERPOLATIONS)}. "
                f"Received: {self.interpolation!r}."
            )
        self._check_edge()

    def _check_edge(self) -> None:
        if self.edge not in EDGES:
            raise ConfigurationError(
                f"edge must be one of {', '.join(EDGES)}. Received: {self.edge!r}."
            )
        if self.edge != "drop" and self.mode != "inside":
            raise ConfigurationError(
                f"edge {self.edge!r} goes with mode 'inside'. Received: mode {self.mode!r}."
            )
        if self.include_original and 0.0 not in self.angles:
            raise ConfigurationError(
                "include_original repeats the tiles of 0 degrees. Received: angles without 0. Add "
                "the angle 0 instead."
            )

    @classmethod
    def paper(cls) -> Self:
        """Return the specification that gives the published 6,972 tiles for 2272x1704 pixels.

        The rule was found by search: tiles of 256 pixels that overlap by half, 72 angles, an
        inscribed rectangle, and the image without rotation once more.
        """
        return cls(256, 0.5, range(0, 360, 5), "inscribed", include_original=True)

    @property
    def stride(self) -> int:
        """Distance between neighbouring tiles, pixels."""
        if _is_integer(self.overlap):
            return self.tile - int(self.overlap)
        return round(self.tile * (1 - self.overlap))

    def to_json(self) -> dict[str, Any]:
        """Return the values as JSON types."""
        return {**vars(self), "angles": list(self.angles)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote.

        Raises
        ------
        UnknownArgumentError
            If a key is not a parameter.
        """
        known = {field.name for field in fields(cls)}
        if unknown := set(content) - known:
            raise UnknownArgumentError.among("TileSpec", unknown, known)
        return cls(**content)


@dataclass(frozen=True, slots=True)
class RotatedFrame:
    """An image of a given size, turned by an angle."""

    source_width: int  # source_width and source_height: Size of the image, pixels
    source_height: int
    angle: float  # Degrees in [0, 360)

    @property
    def base(self) -> float:
        """The angle without its quarter turns, in [0, 90)."""
        return self.angle % 90

    @property
    def turns(self) -> int:
        """Quarter turns in the angle, 0 to 3."""
        return int(self.angle // 90)

    @property
    def direction(self) -> tuple[float, float]:
        """Cosine and sine of the base angle; exact where it is 0."""
        radians = math.radians(self.base)
        return math.cos(radians), math.sin(radians)

    @property
    def base_size(self) -> tuple[int, int]:
        """Width and height of the frame of the base angle."""
        cosine, sine = self.direction
        width = self.source_width * cosine + self.source_height * sine
        height = self.source_width * sine + self.source_height * cosine
        return math.ceil(width), math.ceil(height)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the frame."""
        width, height = self.base_size
        return (height, width) if self.turns % 2 else (width, height)

    def source_to_base(
        self, x: NDArray[np.floating[Any]], y: NDArray[np.floating[Any]]
    ) -> tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]:
        """Map points of the source to points of the base angle's frame."""
        cosine, sine = self.direction
        width, height = self.base_size
        right, down = x - self.source_width / 2, y - self.source_height / 2
        return (
            cosine * right + sine * down + width / 2,
            -sine * right + cosine * down + height / 2,
        )

    def source_corners(self) -> NDArray[np.float64]:
        """Return the corners of the source in the base angle's frame, array [4, 2]."""
        right, bottom = float(self.source_width), float(self.source_height)
        corners = np.array([(0.0, 0.0), (right, 0.0), (right, bottom), (0.0, bottom)])
        return np.stack(self.source_to_base(corners[:, 0], corners[:, 1]), axis=1)

    def to_base(self, positions: Positions, tile: int) -> Positions:
        """Map positions of tiles in this frame to the frame of the base angle."""
        return rotate_positions(positions, self.size, (tile, tile), -self.turns)

    def from_base(self, positions: Positions, tile: int) -> Positions:
        """Map positions of tiles in the base angle's frame to this frame."""
        return rotate_positions(positions, self.base_size, (tile, tile), self.turns)

    def centres(
        self, positions: Positions, tile: int
    ) -> tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]:
        """Return the centres of this frame's tiles as points of the source."""
        x, y = self.to_base(positions, tile)
        return self.base_to_source(x + tile / 2, y + tile / 2)

    def base_to_source(
        self, x: NDArray[np.floating[Any]], y: NDArray[np.floating[Any]]
    ) -> tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]:
        """Map points of the base angle's frame to points of the source."""
        cosine, sine = self.direction
        width, height = self.base_size
        right, down = x - width / 2, y - height / 2
        return (
            cosine * right - sine * down + self.source_width / 2,
            sine * right + cosine * down + self.source_height / 2,
        )


def rotate_positions(
    positions: Positions, size: tuple[int, int], extent: tuple[int, int], turns: int
) -> Positions:
    """Return where rectangles lie after their frame is turned.

    `positions`: left and top edges of the rectangles, pixels.
    `size`: width and height of the frame before the turn, pixels.
    `extent`: width and height of each rectangle before the turn, pixels.

    Examples
    --------
    >>> rotate_positions((np.array([0]), np.array([10])), size=(100, 50), extent=(30, 20), turns=1)
    (array([10]), array([70]))
    """
    x, y = positions
    (width, height), (across, down) = size, extent
    for _ in range(turns % 4):
        x, y = y, width - across - x
        width, height, across, down = height, width, down, across
    return x, y


def normal_angle(angle: float) -> float:
    """Return an angle in [0, 360), rounded so that a computed quarter turn is exact.

    Examples
    --------
    >>> normal_angle(90.00000000000001), normal_angle(-1e-12)
    (90.0, 0.0)
    """
    return round(float(angle) % 360, ANGLE_DIGITS) % 360


def tile_positions(frame: RotatedFrame, spec: TileSpec) -> Positions:
    """Return left and top edges of a frame's tiles, row by row from the top, from left to right."""
    if spec.mode == "inscribed":
        x, y = _inscribed(frame, spec)
    else:
        x, y = frame.from_base(IN_FRAME[spec.edge](frame, spec), spec.tile)
    order = np.lexsort((x, y))
    return x[order], y[order]


def group_by_strip(positions: Positions, spec: TileSpec, columns: int) -> Iterator[Positions]:
    """Divide the tiles of a frame into strips, from the left, for cutting strip by strip.

    `columns`: approximate number of tiles in a row of a strip, at least one. Tiles that do not
    overlap are one strip.

    Examples
    --------
    >>> x, y = np.array([0, 2, 4, 6] * 2), np.array([0] * 4 + [2] * 4)
    >>> [left.tolist() for left, _ in group_by_strip((x, y), TileSpec(4), columns=2)]
    [[0, 2, 0, 2], [4, 6, 4, 6]]
    """
    x, y = positions
    if not x.size:
        return
    least = int(x.min())
    across = (int(x.max()) - least) // spec.stride + 1
    strips = -(-across // max(1, columns)) if spec.stride < spec.tile else 1
    width = -(-across // strips) * spec.stride
    strip = np.minimum((x - least) // width, strips - 1)
    for number in range(strips):
        inside = strip == number
        if inside.any():
            yield x[inside], y[inside]


def _dropped(frame: RotatedFrame, spec: TileSpec) -> Positions:
    """Return the tiles of a centred grid whose four corners lie in the source."""
    width, height = frame.base_size
    x, y = np.meshgrid(
        _centred_edges(width, spec.tile, spec.stride),
        _centred_edges(height, spec.tile, spec.stride),
    )
    mask = np.ones(x.shape, dtype=bool)
    for right, down in itertools.product((0, spec.tile), repeat=2):
        # No tolerance: base angle 0 is exact. At other angles an additional tile could contain a
        # pixel that the source does not have.
        source_x, source_y = frame.base_to_source(x + float(right), y + float(down))
        mask &= (source_x >= 0) & (source_x <= frame.source_width)
        mask &= (source_y >= 0) & (source_y <= frame.source_height)
    return x[mask], y[mask]


def _shifted(frame: RotatedFrame, spec: TileSpec) -> Positions:
    """Return rows of tiles that reach from edge to edge of the source."""
    height = frame.base_size[1]
    tops = np.arange(max(0, height - spec.tile + 1), dtype=np.int64)
    first, last = _reach(frame, tops, spec.tile)
    possible = np.flatnonzero(first <= last)
    if not possible.size:
        return tops[:0], tops[:0]
    rows = _to_the_end(int(possible[0]), int(possible[-1]), spec.stride)
    columns = [_to_the_end(int(first[y]), int(last[y]), spec.stride) for y in rows]
    return np.concatenate(columns), np.repeat(rows, [column.size for column in columns])


def _reach(
    frame: RotatedFrame, tops: NDArray[np.int64], tile: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first and the last left edge of a tile inside the source, for each top edge."""
    cosine, sine = frame.direction
    width, height = frame.base_size
    half_width, half_height = frame.source_width / 2, frame.source_height / 2
    low, high = np.full(tops.shape, -np.inf), np.full(tops.shape, np.inf)
    for right, down in itertools.product((0, tile), repeat=2):
        # From base_to_source: |cosine * u - sine * v| <= half width and
        # |sine * u + cosine * v| <= half height, where u = left edge + start.
        start, v = right - width / 2, tops + (down - height / 2)
        low = np.maximum(low, (sine * v - half_width) / cosine - start)
        high = np.minimum(high, (sine * v + half_width) / cosine - start)
        if sine:
            low = np.maximum(low, (-cosine * v - half_height) / sine - start)
            high = np.minimum(high, (-cosine * v + half_height) / sine - start)
        else:
            high[np.abs(v) > half_height] = -np.inf
    # At oblique angles rounding could put a corner on the edge outside.
    grace = ROUNDING if sine else 0.0
    nowhere = low > high
    low, high = np.where(nowhere, 1, low), np.where(nowhere, 0, high)
    return np.ceil(low + grace).astype(np.int64), np.floor(high - grace).astype(np.int64)


def _padded(frame: RotatedFrame, spec: TileSpec) -> Positions:
    """Return the tiles of a centred grid over the whole frame that touch the source."""
    width, height = frame.base_size
    x, y = (
        each.ravel()
        for each in np.meshgrid(
            _covering_edges(width, spec.tile, spec.stride),
            _covering_edges(height, spec.tile, spec.stride),
        )
    )
    mask = intersects(x, y, spec.tile, (frame.source_corners(),), margin=-ROUNDING)
    return x[mask], y[mask]


IN_FRAME = {"drop": _dropped, "shift": _shifted, "pad": _padded}


def _inscribed(frame: RotatedFrame, spec: TileSpec) -> Positions:
    """Return the tiles of an inscribed rectangle, clipped to the size of the source.

    The rectangle is the frame minus equal margins ``m = long side * cos * sin / (cos + sin)``,
    rounded to whole pixels. The rule was found by search; it reproduces published counts.
    """
    cosine, sine = frame.direction
    if frame.turns % 2:
        cosine, sine = sine, cosine
    source_width, source_height = frame.source_width, frame.source_height
    margin = max(source_width, source_height) * cosine * sine / (cosine + sine)
    width = round(source_width * cosine + source_height * sine - 2 * margin)
    height = round(source_width * sine + source_height * cosine - 2 * margin)
    width, height = min(width, source_width), min(height, source_height)
    x, y = np.meshgrid(
        _edges(width, spec.tile, spec.stride), _edges(height, spec.tile, spec.stride)
    )
    frame_width, frame_height = frame.size
    return x.ravel() + (frame_width - width) // 2, y.ravel() + (frame_height - height) // 2


def _edges(length: int, tile: int, stride: int) -> NDArray[np.int64]:
    count = (length - tile) // stride + 1 if length >= tile else 0
    return np.arange(count, dtype=np.int64) * stride


def _centred_edges(length: int, tile: int, stride: int) -> NDArray[np.int64]:
    edges = _edges(length, tile, stride)
    return edges + (length - tile - edges[-1]) // 2 if edges.size else edges


def _covering_edges(length: int, tile: int, stride: int) -> NDArray[np.int64]:
    count = max(0, -(-(length - tile) // stride)) + 1
    reach = (count - 1) * stride + tile
    return np.arange(count, dtype=np.int64) * stride + (length - reach) // 2


def _to_the_end(first: int, last: int, stride: int) -> NDArray[np.int64]:
    """Return edges a stride apart, and the last edge, which can be closer to its neighbour."""
    edges = np.arange(first, last + 1, stride, dtype=np.int64)
    return edges if edges[-1] == last else np.append(edges, last)


def _sorted_angles(angles: object) -> tuple[float, ...]:
    values = list(angles) if isinstance(angles, Iterable) and not isinstance(angles, str) else []
    if not values or not all(_is_number(value) for value in values):
        raise ConfigurationError(
            f"angles must be one or more degrees such as range(0, 360, 5). Received: {angles!r}."
        )
    return tuple(sorted({normal_angle(value) for value in values}))


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_integer(value) or (isinstance(value, float | np.floating) and math.isfinite(value))
