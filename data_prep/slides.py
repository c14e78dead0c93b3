"""Slides of scanners that tifffile does not read as they are, by openslide.

These are MIRAX (``.mrxs``), Ventana (``.bif``), Hamamatsu VMS (``.vms``), Sakura (``.svslide``),
DICOM (``.dcm``) and Philips TIFF. Of some another reader would make a wrong picture: to it a MIRAX
slide is a JPEG of its overview, the tiles of a Ventana slide overlap, and a Philips slide has none
where there is no tissue.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, ImageColor

from data_prep.folders import COMPANIONS, Companions
from data_prep.picture import Pixels
from data_prep.tiff import open_tiff, warnings_kept_away
from data_prep.tiff_planes import Window
from data_prep.vendor import Form, library, local_path
from distkeras_grid.errors import ImageError

ENDINGS = (".bif", ".svslide", *COMPANIONS)
# Size of the parts that are decoded at once where a slide does not tell, pixels.
GRAIN = 512
WHITE = "ffffff"
# A DICOM file has this after 128 bytes of anything.
DICOM, DICOM_AT = b"DICM", 128
# Number of first bytes that tell.
START_BYTES = DICOM_AT + len(DICOM)


def is_slide(stream: BinaryIO, name: str, start: bytes, *, is_tiff: bool) -> bool:
    """Tell whether openslide reads a file.

    Parameters
    ----------
    stream : file
    name : str
    start : bytes
        The first `START_BYTES` bytes.
    is_tiff : bool
        Whether it is a TIFF, which tells its scanner.
    """
    if name.lower().endswith(ENDINGS) or _is_dicom(start):
        return True
    if not is_tiff:
        return False
    with warnings_kept_away():
        page = open_tiff(stream, name).pages.first
        found = bool(page.is_philips or page.is_bif)
    stream.seek(0)
    return found


class SlideFile:
    """A slide as a `data_prep.vendor.Container`: one page in colour, at full size.

    Parameters
    ----------
    stream : file
    name : str
        Named in errors.
    """

    pages = 1

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._name = name
        self._library = library(lambda: import_module("openslide"), name, "slides")
        is_of_many = name.lower().endswith(COMPANIONS) or _is_dicom(stream.read(START_BYTES))
        if is_of_many and not isinstance(stream, Companions):
            raise ImageError(
                f"{name} has its pixels in files beside it, which can only be read from local and "
                f"mounted paths, and by its ending ({', '.join(COMPANIONS)}). Copy all of them "
                "there, or convert the slide to a tiled TIFF."
            )
        with ExitStack() as opening, self._damage_told():
            if isinstance(stream, Companions):
                path = str(stream.path)
            else:
                path = local_path(stream, opening)
            self._slide: Any = opening.enter_context(self._library.OpenSlide(path))
            self._describe(self._slide.properties)
            self._resources = opening.pop_all()

    def _describe(self, said: Any) -> None:
        width, height = self._slide.dimensions
        # What was scanned, where it is a small part of the whole slide.
        self._left, self._top = (_whole(said, f"openslide.bounds-{side}", 0) for side in "xy")
        size = (
            _whole(said, "openslide.bounds-height", height),
            _whole(said, "openslide.bounds-width", width),
        )
        grain = (
            _whole(said, "openslide.level[0].tile-height", GRAIN),
            _whole(said, "openslide.level[0].tile-width", GRAIN),
        )
        self._form = Form(size, 1, grain, is_colour=True, pixel_size=_pixel_size(said))
        self._background = "#" + said.get("openslide.background-color", WHITE)
        ImageColor.getrgb(self._background)

    def form(self, page: int) -> Form:  # noqa: ARG002  there is one
        """Return what the planes of a page are like."""
        return self._form

    def read(
        self,
        page: int,  # noqa: ARG002  there is one
        channel: int,  # noqa: ARG002
        plane: int,  # noqa: ARG002
        window: Window,
    ) -> Pixels:
        """Decode a rectangle, array [height, width, 3]; what was not scanned is background."""
        size = window.right - window.left, window.bottom - window.top
        with self._damage_told():
            place = self._left + window.left, self._top + window.top
            region = self._slide.read_region(place, 0, size)
        under = Image.new("RGB", size, self._background)
        under.paste(region, mask=region.getchannel("A"))
        return np.asarray(under)

    def close(self) -> None:
        """Close the file."""
        self._resources.close()

    @contextmanager
    def _damage_told(self) -> Iterator[None]:
        try:
            yield
        except self._library.OpenSlideError as error:
            raise ImageError(
                f"{self._name} cannot be read as a slide ({error}). Repair or remove it, or leave "
                "it out by --glob."
            ) from error


def _is_dicom(start: bytes) -> bool:
    return start[DICOM_AT:START_BYTES] == DICOM


def _whole(said: Any, name: str, default: int) -> int:
    return int(said.get(name, default))


def _pixel_size(said: Any) -> tuple[float, float] | None:
    try:
        sides = [float(said.get(f"openslide.mpp-{axis}", 0)) for axis in "xy"]
    except ValueError:
        return None
    return (sides[0], sides[1]) if all(0 < side < float("inf") for side in sides) else None
