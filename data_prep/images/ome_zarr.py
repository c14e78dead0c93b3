"""OME-Zarr images, in one file (a zip archive, ``.ozx``) or in a folder, read by zarr."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import Annotated, Any, BinaryIO

import msgspec
import numpy as np

from data_prep.images.multifile_images import Folder
from data_prep.images.plane_selection import Pixels
from data_prep.images.reader_base import PlaneInfo, library, local_path
from data_prep.images.tiff_metadata import micrometres, pixel_size
from data_prep.images.tiff_planes import PlaneWindow
from distkeras_grid.errors import ImageError

START = b"PK\x03\x04"
UNITS = {
    "angstrom": "angstrom",
    "nanometer": "nm",
    "micrometer": "um",
    "millimeter": "mm",
    "meter": "m",
}


class _Axis(msgspec.Struct):
    name: str
    unit: str | None = None


class _Transformation(msgspec.Struct):
    type: str
    scale: list[float] | None = None


class _Level(msgspec.Struct):
    path: str
    coordinateTransformations: list[_Transformation] = []


class _Multiscale(msgspec.Struct):
    axes: list[_Axis]
    datasets: Annotated[list[_Level], msgspec.Meta(min_length=1)]
    coordinateTransformations: list[_Transformation] = []


class _Channel(msgspec.Struct):
    label: str | None = None


class _Omero(msgspec.Struct):
    channels: list[_Channel] = []


class _Attributes(msgspec.Struct):
    multiscales: Annotated[list[_Multiscale], msgspec.Meta(min_length=1)]
    omero: _Omero | None = None


class ZarrFile:
    """An OME-Zarr archive or folder as a `data_prep.images.reader_base.ImageReader`.

    Pages are images, then times. Only the images at full size count, not the reduced levels.
    """

    def __init__(self, stream: BinaryIO, name: str) -> None:
        zarr = library(lambda: import_module("zarr"), name)
        with ExitStack() as opening:
            if isinstance(stream, Folder):
                store = zarr.storage.LocalStore(stream.path, read_only=True)
            else:
                path = local_path(stream, opening)
                store = opening.enter_context(zarr.storage.ZipStore(path, mode="r"))
            group = zarr.open_group(store, mode="r")
            content = dict(group.attrs)
            try:
                # Version 0.5 puts them below "ome".
                described = msgspec.convert(content.get("ome", content), _Attributes)
            except msgspec.ValidationError as error:
                raise ImageError(
                    f"{name} is no OME-Zarr image: {error}. Convert it, or leave it out by --glob."
                ) from error
            self._images = [
                _Image(group[each.datasets[0].path], each, name) for each in described.multiscales
            ]
            self._resources = opening.pop_all()
        self._pages = [(image, t) for image in self._images for t in range(image.length("t"))]
        self.pages = len(self._pages)
        omero = described.omero
        self._labels = [each.label or "" for each in omero.channels] if omero else []

    def form(self, page: int) -> PlaneInfo:
        """Return what the planes of a page are like."""
        return self._pages[page][0].form(self._labels)

    def read(self, page: int, channel: int, plane: int, window: PlaneWindow) -> Pixels:
        """Decode a rectangle, array [height, width]."""
        image, time = self._pages[page]
        return image.read({"t": time, "c": channel, "z": plane}, window)

    def close(self) -> None:
        """Close the file."""
        self._resources.close()


class _Image:
    """One image of the archive at its full size."""

    def __init__(self, array: Any, described: _Multiscale, name: str) -> None:
        self.array = array
        self._axes = [axis.name for axis in described.axes]
        if (
            len(self._axes) != len(array.shape)
            or not {"y", "x"} <= set(self._axes) <= set("tczyx")
            or len(set(self._axes)) != len(self._axes)
            or 0 in array.shape
        ):
            raise ImageError(
                f"{name} has the axes {', '.join(self._axes)} for an array of shape {array.shape}. "
                "Save it with the axes t, c, z, y and x, or some of them."
            )
        if array.dtype.kind not in "ui":
            raise ImageError(
                f"{name} holds values of the type {array.dtype}. Convert it to 8 or 16 bits."
            )
        self._pixel_size = self._stated_size(described)

    def form(self, labels: Sequence[str]) -> PlaneInfo:
        """Return what its planes are like."""
        channels = self.length("c")
        # A shard holds chunks that can be read separately.
        high, wide = (int(self.array.chunks[self._axes.index(axis)]) for axis in "yx")
        return PlaneInfo(
            (self.length("y"), self.length("x")),
            self.array.dtype.itemsize,
            (high, wide),
            channels,
            self.length("z"),
            labels if len(labels) == channels and all(labels) else (),
            pixel_size=self._pixel_size,
        )

    def length(self, axis: str) -> int:
        """Return the length of an axis, 1 if the axis is missing."""
        return int(self.array.shape[self._axes.index(axis)]) if axis in self._axes else 1

    def read(self, places: dict[str, int], window: PlaneWindow) -> Pixels:
        """Return a rectangle of a plane."""
        parts: dict[str, int | slice] = {
            **places,
            "y": slice(window.top, window.bottom),
            "x": slice(window.left, window.right),
        }
        pixels = np.asarray(self.array[tuple(parts[axis] for axis in self._axes)])
        return pixels if self._axes.index("y") < self._axes.index("x") else pixels.T

    def _stated_size(self, described: _Multiscale) -> tuple[float, float] | None:
        transformations = (
            *described.datasets[0].coordinateTransformations,
            *described.coordinateTransformations,
        )
        scales = [each.scale for each in transformations if each.scale]
        sides = [0.0, 0.0]
        for place, name in enumerate("xy"):
            at = self._axes.index(name)
            unit = UNITS.get(described.axes[at].unit or "", "")
            if scales and all(len(each) > at for each in scales):
                sides[place] = micrometres(math.prod(each[at] for each in scales), unit)
        return pixel_size(*sides)
