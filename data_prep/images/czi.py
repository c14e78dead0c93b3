"""Zeiss CZI files, by Zeiss' own library (pylibCZIrw)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from typing import Any, BinaryIO

import numpy as np

from data_prep.images.plane_selection import Pixels
from data_prep.images.reader_base import PlaneInfo, library, local_path
from data_prep.images.tiff_metadata import micrometres, pixel_size
from data_prep.images.tiff_planes import PlaneWindow
from distkeras_grid.errors import ImageError

START = b"ZISRAWFILE"
# Bytes of a value, by pixel type; others are complex numbers or floating point.
ITEMSIZES = {"Gray8": 1, "Gray16": 2, "Bgr24": 1, "Bgr48": 2}
# A file consists of fields of view of any size. Reading joins those that a rectangle touches.
GRAIN = (1024, 1024)
# Times, rotations, illuminations, phases, views and blocks.
PAGE_AXES = "TRIHVB"


class CziFile:
    """A CZI file as a `data_prep.images.reader_base.ImageReader`.

    Pages are scenes, then times, then rotations, illuminations, phases, views and blocks.
    """

    def __init__(self, stream: BinaryIO, name: str) -> None:
        czi = library(lambda: import_module("pylibCZIrw.czi"), name)
        with ExitStack() as opening:
            path = local_path(stream, opening)
            self._file: Any = opening.enter_context(czi.open_czi(path))
            self._describe(name)
            self._resources = opening.pop_all()

    def _describe(self, name: str) -> None:
        kinds = set(self._file.pixel_types.values())
        if len(kinds) != 1 or not kinds <= set(ITEMSIZES):
            raise ImageError(
                f"{name} has pixels of the types {', '.join(sorted(kinds))}. Convert it to 8 or 16 "
                "bits, all channels alike."
            )
        (kind,) = kinds
        self._is_colour = kind.startswith("Bgr")
        lengths = {
            axis: stop - start for axis, (start, stop) in self._file.total_bounding_box.items()
        }
        self._firsts = {axis: start for axis, (start, _) in self._file.total_bounding_box.items()}
        scenes = dict(self._file.scenes_bounding_rectangle) or {
            None: self._file.total_bounding_rectangle
        }
        axes = [axis for axis in PAGE_AXES if axis in lengths]
        places = [
            dict(zip(axes, place, strict=True))
            for place in np.ndindex(*(lengths[axis] for axis in axes))
        ]
        self._pages = [(scene, place) for scene in scenes.items() for place in places]
        self.pages = len(self._pages)
        metadata = _below(self._file.metadata, "ImageDocument", "Metadata")
        image = _below(metadata, "Information", "Image")
        names = [
            str(_below(each).get("@Name", ""))
            for each in _listed(_below(image, "Dimensions", "Channels").get("Channel"))
        ]
        channels, bits = lengths.get("C", 1), str(image.get("ComponentBitCount", ""))
        self._form = PlaneInfo(
            (0, 0),
            ITEMSIZES[kind],
            GRAIN,
            channels,
            lengths.get("Z", 1),
            names if len(names) == channels and all(names) else (),
            self._is_colour,
            int(bits) if bits.isdecimal() else None,
            _pixel_size(metadata),
        )

    def form(self, page: int) -> PlaneInfo:
        """Return what the planes of a page are like."""
        (_, rectangle), _ = self._pages[page]
        return replace(self._form, size=(rectangle.h, rectangle.w))

    def read(self, page: int, channel: int, plane: int, window: PlaneWindow) -> Pixels:
        """Decode a rectangle, array [height, width] or [height, width, 3]."""
        (scene, rectangle), others = self._pages[page]
        region = (
            *(rectangle.x + window.left, rectangle.y + window.top),
            *(window.right - window.left, window.bottom - window.top),
        )
        wanted = {**others, "C": channel, "Z": plane}
        place = {axis: at + self._firsts.get(axis, 0) for axis, at in wanted.items()}
        pixels: Pixels = self._file.read(roi=region, plane=place, scene=scene)
        # The library gives blue first.
        return pixels[:, :, ::-1] if self._is_colour else pixels[:, :, 0]

    def close(self) -> None:
        """Close the file."""
        self._resources.close()


def _below(tree: Any, *path: str) -> Mapping[str, Any]:
    """Return a branch of the metadata, an empty one where there is none."""
    for name in path:
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree if isinstance(tree, Mapping) else {}


def _listed(entry: Any) -> list[Any]:
    """Return a list of the entries, whether there is one or several."""
    return entry if isinstance(entry, list) else [] if entry is None else [entry]


def _pixel_size(metadata: Mapping[str, Any]) -> tuple[float, float] | None:
    sides = {"X": 0.0, "Y": 0.0}
    for each in _listed(_below(metadata, "Scaling", "Items").get("Distance")):
        entry = _below(each)
        sides[str(entry.get("@Id"))] = micrometres(entry.get("Value"), "m")
    return pixel_size(sides["X"], sides["Y"])
