"""Pixel-wise standardising and principal components, fitted on the training split alone.

Both are sums over the rows: each task adds up its own rows, and the driver adds up the tasks' sums.
The components are found by subspace iteration (Halko, Martinsson and Tropp, SIAM Review 53, 2011,
algorithm 4.4 with the projection of their section 5.3): a basis of a few more vectors than wanted
is multiplied a few times by the covariance matrix, which itself is never built. With d pixels in an
image the basis takes 3.2 kB x d, and the matrix would take 8 bytes x d x d: for 128x128 pixels
52 MB and 2.1 GB.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import DataError

PCA_SHAPE = (28, 28, 1)
COMPONENTS = 28 * 28
# Extra vectors, and passes over the rows: more of either makes the error smaller.
SPARE = 16
PASSES = 4
WHITE = np.float32(255)

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class PixelMoments:
    """Exact sums over rows: whole numbers below 2**53, which tasks send and the driver adds up."""

    # Number of rows, sum of each value, and sum of its squares; shape (1 + 2 d,)
    sums: NDArray[np.float64]

    @classmethod
    def of(cls, batches: Iterable[NDArray[np.uint8]], size: int) -> Self:
        """Add up batches of shape (n, ...) with `size` values in a row."""
        sums = np.zeros(1 + 2 * size)
        for batch in batches:
            rows = batch.reshape(len(batch), size).astype(np.float64)
            sums[0] += len(rows)
            sums[1 : 1 + size] += rows.sum(axis=0)
            sums[1 + size :] += (rows * rows).sum(axis=0)
        return cls(sums)

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.sums[0])

    def mean(self) -> Floats:
        """Return the mean of each value."""
        total, _ = np.split(self.sums[1:], 2)
        return (total / self.count).astype(np.float32)

    def deviation(self) -> Floats:
        """Return the standard deviation of each value; 1 where it never changes."""
        mean, squares = (each / self.count for each in np.split(self.sums[1:], 2))
        variance = np.maximum(squares - mean * mean, 0)
        return np.where(variance > 0, np.sqrt(variance), 1).astype(np.float32)


@dataclass(frozen=True)
class Transform:
    """The map from uint8 to float32: ``(pixels - mean) @ components.T / deviation``."""

    mean: Floats
    # Unit vectors, the largest variance first; None keeps the pixels; shape (k, d)
    components: Floats | None
    deviation: Floats | None  # Divisors of the values; None does not divide; shape (k or d,)
    shape: tuple[int, ...]  # Shape of one row

    def apply(self, images: NDArray[np.uint8]) -> Floats:
        """Return ``(n, *self.shape)`` of ``(n, height, width, channels)``."""
        values = images.reshape(len(images), -1) - self.mean
        if self.components is not None:
            # Values from 0 to 1, as models get them.
            values = (values / WHITE) @ self.components.T
        if self.deviation is not None:
            values = values / self.deviation
        return np.ascontiguousarray(values.reshape(len(images), *self.shape), np.float32)

    def to_bytes(self) -> bytes:
        """Return the arrays as an ``.npz`` file, for transforming new images in the same way."""
        arrays: dict[str, Any] = {"mean": self.mean}
        if self.components is not None:
            arrays["components"] = self.components
        if self.deviation is not None:
            arrays["deviation"] = self.deviation
        stream = BytesIO()
        np.savez(stream, **arrays)
        return stream.getvalue()


def first_columns(size: int, rows: int, wanted: int) -> Floats:
    """Return random columns to start from, always the same.

    Shape of the result: (size, wanted plus a few).
    """
    if min(size, rows) < wanted:
        raise DataError(
            f"{wanted} principal components need as many pixels and as many training images; "
            f"there are {size:,} pixels an image and {rows:,} training images. Take a larger "
            "--size, or more images."
        )
    columns = min(wanted + SPARE, size)
    return np.random.default_rng(0).standard_normal((size, columns), np.float32)


def orthonormal(columns: NDArray[Any]) -> Floats:
    """Return orthonormal columns that span the same space."""
    return np.linalg.qr(columns.astype(np.float64))[0].astype(np.float32)


def through_covariance(batches: Iterable[NDArray[np.uint8]], mean: Floats, basis: Floats) -> Floats:
    """Return the sum over rows of ``x (x' basis)``, x being centred pixels from 0 to 1.

    `mean`: mean of the pixels; shape (d,).
    Shape of the result: (d, columns).
    """
    passed = np.zeros_like(basis)
    for batch in batches:
        rows = (batch.reshape(len(batch), -1) - mean) / WHITE
        passed += rows.T @ (rows @ basis)
    return passed


def principal_components(
    basis: Floats, passed: Floats, rows: int, wanted: int
) -> tuple[Floats, Floats]:
    """Return the best directions within a basis, and the standard deviations along them.

    `basis`: orthonormal basis; shape (d, columns).
    `passed`: sum over all rows that `through_covariance` returned for it; shape (d, columns).
    Shape of the result: (wanted, d).
    Shape of the result: (wanted,).
    """
    inner = basis.T.astype(np.float64) @ passed.astype(np.float64)
    variances, turns = np.linalg.eigh((inner + inner.T) / 2)
    best = np.argsort(variances)[::-1][:wanted]
    components = (basis.astype(np.float64) @ turns[:, best]).T
    largest = np.abs(components).argmax(axis=1)
    components *= np.sign(components[np.arange(wanted), largest])[:, np.newaxis]
    variances = variances[best] / rows
    # Smaller values are rounding errors of float32 sums.
    real = variances > variances[0] * 1e-9
    deviations = np.where(real, np.sqrt(np.maximum(variances, 0)), 1)
    return components.astype(np.float32), deviations.astype(np.float32)
