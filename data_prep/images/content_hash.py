"""The identity of a picture, whatever file format holds it."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

# 8 bits in a file of 16: libraries that convert multiply by 257, so that white remains white.
WIDENED = 257


def pixel_digest(pixels: NDArray[Any]) -> str:
    """Return the SHA-256 of decoded pixels.

    Pictures that a model sees as equal have the same digest: one channel or three equal ones, and 8
    bits or the same values widened to 16.

    Examples
    --------
    >>> gray = np.full((2, 3, 1), 7, np.uint8)
    >>> pixel_digest(gray) == pixel_digest(gray.repeat(3, axis=2).astype(np.uint16) * 257)
    True
    """
    digest = PixelDigest(pixels.shape, pixels.dtype)
    # The first row shows of most images that they are neither gray nor widened.
    digest.add(pixels[:1])
    digest.add(pixels[1:])
    return digest.hexdigest()


class PixelDigest:
    """The digest of an image whose rows arrive one after the other.

    Examples
    --------
    >>> image = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
    >>> digest = PixelDigest(image.shape, image.dtype)
    >>> digest.add(image[:3])
    >>> digest.add(image[3:])
    >>> digest.hexdigest() == pixel_digest(image)
    True
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        height, width, channels = shape
        # Whether the rows so far are gray in three channels, and 8-bit values widened to 16. The
        # digest is that of the simplest form that holds for all rows.
        self._forms: dict[tuple[bool, bool], Any] = {}
        for gray in {channels > 1, False}:
            for narrow in {dtype.name == "uint16", False}:
                plain = (height, width, 1 if gray else channels)
                name = "uint8" if narrow else dtype.name
                self._forms[gray, narrow] = hashlib.sha256(f"{plain} {name} ".encode())

    @property
    def is_gray(self) -> bool:
        """Whether all channels were equal so far."""
        return any(gray for gray, _ in self._forms)

    def add(self, rows: NDArray[Any]) -> None:
        """Add the next rows, array [rows, width, channels]."""
        is_gray = self.is_gray and bool((rows == rows[:, :, :1]).all())
        is_wide = any(narrow for _, narrow in self._forms) and not (rows % WIDENED).any()
        for gray, narrow in list(self._forms):
            if (gray and not is_gray) or (narrow and not is_wide):
                del self._forms[gray, narrow]
                continue
            plain = rows[:, :, :1] if gray else rows
            plain = (plain // WIDENED).astype(np.uint8) if narrow else plain
            self._forms[gray, narrow].update(
                np.ascontiguousarray(plain, plain.dtype.newbyteorder("<")).data
            )

    def hexdigest(self) -> str:
        """Return the digest of the rows so far, as `pixel_digest` does."""
        return str(self._forms[max(self._forms)].hexdigest())
