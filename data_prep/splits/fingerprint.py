"""Fingerprints of pictures: they survive resizing, JPEG and cropping, and find the same place.

A fingerprint holds ORB features, which two pictures share where their fields of view overlap, and
a thumbnail with its perceptual hash for pictures without corners. Bars, rims and labels that were
drawn into a picture are masked: they are the same in pictures of different places.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import DataError

# Pixels to which pictures are reduced: scan noise disappears, and the cost is the same for all.
AREA = 1_000_000
# Number of features, spread over a grid so that one sharp corner does not take them all.
FEATURES = 192
GRID = 4
DESCRIPTOR = 32  # bytes
THUMBNAIL = 16
PHASH_SIDE = 32
PHASH_BITS = 8  # of each axis
# A run of pixels that differ by no more than this was drawn, not photographed.
FLAT_LEVELS = 4
# Below this standard deviation a thumbnail shows the lamp, not the specimen [gray levels].
LEAST_CONTRAST = 1.5
HEADER = struct.Struct("<BBHII")
VERSION = 1


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The fingerprint of one picture; its arrays are views of the bytes that were read."""

    width: int  # width and height: Size of the source, pixels
    height: int
    places: NDArray[np.uint16]  # x and y of each feature, of 65535 parts of the picture's sides
    descriptors: NDArray[np.uint8]  # 256 bits of each feature
    levels: NDArray[np.int8] | None  # Thumbnail; None where nothing can be seen in it
    phash: int | None  # 64 bits; None where there is no thumbnail

    @property
    def points(self) -> NDArray[np.float32]:
        """Places of the features in the reduced picture."""
        size = np.array([self.width, self.height]) * self.reduction
        return (self.places / np.float32(65535) * size.astype(np.float32)).astype(np.float32)

    @property
    def thumbnail(self) -> NDArray[np.float32] | None:
        """The thumbnail with mean 0 and deviation 1."""
        return None if self.levels is None else _standardised(self.levels.astype(np.float32))

    @property
    def reduction(self) -> float:
        """Size of a source pixel in the reduced picture."""
        return reduction(self.width, self.height)

    @property
    def area(self) -> float:
        """Pixels of the reduced picture."""
        return self.width * self.height * self.reduction**2


def reduction(width: int, height: int) -> float:
    """Return the factor by which a picture is reduced."""
    return min(1.0, math.sqrt(AREA / (width * height)))


def fingerprint(pixels: NDArray[Any], shrink: int = 1) -> bytes:
    """Return the fingerprint of a picture, about 7 kB.

    `shrink`: factor by which the picture is larger than `pixels`.
    """
    height, width = pixels.shape[:2]
    small = _reduced(pixels)
    drawn = burned_in(small)
    # Features depend on the pixels around them, and must not see the edge of a bar.
    points, descriptors = _features(small, cv2.dilate(drawn, np.ones((33, 33), np.uint8)))
    thumbnail, phash = _thumbnail(small, drawn)
    scaled = np.rint(points / (small.shape[1], small.shape[0]) * 65535).clip(0, 65535)
    levels = np.zeros(0, np.int8) if thumbnail is None else np.clip(thumbnail * 32, -127, 127)
    return b"".join(
        (
            HEADER.pack(
                VERSION, thumbnail is not None, len(points), width * shrink, height * shrink
            ),
            struct.pack("<Q", phash),
            levels.astype(np.int8).tobytes(),
            scaled.astype("<u2").tobytes(),
            descriptors.tobytes(),
        )
    )


def parse(content: bytes) -> Fingerprint:
    """Read what `fingerprint` wrote."""
    try:
        version, has_thumbnail, count, width, height = HEADER.unpack_from(content)
        (phash,) = struct.unpack_from("<Q", content, HEADER.size)
        side = THUMBNAIL**2 if has_thumbnail else 0
        start = HEADER.size + 8
        expected = start + side + count * (4 + DESCRIPTOR)
        known = version == VERSION and width > 0 and height > 0
    except struct.error:
        known, expected = False, -1
    if not known or len(content) != expected:
        raise DataError(
            f"A fingerprint of a picture is damaged. Received: {len(content)} bytes. Delete the "
            "folder _likeness of the data set; the next update makes it anew."
        )
    at = start + side
    bits = np.frombuffer(content, np.uint8, count * DESCRIPTOR, at + 4 * count)
    return Fingerprint(
        *(width, height),
        places=np.frombuffer(content, "<u2", count * 2, at).reshape(count, 2),
        descriptors=bits.reshape(count, DESCRIPTOR),
        levels=np.frombuffer(content, np.int8, side, start).reshape(-1, THUMBNAIL)
        if side
        else None,
        phash=phash if side else None,
    )


def burned_in(gray: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return where something was drawn into a picture: scale bars, data bars, labels, rims."""
    width = gray.shape[1]
    drawn = np.zeros_like(gray)
    length = max(16, width // 16)
    for shape in ((1, length), (length, 1)):
        line = np.ones(shape, np.uint8)
        spread = cv2.subtract(cv2.dilate(gray, line), cv2.erode(gray, line))
        drawn |= cv2.dilate((spread <= FLAT_LEVELS).astype(np.uint8), line)
    # Letters are in or beside the bar.
    gap = max(9, width // 20)
    closed: NDArray[np.uint8] = cv2.morphologyEx(
        drawn, cv2.MORPH_CLOSE, np.ones((gap, gap), np.uint8)
    )
    return closed


def _reduced(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a picture in gray, 8 bits, stretched to its range, of `AREA` pixels at most."""
    gray = pixels[:, :, 0] if pixels.shape[2] == 1 else cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    factor = reduction(gray.shape[1], gray.shape[0])
    if factor < 1:
        size = (max(1, round(gray.shape[1] * factor)), max(1, round(gray.shape[0] * factor)))
        gray = cv2.resize(gray, size, interpolation=cv2.INTER_AREA)
    if gray.dtype != np.uint8:
        low, high = np.percentile(gray, (0.5, 99.5))
        stretched = (gray.astype(np.float32) - low) * (255 / max(high - low, 1.0))
        gray = np.rint(stretched.clip(0, 255)).astype(np.uint8)
    return np.ascontiguousarray(gray)


def _features(
    gray: NDArray[np.uint8], drawn: NDArray[np.uint8]
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return the strongest corners of each cell of a grid, and their descriptors."""
    none = np.zeros((0, 2), np.float32), np.zeros((0, DESCRIPTOR), np.uint8)
    height, width = gray.shape
    orb = cv2.ORB.create(nfeatures=10 * FEATURES, fastThreshold=5, nlevels=6)
    points = orb.detect(gray, (1 - drawn) * 255)
    cells: dict[tuple[int, int], list[Any]] = {}
    for point in sorted(points, key=lambda point: (-point.response, point.pt)):
        x, y = point.pt
        cells.setdefault((int(x * GRID / width), int(y * GRID / height)), []).append(point)
    share = FEATURES // GRID**2
    chosen = [point for cell in cells.values() for point in cell[:share]]
    others = [point for cell in cells.values() for point in cell[share:]]
    others.sort(key=lambda point: (-point.response, point.pt))
    chosen += others[: FEATURES - len(chosen)]
    if not chosen:
        return none
    described, descriptors = orb.compute(gray, chosen)
    if descriptors is None:
        return none
    return np.array([point.pt for point in described], np.float32), descriptors


def _thumbnail(
    gray: NDArray[np.uint8], drawn: NDArray[np.uint8]
) -> tuple[NDArray[np.float32] | None, int]:
    """Return the residual of a thumbnail over the shade of the lamp, and its perceptual hash."""
    mask = drawn == 0
    # A picture without texture is all "drawn"; so is one that is mostly covered by a label.
    if mask.mean() < 0.5:
        return None, 0
    plain = np.where(mask, gray, np.float32(gray[mask].mean())).astype(np.float32)
    medium = cv2.resize(plain, (PHASH_SIDE, PHASH_SIDE), interpolation=cv2.INTER_AREA)
    residual = _without_shade(medium)
    small = cv2.resize(residual, (THUMBNAIL, THUMBNAIL), interpolation=cv2.INTER_AREA)
    if small.std() < LEAST_CONTRAST:
        return None, 0
    frequencies = cv2.dct(residual)[:PHASH_BITS, :PHASH_BITS].ravel()
    bits = frequencies > np.median(frequencies)
    return _standardised(small), int.from_bytes(np.packbits(bits).tobytes(), "big")


def _without_shade(picture: NDArray[np.float32]) -> NDArray[np.float32]:
    """Subtract the quadratic surface that fits best: uneven light is alike in many pictures."""
    side = picture.shape[0]
    y, x = np.mgrid[0:side, 0:side].astype(np.float64) / side - 0.5
    terms = np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=-1).reshape(-1, 6)
    flat = picture.reshape(-1).astype(np.float64)
    fitted, *_ = np.linalg.lstsq(terms, flat, rcond=None)
    residual: NDArray[np.float32] = (flat - terms @ fitted).reshape(side, side).astype(np.float32)
    return residual


def _standardised(values: NDArray[np.float32]) -> NDArray[np.float32]:
    centred = values - values.mean()
    scaled: NDArray[np.float32] = centred / np.float32(max(float(centred.std()), 1e-6))
    return scaled
