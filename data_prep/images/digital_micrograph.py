"""Gatan's dm3 and dm4 files, read by RosettaSciIO."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import Any, BinaryIO

import numpy as np

from data_prep.images.plane_selection import Pixels
from data_prep.images.reader_base import PlaneInfo, library, local_path
from data_prep.images.tiff_metadata import micrometres, pixel_size
from data_prep.images.tiff_planes import PlaneWindow
from distkeras_grid.errors import ImageError

STARTS = (b"\0\0\0\x03", b"\0\0\0\x04")
EXTRA = "dm"
# Bytes of the parts that the library maps.
PART_BYTES = "4MiB"
# Axes with these names belong to an image; others are energies and wavelengths.
AXES = (("y", "x"), ("z", "y", "x"))


@dataclass(frozen=True)
class _DmImage:
    data: Any
    form: PlaneInfo


class DmFile:
    """A dm3 or dm4 file as an `ImageReader`; pages are the images of stacks.

    Thumbnails do not count.
    """

    def __init__(self, stream: BinaryIO, name: str) -> None:
        reader = library(lambda: import_module("rsciio.digitalmicrograph"), name, EXTRA)
        # Arguments by which the library reads.
        self._dask = library(lambda: import_module("dask"), name, EXTRA)
        with ExitStack() as opening:
            path = local_path(stream, opening)
            with self._dask.config.set({"array.chunk-size": PART_BYTES}):
                signals = _signals(reader, path)
            images = [_described(each, name) for each in signals]
            self._resources = opening.pop_all()
        self._pages = [
            (image, number)
            for image in images
            for number in range(image.data.shape[0] if image.data.ndim == 3 else 1)
        ]
        if not self._pages:
            raise ImageError(f"{name} holds no image. Remove it.")
        self.pages = len(self._pages)

    def form(self, page: int) -> PlaneInfo:
        """Return what the planes of a page are like."""
        return self._pages[page][0].form

    def read(self, page: int, channel: int, plane: int, window: PlaneWindow) -> Pixels:  # noqa: ARG002
        """Decode a rectangle, array [height, width] or [height, width, 3]."""
        image, number = self._pages[page]
        data = image.data[number] if image.data.ndim == 3 else image.data
        part = data[window.top : window.bottom, window.left : window.right]
        # In this thread: a task has one core.
        pixels = np.asarray(self._dask.compute(part, scheduler="synchronous")[0])
        if image.form.is_colour:
            return np.stack([pixels[name] for name in "RGB"], axis=-1)
        return pixels

    def close(self) -> None:
        """Close the file."""
        self._resources.close()


def _signals(reader: Any, path: str) -> list[dict[str, Any]]:
    """Return what a file holds; only colour is read at once, which cannot be mapped."""
    try:
        return list(reader.file_reader(path, lazy=True))
    except ValueError as error:
        if "RGBA" not in str(error):
            raise
    return list(reader.file_reader(path, lazy=False))


def _described(signal: dict[str, Any], name: str) -> _DmImage:
    data, axes = signal["data"], {axis["name"]: axis for axis in signal["axes"]}
    is_colour = data.dtype.names is not None
    if tuple(axes) not in AXES:
        raise ImageError(
            f"{name} has the axes {', '.join(map(str, axes))}. Only images and stacks of images "
            "can be tiled."
        )
    if not is_colour and data.dtype.kind not in "ui":
        raise ImageError(
            f"{name} holds values of the type {data.dtype}. Convert it to 8 or 16 bits, so that "
            "black and white mean the same in every image."
        )
    height, width = data.shape[-2:]
    chunks = getattr(data, "chunksize", data.shape)
    form = PlaneInfo(
        (height, width),
        1 if is_colour else data.dtype.itemsize,
        (chunks[-2], chunks[-1]),
        is_colour=is_colour,
        pixel_size=_pixel_size(axes),
    )
    return _DmImage(data, form)


def _pixel_size(axes: dict[str, dict[str, Any]]) -> tuple[float, float] | None:
    """Return the size of a pixel; a diffraction pattern, in 1/nm, has none."""
    width, height = (micrometres(axes[name]["scale"], str(axes[name]["units"])) for name in "xy")
    return pixel_size(width, height)
