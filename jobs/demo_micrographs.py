"""The demo's data: micrographs in focus, out of focus, and moved during the exposure.

Each of the shipped micrographs is in each of the three classes: as it is, and spoiled as a
microscope would, by a disk of confusion, or by a line along which the stage moved. So the label of
every image is known exactly. The three images of a micrograph are a group, which the split keeps
together. Three micrographs are set aside. Their focus falls off from left to right, as on a tilted
slide.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

CLASSES = ("in_focus", "out_of_focus", "moved")
SEED = 1
SET_ASIDE = 3
#: The images of one micrograph have its name.
GROUP = r"(?P<group>[^/]+)\.png$"
#: Radius of the disk and length of the line [pixels], drawn for each image.
RADIUS, LENGTH = (3.0, 5.0), (8.0, 14.0)
#: Noise of the camera, which the blur has taken away with the details [gray values].
NOISE = 1.0

Gray = NDArray[np.uint8]


@dataclass(frozen=True)
class Tilted:
    """A micrograph whose focus falls off from left to right.

    Parameters
    ----------
    name : str
        Of the file.
    pixels : array [height, width]
        Gray values.
    sharp_until, blurred_from : int
        Columns. Left of the first one it is in focus; right of the second one the disk's radius is
        one of the training.
    """

    name: str
    pixels: Gray
    sharp_until: int
    blurred_from: int


def write_micrographs(samples: Path, folder: Path) -> list[Tilted]:
    """Write ``folder/CLASS/NAME.png`` for each sample; return those that were set aside."""
    random = np.random.default_rng(SEED)
    paths = sorted(samples.glob("*/*.png"), key=lambda path: path.name)
    order = [paths[number] for number in random.permutation(len(paths))]
    tilted = [tilt(path, random) for path in order[:SET_ASIDE]]
    for name in CLASSES:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for path in order[SET_ASIDE:]:
            image = spoiled(gray(path), name, random)
            Image.fromarray(image).save(folder / name / path.name)
    return tilted


def gray(path: Path) -> Gray:
    """Read an image as gray values."""
    with Image.open(path) as image:
        return np.asarray(image.convert("L"))


def spoiled(pixels: Gray, name: str, random: np.random.Generator) -> Gray:
    """Return an image of a class."""
    if name == "in_focus":
        return pixels
    if name == "out_of_focus":
        kernel = disk(random.uniform(*RADIUS))
    else:
        kernel = line(random.uniform(*LENGTH), random.uniform(0, np.pi))
    return noisy(blurred(pixels, kernel), random)


def tilt(path: Path, random: np.random.Generator) -> Tilted:
    """Return a micrograph whose right part is out of focus."""
    pixels = gray(path)
    width = pixels.shape[1]
    sharp_until, blurred_from = round(0.4 * width), round(0.6 * width)
    radius = np.interp(np.arange(width), [sharp_until, blurred_from, width - 1], [0, *RADIUS])
    result = pixels.astype(np.float32)
    for step in np.arange(0.5, RADIUS[1] + 0.5, 0.5):
        # Columns take the disk that is next to theirs.
        columns = np.abs(radius - step) <= 0.25
        result[:, columns] = blurred(pixels, disk(step))[:, columns]
    result[:, radius > 0] = noisy(result, random)[:, radius > 0]
    return Tilted(path.name, result.astype(np.uint8), sharp_until, blurred_from)


def blurred(pixels: Gray, kernel: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return an image as seen through a kernel."""
    blurred_image: NDArray[np.float32] = cv2.filter2D(
        pixels.astype(np.float32), -1, kernel, borderType=cv2.BORDER_REFLECT
    )
    return blurred_image


def noisy(pixels: NDArray[np.float32], random: np.random.Generator) -> Gray:
    """Add the camera's noise, and round."""
    noise = random.normal(0, NOISE, pixels.shape)
    return np.clip(pixels + noise, 0, 255).round().astype(np.uint8)


def disk(radius: float) -> NDArray[np.float32]:
    """Return the image of a point that is out of focus: an even disk with a soft edge."""
    half = int(np.ceil(radius)) + 1
    y, x = np.mgrid[-half : half + 1, -half : half + 1]
    kernel = np.clip(radius + 0.5 - np.hypot(x, y), 0, 1)
    even: NDArray[np.float32] = (kernel / kernel.sum()).astype(np.float32)
    return even


def line(length: float, angle: float) -> NDArray[np.float32]:
    """Return the image of a point that moves evenly along a line."""
    half = int(np.ceil(length / 2)) + 1
    y, x = np.mgrid[-half : half + 1, -half : half + 1]
    along = x * np.cos(angle) + y * np.sin(angle)
    across = x * np.sin(angle) - y * np.cos(angle)
    kernel = np.clip(length / 2 + 0.5 - np.abs(along), 0, 1) * np.clip(1 - np.abs(across), 0, 1)
    even: NDArray[np.float32] = (kernel / kernel.sum()).astype(np.float32)
    return even
