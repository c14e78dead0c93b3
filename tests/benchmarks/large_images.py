"""Peak memory of tiling one large tiled TIFF, and one of twice its height: all processes together.

Each image is RGB, 512x512 tiles, JPEG; it is cut at three angles (0, 20 and 110 degrees) into tiles
of 256 without overlap by ``distkeras-grid tile``, in a process of its own. The memory of the
command, of Spark's JVM and of its Python workers is added up twice a second. Pages that several
processes share count once (Linux' PSS): the JVM forks to run commands, and would count twice.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import psutil
import tifffile
from numpy.typing import NDArray

WIDTH, HEIGHTS = 20_000, (20_000, 40_000)
SIDE = 512
FLAGS = ("--tile", "256", "--overlap", "0", "--angles", "0,20,110", "--split", "1")
COMMAND = "import sys; from distkeras_grid.cli.main import main; sys.exit(main())"


def pieces(height: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the tiles of an image with texture and the noise of a sensor."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (300, 300, 3), dtype=np.uint8)
    texture = cv2.resize(coarse, (2048, 2048), interpolation=cv2.INTER_CUBIC)
    for top in range(0, height, SIDE):
        for left in range(0, WIDTH, SIDE):
            part = np.roll(texture, (top * 7, left * 3), (0, 1))[:SIDE, :SIDE]
            noisy = part + rng.integers(-3, 4, part.shape, dtype=np.int16)
            yield np.clip(noisy, 0, 255).astype(np.uint8)


def measure(images: Path, output: Path) -> tuple[float, dict[str, float]]:
    """Tile, and return seconds and the peak by process, GB."""
    began = time.monotonic()
    peak: dict[str, float] = {}
    flags = ("tile", "--input", str(images), "--output", str(output), *FLAGS)
    job = subprocess.Popen([sys.executable, "-c", COMMAND, *flags], stdout=subprocess.DEVNULL)
    while job.poll() is None:
        now: dict[str, float] = {}
        for process in (psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)):
            try:
                name = f"{process.name()} {process.pid}"
                now[name] = process.memory_full_info().pss / 1e9
            except psutil.Error:
                continue  # it has ended meanwhile
        peak = max(peak, now, key=lambda each: sum(each.values()))
        time.sleep(0.5)
    if job.returncode:
        raise SystemExit(job.returncode)
    return time.monotonic() - began, peak


def main() -> None:
    """Measure and print."""
    print(f"Tiling one RGB TIFF of {WIDTH} pixels width, {' '.join(FLAGS)}:")
    for height in HEIGHTS:
        with tempfile.TemporaryDirectory() as folder:
            images = Path(folder) / "images"
            (images / "a").mkdir(parents=True)
            tifffile.imwrite(
                images / "a" / "large.tif",
                pieces(height),
                shape=(height, WIDTH, 3),
                dtype=np.uint8,
                tile=(SIDE, SIDE),
                photometric="rgb",
                compression="jpeg",
            )
            seconds, peak = measure(images, Path(folder) / "tiles")
        parts = ", ".join(
            f"{name.split()[0]} {size:.2f}"
            for name, size in sorted(peak.items(), key=lambda item: -item[1])
            if size > 0.05
        )
        print(
            f"  {WIDTH}x{height}: peak {sum(peak.values()):.2f} GB ({parts}), {seconds:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
