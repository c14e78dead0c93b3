"""Cutting tiles from a turned image, a few rows at a time.

Each pixel of a base angle's frame is computed once, only where tiles need it, and in bands of rows
that stay in the processor's cache. Quarter turns are exact transposes of these pixels. This is four
times faster than turning the image for each angle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from data_prep.geometry import Frame, Positions, TileSpec, in_strips, normal_angle, turn
from data_prep.layout import allowed_positions, outside_parts
from data_prep.polygons import touch
from data_prep.quality import FrameQuality, Quality
from data_prep.raster import Raster
from data_prep.zones import NO_ZONES, Zones
from distkeras_grid.errors import ConfigurationError, ImageError

# 128 rows of a turned 2272x1704 color image are about 1 MB: they stay in the second-level cache.
BAND_ROWS = 128
# Bytes of a turned image with 12 million colour pixels (at 45 degrees it is twice as large).
CACHE_BYTES = 96 << 20
# Bytes of the tiles in one row of a strip. The row above must lie within the 2 MB in which zstd
# looks for repeated pixels: colour tiles in rows as wide as the image take a third more bytes.
STRIP_BYTES = 5 << 18
# OpenCV refuses images of 32,767 pixels or more a side: large frames are computed in pieces, each
# from the window of the source that it needs.
PIECE_SIDE = 8192
# In mode "inscribed" corners lie outside the image by less than this, pixels.
CORNER_OUTSIDE = 1.5
# The widest interpolation, lanczos4, reads 4 pixels on each side.
WINDOW_MARGIN = 5

FLAGS = {
    "nearest": cv2.INTER_NEAREST,
    "linear": cv2.INTER_LINEAR,
    "cubic": cv2.INTER_CUBIC,
    "lanczos4": cv2.INTER_LANCZOS4,
}
QUARTER_TURNS = {
    1: cv2.ROTATE_90_COUNTERCLOCKWISE,
    2: cv2.ROTATE_180,
    3: cv2.ROTATE_90_CLOCKWISE,
}
DTYPES = ("uint8", "uint16", "float32")

Pixels = NDArray[Any]
Blocks = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tile:
    """One square piece of a turned image.

    Parameters
    ----------
    pixels : array [tile, tile] or [tile, tile, channels]
        The pixels, with axes and dtype of the image; not a view.
    angle : float
        Degrees by which the image was turned, counter-clockwise.
    x, y : int
        Left and top edge in the frame of the turned image, pixels.
    src_cx, src_cy : float
        Centre of the tile in the unrotated image, pixels from its left and top edge.
    outside : float, default 0
        Part of the tile that lies outside the image; those pixels are 0.
    original : bool, default False
        Whether it is one of the tiles that `TileSpec.include_original` adds.
    quality : Quality, optional
        Measured quality, if requested.
    """

    pixels: Pixels
    angle: float
    x: int
    y: int
    src_cx: float
    src_cy: float
    outside: float = 0.0
    original: bool = False
    quality: Quality | None = None

    def corners(self) -> list[tuple[float, float]]:
        """Return the tile's corners (x, y) in the unrotated image.

        In pixels from the left and top edge. The first is the tile's own top left corner; the
        others follow clockwise, as seen in the tile.

        Examples
        --------
        >>> Tile(np.zeros((4, 4)), 90.0, 0, 0, src_cx=10.0, src_cy=20.0).corners()[0]
        (12.0, 18.0)
        """
        turned = math.radians(self.angle)
        cosine, sine = math.cos(turned), math.sin(turned)
        half = len(self.pixels) / 2
        offsets = ((-half, -half), (half, -half), (half, half), (-half, half))
        return [
            (
                round(self.src_cx + cosine * u - sine * v, 9),
                round(self.src_cy + sine * u + cosine * v, 9),
            )
            for u, v in offsets
        ]


def iter_tiles(
    image: Pixels | Raster,
    spec: TileSpec,
    angles: Iterable[float] | None = None,
    *,
    zones: Zones = NO_ZONES,
    white: int | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> Iterator[Tile]:
    """Cut an image into tiles.

    Parameters
    ----------
    image : array [height, width] or [height, width, channels], or Raster
        uint8, uint16 or float32, at most 4 channels. A `Raster` gives the same tiles, bit for bit,
        as an array of the same pixels.
    spec : TileSpec
    angles : iterable of float, optional
        Angles to cut; they must be angles of the specification. Default: all of them.
    zones : Zones, optional
        Zones that tiles keep off, and zones in which they stay, in pixels of `image`.
    white : int, optional
        The largest value that images can have. If it is given, the quality of each tile is
        measured; the image must be uint8 or uint16.
    cache_bytes : int, default 64 MiB
        A turned image up to this size is kept while its quarter turns are cut; a larger one is
        computed once for each of them. Then memory holds, in addition to the image, ``tile`` rows
        of the turned image.

    Yields
    ------
    Tile
        Ordered by base angle, then by angle (5, 95, 185, 275, 10, 100, ...), then by strips of
        columns from the left, each by rows from the top. So tiles that overlap are close together,
        and compress well. Tiles of `TileSpec.include_original` come before those of 0 degrees.

    Raises
    ------
    ImageError
        If the array is not an image of these types.
    ConfigurationError
        If `angles` contains an angle that is not in `spec`.

    Examples
    --------
    >>> import numpy as np
    >>> tiles = list(iter_tiles(np.zeros((300, 400), np.uint8), TileSpec(128, angles=[0, 90])))
    >>> len(tiles), tiles[0].pixels.shape, (tiles[0].x, tiles[0].y)
    (30, (128, 128), (8, 22))
    """
    _check_image(image)
    chosen = TileSpec(angles=spec.angles if angles is None else angles).angles
    if unknown := set(chosen) - set(spec.angles):
        raise ConfigurationError(f"angles {sorted(unknown)} are not among those of {spec}.")
    height, width = image.shape[:2]
    room = _Room()
    for _, group in group_by_base(chosen):
        frames = [Frame(width, height, angle) for angle in group]
        positions = [allowed_positions(frame, spec, zones)[0] for frame in frames]
        pixels = _TurnedImage(image, frames[0], spec)
        if pixels.nbytes <= cache_bytes and len(frames) > 1:
            pixels.keep(
                [frame.to_base(at, spec.tile) for frame, at in zip(frames, positions, strict=True)],
                spec.tile,
                room,
            )
        if spec.include_original and frames[0].angle == 0:
            for tile in _tiles_of_frame(pixels, frames[0], positions[0], spec, white):
                yield replace(tile, original=True)
        for frame, at in zip(frames, positions, strict=True):
            yield from _tiles_of_frame(pixels, frame, at, spec, white)


def cut_at(
    image: Pixels | Raster,
    spec: TileSpec,
    angle: float,
    positions: Positions,
    *,
    cache_bytes: int = CACHE_BYTES,
) -> Iterator[Pixels]:
    """Cut tiles of one angle at given positions.

    Parameters
    ----------
    image : array [height, width] or [height, width, channels], or Raster
        uint8, uint16 or float32, at most 4 channels.
    spec : TileSpec
        The specification; only its `tile`, `interpolation` and `edge` are used. With edge ``pad``
        tiles may reach over the edge of the image.
    angle : float
        Degrees in [0, 360), counter-clockwise.
    positions : pair of int arrays
        Left and top edges in the frame of the turned image, pixels.
    cache_bytes : int, default 64 MiB
        If tiles overlap so much that it costs less, the rectangle around them is computed once,
        provided the turned image has at most this size. Otherwise each tile is computed alone.

    Yields
    ------
    array [tile, tile] or [tile, tile, channels]
        The pixels of the tile that `iter_tiles` cuts there; it may be a view. At multiples of 90
        degrees they are equal. At other angles OpenCV starts at another pixel and rounds
        positions differently: of 8-bit values, with linear or cubic interpolation, at most 1 in
        1,000 differs, by one level.

    Raises
    ------
    ImageError
        If the array is not an image of these types, or a tile does not lie in the image; with edge
        ``pad``, if no part of the tile does.

    Examples
    --------
    >>> image = np.arange(12, dtype=np.uint8).reshape(3, 4)
    >>> [tile.tolist() for tile in cut_at(image, TileSpec(2), 90, (np.array([0]), np.array([1])))]
    [[[2, 6], [1, 5]]]
    """
    _check_image(image)
    height, width, side = *image.shape[:2], spec.tile
    frame = Frame(width, height, normal_angle(angle))
    left, top = frame.to_base(positions, side)
    _check_inside(frame, spec, positions)
    pixels = _TurnedImage(image, frame, spec)
    around = (np.ptp(left) + side) * (np.ptp(top) + side) if left.size else 0
    if pixels.nbytes <= cache_bytes and left.size * side**2 > around:
        pixels.keep([(left, top)], side, _Room())
    for x, y in zip(left.tolist(), top.tolist(), strict=True):
        yield _turned(pixels.read(x, y, x + side, y + side), frame.turns)


def _check_inside(frame: Frame, spec: TileSpec, positions: Positions) -> None:
    """Refuse tiles that reach beyond the image; with padding, only tiles wholly outside it."""
    left, top = frame.to_base(positions, spec.tile)
    if spec.edge == "pad":
        is_outside = ~touch(left, top, spec.tile, (frame.source_corners(),))
    else:
        across, down = np.meshgrid([0, spec.tile], [0, spec.tile])
        x, y = frame.base_to_source(
            left[:, np.newaxis] + across.ravel(), top[:, np.newaxis] + down.ravel()
        )
        beyond = np.maximum(
            np.maximum(-x, x - frame.source_width), np.maximum(-y, y - frame.source_height)
        )
        is_outside = (beyond >= CORNER_OUTSIDE).any(axis=1)
    wrong = np.flatnonzero(is_outside)
    if wrong.size:
        first = wrong[0]
        raise ImageError(
            f"A tile of {spec.tile} at x={positions[0][first]}, y={positions[1][first]} and "
            f"{frame.angle} degrees lies outside of its image of {frame.source_width}x"
            f"{frame.source_height}. Index the image again."
        )


def _tiles_of_frame(
    pixels: _TurnedImage,
    frame: Frame,
    positions: Positions,
    spec: TileSpec,
    white: int | None,
) -> Iterator[Tile]:
    """Yield the tiles of one angle."""
    channels = pixels.shape[2] if len(pixels.shape) == 3 else 1
    tile_bytes = spec.tile * spec.tile * channels * pixels.dtype.itemsize
    for strip in in_strips(positions, spec, STRIP_BYTES // tile_bytes):
        yield from _tiles_of_strip(pixels, frame, strip, spec, white)


def _tiles_of_strip(
    pixels: _TurnedImage,
    frame: Frame,
    positions: Positions,
    spec: TileSpec,
    white: int | None,
) -> Iterator[Tile]:
    """Yield tiles by rows from the top."""
    side = spec.tile
    measured = None
    if white is not None:
        channels = 1 if len(pixels.shape) == 2 else pixels.shape[2]
        measured = FrameQuality(positions, side, white, channels)
    rows = _Rows(pixels, frame, positions, side, measured)
    columns = (column.tolist() for column in (*positions, *frame.centres(positions, side)))
    outside = outside_parts(frame, spec, positions)
    row: int | None = None
    qualities: Iterator[Quality] = iter(())
    for x, y, src_cx, src_cy, part in zip(*columns, outside, strict=True):
        cut = rows.at(y)[:, x - rows.left : x - rows.left + side].copy()
        if measured is not None and y != row:
            row, qualities = y, iter(measured.of_row(y))
        quality = next(qualities, None)
        yield Tile(cut, frame.angle, x, y, src_cx, src_cy, part, quality=quality)


class _Room:
    """Memory that is reused, because the system takes long to hand out new pages."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Pixels:
        """Return an uninitialised array, valid until the next call."""
        size = math.prod(shape) * dtype.itemsize
        if size > self._bytes.size:
            self._bytes = np.empty(size, np.uint8)
        return self._bytes[:size].view(dtype).reshape(shape)


class _TurnedImage:
    """The pixels of a base angle's frame, computed when they are read, or kept.

    Parameters
    ----------
    image : array or Raster
    frame : Frame
        Any frame of the base angle.
    spec : TileSpec
    """

    def __init__(self, image: Pixels | Raster, frame: Frame, spec: TileSpec) -> None:
        self._image = image
        self._frame = frame
        self._flag = FLAGS[spec.interpolation]
        self._padded = spec.edge == "pad"
        # These overshoot beside sharp edges. OpenCV limits values to the range of the type, which
        # is larger than that of a 12-bit camera.
        overshoots = frame.base != 0 and spec.interpolation in ("cubic", "lanczos4")
        self._highest = image.max() if overshoots and image.dtype == np.uint16 else None
        self._kept: Pixels | None = None
        if frame.base == 0 and not isinstance(image, Raster):
            self._kept = image
        width, height = frame.base_size
        self.shape = (height, width, *image.shape[2:])
        self.dtype = image.dtype
        self.nbytes = math.prod(self.shape) * image.itemsize

    def keep(self, positions: list[Positions], tile: int, room: _Room) -> None:
        """Compute once what tiles at these positions need; other kept pixels are undefined."""
        if self._kept is not None or self._frame.base == 0:
            return
        x = np.concatenate([at[0] for at in positions])
        y = np.concatenate([at[1] for at in positions])
        kept = room.array(self.shape, self.dtype)
        for top in range(0, self.shape[0], BAND_ROWS):
            bottom = min(top + BAND_ROWS, self.shape[0])
            left, right = _needed_columns((x, y), tile, top, bottom)
            left, right = max(left, 0), min(right, self.shape[1])
            if right > left:
                self._compute(left, top, kept[top:bottom, left:right])
        self._kept = kept

    def read(self, left: int, top: int, right: int, bottom: int) -> Pixels:
        """Return a rectangle, black beyond the frame; it may be a view."""
        height, width = self.shape[:2]
        if left >= 0 and top >= 0 and right <= width and bottom <= height:
            return self._read(left, top, right, bottom)
        pixels = np.zeros((bottom - top, right - left, *self.shape[2:]), self.dtype)
        from_x, from_y = max(left, 0), max(top, 0)
        to_x, to_y = min(right, width), min(bottom, height)
        if from_x < to_x and from_y < to_y:
            inner = self._read(from_x, from_y, to_x, to_y)
            pixels[from_y - top : to_y - top, from_x - left : to_x - left] = inner
        return pixels

    def _read(self, left: int, top: int, right: int, bottom: int) -> Pixels:
        if self._kept is not None:
            return self._kept[top:bottom, left:right]
        if isinstance(self._image, Raster) and self._frame.base == 0:
            return self._image.read(left, top, right, bottom)
        pixels = np.empty((bottom - top, right - left, *self.shape[2:]), self.dtype)
        self._compute(left, top, pixels)
        return pixels

    def _compute(self, left: int, top: int, out: Pixels) -> None:
        """Compute the rectangle that begins at `left`, `top` and has the size of `out`."""
        height, width = out.shape[:2]
        for upper in range(0, height, PIECE_SIDE):
            for start in range(0, width, PIECE_SIDE):
                piece = out[upper : upper + PIECE_SIDE, start : start + PIECE_SIDE]
                self._warp(left + start, top + upper, piece)

    def _warp(self, left: int, top: int, out: Pixels) -> None:
        """Compute a rectangle small enough for OpenCV."""
        bottom, right = top + out.shape[0], left + out.shape[1]
        corners_x, corners_y = self._frame.base_to_source(
            np.array([left, right, left, right], dtype=np.float64),
            np.array([top, top, bottom, bottom], dtype=np.float64),
        )
        window_x = max(0, int(corners_x.min()) - WINDOW_MARGIN)
        window_y = max(0, int(corners_y.min()) - WINDOW_MARGIN)
        window = self._window(
            (window_x, max(0, int(corners_x.max()) + WINDOW_MARGIN)),
            (window_y, max(0, int(corners_y.max()) + WINDOW_MARGIN)),
            (left, top, right, bottom),
        )
        if 0 in window.shape:
            out[:] = 0  # wholly outside
            return
        cosine, sine = self._frame.direction
        # Where the centre of the first pixel lies in OpenCV's coordinates, in which pixel centres
        # are whole numbers.
        origin_x, origin_y = self._frame.base_to_source(
            np.array([left + 0.5]), np.array([top + 0.5])
        )
        matrix = np.array(
            [
                [cosine, -sine, origin_x[0] - 0.5 - window_x],
                [sine, cosine, origin_y[0] - 0.5 - window_y],
            ]
        )
        cv2.warpAffine(
            window,
            matrix,
            (out.shape[1], out.shape[0]),
            dst=out,
            flags=self._flag | cv2.WARP_INVERSE_MAP,
            # The kernel of a pixel at the edge reaches beyond it.
            borderMode=cv2.BORDER_REFLECT_101,
        )
        if self._highest is not None:
            np.minimum(out, self._highest, out=out)
        if self._padded:
            self._blacken(left, top, out)

    def _window(
        self, x: tuple[int, int], y: tuple[int, int], rectangle: tuple[int, int, int, int]
    ) -> Pixels:
        """Return the part of the image from which a rectangle of the frame is computed.

        Only the blocks of a raster around the rectangle are read: the rectangle can be 128 rows
        along the diagonal of its window. OpenCV's rounding depends on where the window begins, so
        arrays use the same window.
        """
        if not isinstance(self._image, Raster):
            return self._image[slice(*y), slice(*x)]
        left, top, right, bottom = rectangle
        cosine, sine = self._frame.direction

        def is_near(x0: Blocks, y0: Blocks, x1: Blocks, y1: Blocks) -> NDArray[np.bool_]:
            u, v = self._frame.source_to_base((x0 + x1) / 2, (y0 + y1) / 2)
            half_x, half_y = (x1 - x0) / 2 + WINDOW_MARGIN, (y1 - y0) / 2 + WINDOW_MARGIN
            reach_u, reach_v = cosine * half_x + sine * half_y, sine * half_x + cosine * half_y
            near = (u > left - reach_u) & (u < right + reach_u)
            found: NDArray[np.bool_] = near & (v > top - reach_v) & (v < bottom + reach_v)
            return found

        height, width = self._image.shape[:2]
        return self._image.read(x[0], y[0], min(x[1], width), min(y[1], height), is_near)

    def _blacken(self, left: int, top: int, out: Pixels) -> None:
        """Make pixels black if their centres lie outside the source."""
        x, y = np.meshgrid(
            np.arange(left, left + out.shape[1]) + 0.5, np.arange(top, top + out.shape[0]) + 0.5
        )
        source_x, source_y = self._frame.base_to_source(x, y)
        inside = (source_x > 0) & (source_x < self._frame.source_width)
        inside &= (source_y > 0) & (source_y < self._frame.source_height)
        out[~inside] = 0


class _Rows:
    """A band of a frame as high as a tile, which moves down.

    Parameters
    ----------
    pixels : _TurnedImage
        The image turned by the frame's base angle.
    frame : Frame
    positions : pair of int arrays
        Left and top edges of all tiles of the frame.
    tile : int
    measured : FrameQuality, optional
        Gets each row once.
    """

    def __init__(
        self,
        pixels: _TurnedImage,
        frame: Frame,
        positions: Positions,
        tile: int,
        measured: FrameQuality | None,
    ) -> None:
        self._measured = measured
        self._pixels = pixels
        self._frame = frame
        self._positions = positions
        self._tile = tile
        self.left = int(positions[0].min())
        width = int(positions[0].max()) + tile - self.left
        self._rows = np.zeros((tile, width, *pixels.shape[2:]), pixels.dtype)
        self._top = self._end = int(positions[1].min())

    def at(self, top: int) -> Pixels:
        """Return the rows from `top` on, from column `left` on, undefined in columns without tiles.

        `top` never decreases from call to call; the array is valid until it grows.
        """
        if self._end > self._top and top == self._top:
            return self._rows
        kept = max(0, self._end - top)
        if kept:
            self._rows[:kept] = self._rows[self._tile - kept :]
        self._top, self._end = top, top + self._tile
        for start in range(top + kept, self._end, BAND_ROWS):
            stop = min(start + BAND_ROWS, self._end)
            self._fill(start, stop)
            if self._measured is not None:
                above = self._rows[start - top - 1] if start > top else None
                self._measured.add(start, self._rows[start - top : stop - top], above)
        return self._rows

    def _fill(self, top: int, bottom: int) -> None:
        left, right = _needed_columns(self._positions, self._tile, top, bottom)
        if right <= left:
            return
        extent = (right - left, bottom - top)
        turns = self._frame.turns
        x, y = turn((np.array(left), np.array(top)), self._frame.size, extent, -turns)
        width, height = extent[::-1] if turns % 2 else extent
        pixels = self._pixels.read(int(x), int(y), int(x) + width, int(y) + height)
        columns = slice(left - self.left, right - self.left)
        _turn_into(self._rows[top - self._top : bottom - self._top, columns], pixels, turns)


def _needed_columns(positions: Positions, tile: int, top: int, bottom: int) -> tuple[int, int]:
    """Return the first column, and the column after the last, that tiles need in a band of rows."""
    x, y = positions
    needed = x[(y < bottom) & (y + tile > top)]
    return (int(needed.min()), int(needed.max()) + tile) if needed.size else (0, 0)


def _turned(pixels: Pixels, turns: int) -> Pixels:
    """Return pixels turned counter-clockwise by quarters."""
    if turns == 0:
        return pixels
    turned: Pixels = cv2.rotate(pixels, QUARTER_TURNS[turns])
    # OpenCV drops an axis of one channel.
    return turned.reshape(*turned.shape[:2], *pixels.shape[2:])


def _turn_into(out: Pixels, pixels: Pixels, turns: int) -> None:
    """Write pixels turned counter-clockwise by quarters, without an intermediate copy."""
    if turns == 0:
        out[:] = pixels
    else:
        cv2.rotate(pixels, QUARTER_TURNS[turns], dst=out)


def group_by_base(angles: Iterable[float]) -> list[tuple[float, list[float]]]:
    """Group sorted angles that differ by quarter turns.

    Examples
    --------
    >>> group_by_base([0, 5, 90, 95, 185])
    [(0, [0, 90]), (5, [5, 95, 185])]
    """
    groups: dict[float, list[float]] = {}
    for angle in angles:
        groups.setdefault(angle % 90, []).append(angle)
    return sorted(groups.items())


def _check_image(image: Pixels | Raster) -> None:
    if image.ndim not in (2, 3) or 0 in image.shape or (image.ndim == 3 and image.shape[2] > 4):
        raise ImageError(
            "An image is an array [height, width] or [height, width, channels] with at most 4 "
            f"channels. Received: shape {image.shape}."
        )
    if image.dtype.name not in DTYPES:
        raise ImageError(
            f"An image must be of {', '.join(DTYPES)}. Received: {image.dtype.name}. Convert it "
            "first."
        )
