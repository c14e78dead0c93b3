"""Normalising the stains of histology (hematoxylin and eosin) to reference colours: pure.

Macenko et al., "A method for normalizing histology slides for quantitative analysis", ISBI 2009.
Light that passes a stain is dimmed exponentially, so the optical densities of stains add up. The
two stains of an image span a plane of densities; they are found at its edges, and replaced by those
of the reference in equal amounts. All of it together is one 3x3 matrix for densities.
"""

from __future__ import annotations

import numpy as np

from data_prep.images.plane_selection import CONVERTED_PIXELS, Pixels

#: The 3x3 matrix, row by row.
StainMatrix = tuple[float, ...]

NUMBERS = 9
# Colours of hematoxylin and eosin, and their 99th percentiles, that the authors' programs use.
REFERENCE = np.array([[0.5626, 0.2159], [0.7201, 0.8012], [0.4062, 0.5581]])
REFERENCE_MOST = np.array([1.9705, 1.0308])
# Density of a pixel that counts as stained: the paper's. Eosin dims red light hardly at all.
STAINED = 0.15
# Percent of the pixels that may lie beyond the stains found: the paper's.
BEYOND = 1.0
# With fewer stained pixels no stain can be found.
LEAST_PIXELS = 500
# Stains at a smaller angle count as one [radians].
LEAST_ANGLE = 0.02
# Number of pixels that are looked at.
MOST_PIXELS = 1_000_000
LEVELS = 256

_DENSITIES = -np.log((np.arange(LEVELS) + 1.0) / LEVELS)


def find_stains(pixels: Pixels) -> StainMatrix | None:
    """Return the matrix that brings an image to the reference, None if it lacks two stains."""
    flat = pixels.reshape(-1, 3)
    density = _DENSITIES[flat[:: -(-len(flat) // MOST_PIXELS)]]
    stained = density[np.linalg.norm(density, axis=1) > STAINED]
    if len(stained) < LEAST_PIXELS:
        return None
    plane = np.linalg.eigh(np.cov(stained.T))[1][:, :0:-1]
    # The direction of largest variance is that of more stain, so no angle crosses 180 degrees.
    plane[:, 0] *= np.sign(plane[:, 0].sum())
    across, along = stained @ plane[:, 1], stained @ plane[:, 0]
    edges = np.percentile(np.arctan2(across, along), [BEYOND, 100 - BEYOND])
    if edges[1] - edges[0] < LEAST_ANGLE:
        return None
    stains = plane @ np.array([np.cos(edges), np.sin(edges)])
    # Hematoxylin absorbs more of the red light.
    stains = stains[:, np.argsort(-stains[0])]
    inverse = np.linalg.pinv(stains)
    most = np.percentile(stained @ inverse.T, 100 - BEYOND, axis=0)
    if (most <= 0).any():
        return None
    matrix = REFERENCE * (REFERENCE_MOST / most) @ inverse
    return tuple(matrix.ravel().tolist())


def apply_stain_matrix(pixels: Pixels, matrix: StainMatrix) -> Pixels:
    """Bring an image, or a part of one, to the stains of the reference."""
    table = _DENSITIES.astype(np.float32)
    weights = np.asarray(matrix, np.float32).reshape(3, 3)
    restained = np.empty_like(pixels)
    rows = max(1, CONVERTED_PIXELS // max(1, pixels.shape[1]))
    for top in range(0, len(pixels), rows):
        density = table[pixels[top : top + rows]]
        for channel, (red, green, blue) in enumerate(weights):
            # One after another: a matrix product rounds differently for different shapes.
            sums = density[:, :, 0] * red + density[:, :, 1] * green + density[:, :, 2] * blue
            light = np.exp(-sums) * np.float32(LEVELS) - np.float32(1)
            restained[top : top + rows, :, channel] = np.clip(np.rint(light), 0, LEVELS - 1)
    return restained
