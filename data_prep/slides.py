"""Slides that the package does not read, refused by name: a part of one would pass for an image.

To other readers a MIRAX slide is a JPEG of its overview. The tiles of a Ventana slide overlap, and
a Philips slide has none where there is no tissue.
"""

from __future__ import annotations

from distkeras_grid.errors import ImageError

ENDINGS = {
    ".mrxs": "MIRAX slide",
    ".vms": "Hamamatsu VMS slide",
    ".vmu": "Hamamatsu VMU slide",
    ".bif": "Ventana slide",
    ".svslide": "Sakura slide",
    ".dcm": "DICOM file",
}
# A DICOM file has this after 128 bytes of anything.
DICOM, DICOM_AT = b"DICM", 128
#: Number of first bytes that tell.
START_BYTES = DICOM_AT + len(DICOM)


def refuse_slide(name: str, start: bytes) -> None:
    """Refuse a file whose name or first bytes say that it is a slide that is not read.

    Parameters
    ----------
    name : str
    start : bytes
        The first `START_BYTES` bytes of the file.

    Raises
    ------
    ImageError
        Names the format and says how to convert it.
    """
    known = next((kind for ending, kind in ENDINGS.items() if name.lower().endswith(ending)), None)
    if start[DICOM_AT:START_BYTES] == DICOM:
        known = ENDINGS[".dcm"]
    if known is not None:
        raise unread(name, known)


def unread(name: str, kind: str) -> ImageError:
    """Return the error for a slide that is not read."""
    return ImageError(
        f"{name} is a {kind}, which is not read. Convert it to a tiled TIFF of its largest level, "
        "for instance by libvips, which reads slides by OpenSlide: vips tiffsave SLIDE SLIDE.tif "
        "--tile --bigtiff --compression jpeg."
    )
