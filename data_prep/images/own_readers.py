"""Readers of image formats that other installed packages bring: entry points of one group.

The name of an entry point is the ending of a file name, without a dot and in lower case. Its object
is called with an open file and the name of the image, and returns a
`data_prep.images.reader_base.ImageReader`.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, BinaryIO

from distkeras_grid.errors import ImageError

if TYPE_CHECKING:
    from data_prep.images.reader_base import ImageReader

GROUP = "distkeras_grid.readers"
# The readers of this package would take these for the JPEG of an overview (MIRAX), and for a TIFF
# whose tiles do not overlap (Ventana).
NEED_A_READER = (".mrxs", ".bif")


@cache
def _installed() -> dict[str, list[EntryPoint]]:
    readers: dict[str, list[EntryPoint]] = {}
    for each in entry_points(group=GROUP):
        readers.setdefault(each.name.lower(), []).append(each)
    return readers


def _readers_of(name: str) -> list[EntryPoint]:
    return _installed().get(name.rpartition(".")[2].lower(), [])


def has_own_reader(name: str) -> bool:
    """Tell whether an installed package brings a reader for files of this name."""
    return bool(_readers_of(name))


def open_by_own_reader(stream: BinaryIO, name: str) -> ImageReader | None:
    """Open an image by the reader that an installed package brings for it, None without one."""
    readers = _readers_of(name)
    if not readers:
        if name.lower().endswith(NEED_A_READER):
            raise ImageError(
                f"{name} needs a reader of its own. Install a package with the entry point "
                f"{name.rpartition('.')[2].lower()} of the group {GROUP} on all hosts, or convert "
                "the image to a tiled TIFF."
            )
        return None
    if len(readers) > 1:
        values = ", ".join(sorted(each.value for each in readers))
        raise ImageError(f"{name} has several readers ({values}). Uninstall all but one.")
    try:
        open_file = readers[0].load()
    except (ImportError, AttributeError) as error:
        raise ImageError(
            f"{name}: its reader {readers[0].value} cannot be imported ({error}). Install what is "
            "missing on all hosts."
        ) from error
    container: ImageReader = open_file(stream, name)
    return container
