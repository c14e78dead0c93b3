"""The encoding ``difference``: each row of an image as its difference from the row above.

``d[0] = p[0]`` and ``d[r] = p[r] - p[r - 1]``, modulo 256 or 65536: the filter "up" of PNG
(https://www.w3.org/TR/png-3/#9Filter-types), over whole values in place of bytes. Neighbouring rows
are alike, so that few small numbers make up most of the result, and zstd needs fewer bits for them.
Pixels that two tiles share stay the same bytes in both, except in a tile's first row, so that zstd
still finds the overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import SchemaError
from distkeras_grid.rows import aligned_empty

if TYPE_CHECKING:
    from distkeras_grid.feeding.schema import Field


def as_differences(pixels: NDArray[Any]) -> NDArray[Any]:
    """Return the differences of an image's rows.

    Examples
    --------
    >>> as_differences(np.array([[[7]], [[9]], [[4]]], np.uint8)).ravel().tolist()
    [7, 2, 251]
    """
    differences = pixels.copy()
    np.subtract(pixels[1:], pixels[:-1], out=differences[1:])
    return differences


def from_differences(contents: Sequence[memoryview], field: Field) -> NDArray[Any]:
    """Return images from the differences of their rows.

    `contents`: for each image the bytes of what `as_differences` returns, little-endian.
    `field`: shape and type of an image.
    """
    images = aligned_empty((len(contents), *field.shape), field.dtype)
    stored = np.dtype(field.dtype).newbyteorder("<")
    for place, content in enumerate(contents):
        if len(content) != field.nbytes:
            raise SchemaError(
                f"Column {field.name!r} must contain {field.nbytes} bytes in each row "
                f"({field.shape}, {field.dtype}). Received in row {place} of the batch: "
                f"{len(content)} bytes. Describe the column with another Field, or drop such rows."
            )
        images[place] = np.frombuffer(content, stored).reshape(field.shape)
    # One call adds a row of all images: `numpy.cumsum` takes five times as long.
    for row in range(1, field.shape[0]):
        np.add(images[:, row], images[:, row - 1], out=images[:, row])
    return images
