"""Tiles per second on one core, beside OpenCV on the whole canvas, Pillow, and a plain copy.

One 2272x1704 image, made from a sample micrograph, cut into tiles of 256 with half overlap at 72
angles. All ways run interleaved in one process on one thread; times are CPU times, medians of the
repetitions. Each way ends with the tile copied into memory of its own. The copy alone, out of a
canvas that is there already, is the limit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from data_prep.geometry.grid import RotatedFrame, TileSpec, tile_positions
from data_prep.geometry.rotated_image import FLAGS
from data_prep.geometry.tiler import iter_tiles
from data_prep.images.open_image import decode_image

# The default: 72 angles.
SPEC = TileSpec()
SIZE = (2272, 1704)
REPETITIONS = 3

Pixels = NDArray[np.uint8]


def make_image(channels: int, size: tuple[int, int] | None = None) -> Pixels:
    """Enlarge a sample, and add the noise of a sensor, which enlarging takes away."""
    width, height = size or SIZE
    samples = Path(__file__).parents[2] / "data_prep" / "samples"
    path = sorted(samples.glob("*/*.png"))[0]
    sample = decode_image(path.read_bytes(), path.name)
    gray = cv2.resize(sample, (width, height), interpolation=3)
    shape = (height, width, channels)
    tinted = gray[:, :, None] * np.array([1.0, 0.85, 0.7])[:channels]
    noise = np.random.default_rng(0).normal(0, 2, shape)
    return np.clip(tinted + noise, 0, 255).astype(np.uint8)


def whole_canvas(image: Pixels, frame: RotatedFrame, interpolation: str) -> Pixels:
    """Turn the whole image by OpenCV."""
    width, height = frame.size
    matrix = cv2.getRotationMatrix2D(((SIZE[0] - 1) / 2, (SIZE[1] - 1) / 2), frame.angle, 1.0)
    matrix[:, 2] += ((width - SIZE[0]) / 2, (height - SIZE[1]) / 2)
    return cv2.warpAffine(image, matrix, (width, height), flags=FLAGS[interpolation])


def by_opencv(image: Pixels) -> int:
    """Turn the whole image for each angle, then slice."""
    count = 0
    for angle in SPEC.angles:
        frame = RotatedFrame(*SIZE, angle)
        count += slice_tiles(whole_canvas(image, frame, SPEC.interpolation), frame)
    return count


def by_pillow(image: Pixels) -> int:
    """Turn the whole image for each angle, then crop, as most scripts do."""
    picture = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
    count = 0
    for angle in SPEC.angles:
        turned = picture.rotate(angle, Image.Resampling.BICUBIC, expand=True)
        x, y = tile_positions(RotatedFrame(*SIZE, angle), SPEC)
        for left, top in zip(x.tolist(), y.tolist(), strict=True):
            np.array(turned.crop((left, top, left + SPEC.tile, top + SPEC.tile)))
        count += x.size
    return count


def by_iter_tiles(image: Pixels) -> int:
    """Cut tiles as the job does."""
    return sum(1 for _ in iter_tiles(image, SPEC))


def slice_tiles(canvas: Pixels, frame: RotatedFrame) -> int:
    """Copy the tiles out of a turned image."""
    x, y = tile_positions(frame, SPEC)
    for left, top in zip(x.tolist(), y.tolist(), strict=True):
        canvas[top : top + SPEC.tile, left : left + SPEC.tile].copy()
    return int(x.size)


def measure(ways: dict[str, Callable[[], int]]) -> dict[str, float]:
    """Return tiles per second of CPU time for each way, interleaved."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPETITIONS):
        for name, way in ways.items():
            began = time.process_time()
            count = way()
            rates[name].append(count / (time.process_time() - began))
    return {name: statistics.median(values) for name, values in rates.items()}


def main() -> None:
    """Measure and print."""
    cv2.setNumThreads(1)
    print(
        f"Tiling one {SIZE[0]}x{SIZE[1]} image, tile 256, overlap 0.5, {len(SPEC.angles)} angles,"
    )
    print("cubic; tiles per second and core (CPU time), medians of 3 interleaved runs:")
    for name, channels in (("gray", 1), ("RGB", 3)):
        image = make_image(channels)
        frame = RotatedFrame(*SIZE, 15.0)
        canvas = whole_canvas(image, frame, "cubic")
        rates = measure(
            {
                "limit: copy out of a ready canvas": partial(slice_tiles, canvas, frame),
                "iter_tiles": partial(by_iter_tiles, image),
                "OpenCV, whole canvas, slices": partial(by_opencv, image),
                "Pillow, rotate and crop": partial(by_pillow, image),
            }
        )
        ours = rates["iter_tiles"]
        for way, rate in rates.items():
            print(f"  {name:<5} {way:<35} {rate:>9,.0f}   iter_tiles is {ours / rate:.2f}x")


if __name__ == "__main__":
    main()
