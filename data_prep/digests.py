"""The identity of a picture, whatever file format holds it."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

# 8 bits in a file of 16: a library that converts multiplies by 257, so that white remains white.
WIDENED = 257


def pixel_digest(pixels: NDArray[Any]) -> str:
    """Return the SHA-256 of decoded pixels.

    Pictures that a model sees as equal have the same digest: one channel or three equal ones, and 8
    bits or the same values widened to 16.

    Parameters
    ----------
    pixels : array [height, width, 1 or 3]
        uint8 or uint16, as `data_prep.images.decode_image` returns them.

    Returns
    -------
    str
        64 hexadecimal digits.

    Examples
    --------
    >>> gray = np.full((2, 3, 1), 7, np.uint8)
    >>> pixel_digest(gray) == pixel_digest(gray.repeat(3, axis=2).astype(np.uint16) * 257)
    True
    """
    plain = _narrowed(_one_channel(pixels))
    digest = hashlib.sha256(f"{plain.shape} {plain.dtype.name} ".encode())
    digest.update(np.ascontiguousarray(plain, plain.dtype.newbyteorder("<")).data)
    return digest.hexdigest()


def _one_channel(pixels: NDArray[Any]) -> NDArray[Any]:
    first = pixels[:, :, :1]
    # The first row tells most colour images apart without looking at the rest.
    for part in (slice(0, 1), slice(None)):
        if not (pixels[part] == first[part]).all():
            return pixels
    return first


def _narrowed(pixels: NDArray[Any]) -> NDArray[Any]:
    if pixels.dtype.name != "uint16":
        return pixels
    for part in (slice(0, 1), slice(None)):
        if (pixels[part] % WIDENED).any():
            return pixels
    return (pixels // WIDENED).astype(np.uint8)
