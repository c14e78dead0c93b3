"""Leica LIF and LOF files, read by liffile."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from typing import Any, BinaryIO

import numpy as np

from data_prep.picture import Pixels
from data_prep.tiff_planes import Window
from data_prep.vendor import Form, library, local_path, places_of
from distkeras_grid.errors import ImageError

START = b"\x70\0\0\0"
# Pixels are stored row by row, so any rectangle can be mapped.
GRAIN = (256, 256)
# Axes of a plane; S are red, green and blue.
PLANE_AXES = "CZYXS"
# Axes that are the rows and columns of an image, and the numbers of the axes in the file. In a scan
# across the focal planes, the planes are the rows.
SIDES = (("Y", "X"), ("Z", "X"), ("Z", "Y"))
NUMBERS = {"X": "1", "Y": "2", "Z": "3"}


class LifFile:
    """A file of Leica as a `data_prep.vendor.Container`.

    Pages are its images, then times, positions, wavelengths, and any further axes of an image.

    Parameters
    ----------
    stream : file
    name : str
        Named in errors.
    """

    def __init__(self, stream: BinaryIO, name: str) -> None:
        liffile = library(lambda: import_module("liffile"), name)
        self._name = name
        with ExitStack() as opening:
            path = local_path(stream, opening)
            file = opening.enter_context(liffile.LifFile(path))
            self._bytes = os.path.getsize(path)
            # Series without rows and columns are not images: lifetimes, and lines over time.
            images = [each for each in file.images if _sides(each.sizes)]
            self._pages = [(each, place) for each in images for place in _places(each.sizes)]
            self._resources = opening.pop_all()
        if not self._pages:
            raise ImageError(f"{name} holds no image. Remove it.")
        self.pages = len(self._pages)

    def form(self, page: int) -> Form:
        """Return what the planes of a page are like."""
        image, _ = self._pages[page]
        sizes, dtype = image.sizes, image.dtype
        if dtype.kind != "u" or sizes.get("S", 1) not in (1, 3):
            raise ImageError(
                f"{self._name} holds {sizes.get('S', 1)} samples of {dtype} in a pixel. Convert it "
                "to 8 or 16 bits, gray or RGB."
            )
        if image.memory_block.offset + image.memory_block.size > self._bytes:
            raise ImageError(f"{self._name} ends before its pixels do. Copy it again.")
        rows, columns = _sides(sizes) or SIDES[0]
        is_colour = sizes.get("S", 1) == 3
        if is_colour and rows == "Z":
            raise ImageError(
                f"{self._name} holds a scan across the focal planes in colour. Convert it to TIFF."
            )
        descriptions = image.xml_element.findall(".//ChannelDescription")
        bits = {int(each.get("Resolution", 0)) for each in descriptions}
        return Form(
            (sizes[rows], sizes[columns]),
            dtype.itemsize,
            # Red and blue are exchanged for the whole image.
            (sizes[rows], sizes[columns]) if is_colour else GRAIN,
            sizes.get("C", 1),
            1 if rows == "Z" else sizes.get("Z", 1),
            (),
            is_colour,
            bits.pop() if len(bits) == 1 else None,
            _pixel_size(image.xml_element, rows, columns),
        )

    def read(self, page: int, channel: int, plane: int, window: Window) -> Pixels:
        """Decode a rectangle, array [height, width] or [height, width, 3]."""
        image, place = self._pages[page]
        at = {**place, "C": channel, "Z": plane}
        if "S" in image.sizes:
            at = {axis: number for axis, number in at.items() if axis in image.sizes}
            found = image.frame(**at)[window.top : window.bottom, window.left : window.right]
            return np.asarray(found if found.shape[-1] == 3 else found[..., 0])
        rows, columns = _sides(image.sizes) or SIDES[0]
        parts: dict[str, int | slice] = {
            **at,
            rows: slice(window.top, window.bottom),
            columns: slice(window.left, window.right),
        }
        axes = list(image.sizes)
        mapped = image.asarray(out="memmap")
        found = np.asarray(mapped[tuple(parts[axis] for axis in axes)])
        return found if axes.index(rows) < axes.index(columns) else found.T

    def close(self) -> None:
        """Close the file."""
        self._resources.close()


def _sides(sizes: Mapping[str, int]) -> tuple[str, str] | None:
    """Return the axes that are the rows and the columns of an image; None if it has none."""
    return next((sides for sides in SIDES if set(sides) <= set(sizes)), None)


def _places(sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """Return all places on the axes that do not belong to a plane."""
    return places_of({axis: sizes[axis] for axis in sizes if axis not in PLANE_AXES})


def _pixel_size(image: Any, rows: str, columns: str) -> tuple[float, float] | None:
    """Return the size of a pixel from the XML of an image; its lengths are in metres."""
    sides = []
    for number in (NUMBERS[columns], NUMBERS[rows]):
        found = image.find(f".//DimensionDescription[@DimID='{number}']")
        if found is None or found.get("Unit") != "m":
            return None
        # The length is from the centre of the first pixel to that of the last.
        steps = int(found.get("NumberOfElements")) - 1
        sides.append(float(found.get("Length")) / max(1, steps) * 1e6)
    return (sides[0], sides[1]) if all(0 < side < float("inf") for side in sides) else None
