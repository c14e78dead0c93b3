"""What a TIFF file states about its images: channels, significant bits, size of a pixel."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import tifffile

from distkeras_grid.errors import ConfigurationError

# Micrometres in each unit, by the names that the formats use.
MICROMETRES = {
    "pm": 1e-6,
    "å": 1e-4,
    "angstrom": 1e-4,
    "nm": 1e-3,
    "um": 1.0,
    "µm": 1.0,
    "μm": 1.0,
    "\\u00b5m": 1.0,
    "micron": 1.0,
    "microns": 1.0,
    "micrometer": 1.0,
    "mm": 1e3,
    "cm": 1e4,
    "m": 1e6,
    "inch": 25_400.0,
}
RESOLUTION_UNITS = {2: "inch", 3: "cm"}
# Dots per inch of screens and printers: programs write them where nobody measured anything.
PRINT_RESOLUTIONS = (
    *(0, 1, 72, 75, 90, 96, 100, 120, 144, 150, 180, 200, 240),
    *(300, 350, 360, 400, 600, 720, 1200, 2400, 4800),
)
# In the description of Aperio's slides: micrometres per pixel.
APERIO_SIZE = re.compile(r"\|\s*MPP\s*=\s*(?P<size>[0-9.]+)")
LENGTH = re.compile(r"\s*(?P<number>[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*(?P<unit>\D+?)\s*\Z")

Size = tuple[float, float]


def parse_length(text: str) -> float:
    """Return a length such as ``0.5um`` in micrometres.

    Examples
    --------
    >>> parse_length("0.5um"), parse_length("200 nm")
    (0.5, 0.2)
    """
    match = LENGTH.match(text)
    unit = MICROMETRES.get(match["unit"].lower()) if match else None
    try:
        length = float(match["number"]) * unit if match and unit else 0.0
    except ValueError:
        length = 0.0
    if not 0 < length < float("inf"):
        raise ConfigurationError(
            f"A pixel size is a length such as 0.5um, 200nm or 0.001mm. Received: {text!r}."
        )
    return length


@dataclass(frozen=True)
class Ome:
    """What the OME-XML of a file says about one of its images."""

    channels: tuple[str, ...] = ()  # Names of all channels; empty if one has no name
    bits: int | None = None  # Significant bits
    pixel_size: Size | None = None  # Width and height of a pixel, micrometres

    @classmethod
    def of(cls, tiff: tifffile.TiffFile, number: int) -> Ome:
        """Read the part about image `number`; the result is empty if it is missing or damaged."""
        elements = _ome_pixels(tiff)
        if number >= len(elements):
            return cls()
        pixels = elements[number]
        names = tuple(each.get("Name", "") for each in pixels.findall("{*}Channel"))
        bits = pixels.get("SignificantBits", "")
        width, height = (
            micrometres(
                pixels.get(f"PhysicalSize{axis}"), pixels.get(f"PhysicalSize{axis}Unit", "µm")
            )
            for axis in "XY"
        )
        return cls(
            names if all(names) else (),
            int(bits) if bits.isdecimal() else None,
            pixel_size(width, height),
        )


def _ome_pixels(tiff: tifffile.TiffFile) -> list[ElementTree.Element]:
    """Return what the OME-XML says of each image; nothing if it is missing or damaged."""
    try:
        root = ElementTree.fromstring((tiff.ome_metadata or "") if tiff.is_ome else "<OME/>")
    except ElementTree.ParseError:
        return []
    return root.findall("{*}Image/{*}Pixels")


def tiff_pixel_size(tiff: tifffile.TiffFile, page: tifffile.TiffPage, ome: Ome) -> Size | None:
    """Return width and height of a pixel in micrometres, None if the file does not state them.

    OME-XML, the tags of FEI and Zeiss electron microscopes, Aperio's description and ImageJ's unit
    take precedence over the resolution tags. Resolutions of printers and screens are ignored.
    """
    if ome.pixel_size is not None:
        return ome.pixel_size
    if page.is_fei:
        scan = (tiff.fei_metadata or {}).get("Scan", {})
        width, height = (micrometres(scan.get(f"Pixel{name}"), "m") for name in ("Width", "Height"))
        if (size := pixel_size(width, height)) is not None:
            return size
    if page.is_svs and (match := APERIO_SIZE.search(page.description)):
        side = micrometres(match["size"], "um")
        return pixel_size(side, side)
    if page.is_sem:
        return _zeiss(tiff.sem_metadata or {}, int(page.imagewidth))
    if tiff.is_imagej:
        return _per_unit(page, str((tiff.imagej_metadata or {}).get("unit", "")))
    unit = page.tags.get("ResolutionUnit")
    # The format says inches if the tag is missing.
    name = RESOLUTION_UNITS.get(int(unit.value) if unit else 2, "")
    return None if _is_for_print(page, name) else _per_unit(page, name)


def _zeiss(metadata: Mapping[str, Any], width: int) -> Size | None:
    """Return the size of a pixel that the microscope states, for an image of `width` columns."""
    # Older microscopes state the pixel size of an image of 1024 columns.
    lengths = (
        ("ap_image_pixel_size", 1.0),
        ("ap_width", 1 / width),
        ("ap_pixel_size", 1024 / width),
    )
    for name, factor in lengths:
        entry = metadata.get(name)
        if isinstance(entry, tuple) and len(entry) == 3:
            side = micrometres(entry[1], str(entry[2])) * factor
            if (size := pixel_size(side, side)) is not None:
                return size
    return None


def _per_unit(page: tifffile.TiffPage, unit: str) -> Size | None:
    densities = [_density(page, name) for name in ("XResolution", "YResolution")]
    width, height = (micrometres(1 / each, unit) if each else 0.0 for each in densities)
    return pixel_size(width, height)


def _density(page: tifffile.TiffPage, name: str) -> float:
    """Return pixels per unit, 0 if they are not stated."""
    tag = page.tags.get(name)
    if tag is None:
        return 0.0
    over, under = tag.value
    return float(over / under) if under else 0.0


def _is_for_print(page: tifffile.TiffPage, unit: str) -> bool:
    per_inch = _density(page, "XResolution") * (2.54 if unit == "cm" else 1.0)
    return any(abs(per_inch - each) < 0.6 for each in PRINT_RESOLUTIONS)


def micrometres(value: object, unit: str) -> float:
    """Return a length in micrometres, 0 if the number or the unit is none that is known."""
    try:
        return float(str(value)) * MICROMETRES[unit.strip().lower()]
    except (ValueError, KeyError):
        return 0.0


def pixel_size(width: float, height: float) -> Size | None:
    """Return the size of a pixel [micrometres], None unless both sides are lengths."""
    known = all(0 < side < math.inf for side in (width, height))
    return (width, height) if known else None
