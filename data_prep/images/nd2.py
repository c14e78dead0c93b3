"""Nikon ND2 files, by nd2."""

from __future__ import annotations

import os
from contextlib import ExitStack
from importlib import import_module
from typing import Any, BinaryIO

import numpy as np

from data_prep.images.plane_selection import Pixels
from data_prep.images.reader_base import PlaneInfo, library, local_path
from data_prep.images.tiff_metadata import pixel_size
from data_prep.images.tiff_planes import PlaneWindow
from distkeras_grid.errors import ImageError

START = b"\xda\xce\xbe\x0a"
# Frames that are not compressed are mapped.
GRAIN = (256, 256)
COLOUR_SAMPLES = 3


class Nd2File:
    """An ND2 file as an `ImageReader`; pages are times and positions."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        nd2 = library(lambda: import_module("nd2"), name)
        self._name = name
        with ExitStack() as opening:
            path = local_path(stream, opening)
            self._file: Any = opening.enter_context(nd2.ND2File(path))
            self._describe(os.path.getsize(path))
            self._resources = opening.pop_all()

    def _describe(self, length: int) -> None:
        file, name = self._file, self._name
        attributes, dtype = file.attributes, file.dtype
        self._channels = attributes.channelCount or 1
        self._samples = attributes.componentCount // self._channels
        is_colour = self._samples == COLOUR_SAMPLES
        if dtype.kind != "u" or not (self._samples == 1 or (is_colour and self._channels == 1)):
            raise ImageError(
                f"{name} holds {self._channels} channels of {self._samples} samples of {dtype}. "
                "Convert it to 8 or 16 bits, gray or RGB."
            )
        self._size = attributes.heightPx, attributes.widthPx or 0
        self._recorded = attributes.sequenceCount
        is_packed = attributes.compressionType is not None
        plane = attributes.heightPx * (attributes.widthBytes or 0)
        if not is_packed and plane * self._recorded > length:
            raise ImageError(f"{name} ends before its pixels do. Copy it again.")
        self._pages = _frames_by_page(file.loop_indices)
        self.pages = len(self._pages)
        channels = file.metadata.channels or []
        names = [each.channel.name or "" for each in channels]
        calibrated = bool(channels) and all(channels[0].volume.axesCalibrated[:2])
        size = file.voxel_size()
        self._form = PlaneInfo(
            self._size,
            dtype.itemsize,
            self._size if is_packed else GRAIN,
            self._channels,
            max(map(len, self._pages)),
            names if len(names) == self._channels and all(names) else (),
            is_colour,
            attributes.bitsPerComponentSignificant,
            pixel_size(size.x, size.y) if calibrated else None,
        )

    def form(self, page: int) -> PlaneInfo:  # noqa: ARG002
        """Return what the planes of a page are like."""
        return self._form

    def read(self, page: int, channel: int, plane: int, window: PlaneWindow) -> Pixels:
        """Decode a rectangle, array [height, width] or [height, width, 3]."""
        frame = self._pages[page][plane]
        if frame >= self._recorded:
            # The library would return zeros.
            raise ImageError(
                f"{self._name} ends before frame {frame}: only {self._recorded} were recorded. "
                "Choose others by --page and --z, or leave it out by --glob."
            )
        # The library drops axes of length 1.
        pixels = self._file.read_frame(frame).reshape(self._channels, *self._size, self._samples)
        part = pixels[channel, window.top : window.bottom, window.left : window.right]
        # Blue is stored first. A copy: the file's mapping ends when it is closed.
        return np.array(part[:, :, ::-1] if self._form.is_colour else part[:, :, 0], order="C")

    def close(self) -> None:
        """Close the file."""
        self._resources.close()


def _frames_by_page(loops: tuple[dict[str, int], ...]) -> list[list[int]]:
    """Return the numbers of the frames, by page and focal plane.

    Examples
    --------
    >>> _frames_by_page(({"T": 0, "Z": 0}, {"T": 0, "Z": 1}, {"T": 1, "Z": 0}, {"T": 1, "Z": 1}))
    [[0, 1], [2, 3]]
    """
    pages: dict[tuple[tuple[str, int], ...], dict[int, int]] = {}
    for frame, place in enumerate(loops or ({},)):
        page = tuple((axis, number) for axis, number in place.items() if axis != "Z")
        pages.setdefault(page, {})[place.get("Z", 0)] = frame
    return [[planes[z] for z in sorted(planes)] for planes in pages.values()]
