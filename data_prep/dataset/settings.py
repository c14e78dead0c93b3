"""All settings of a tiling job."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from typing import Any

from data_prep.dataset.history import parse_keep
from data_prep.geometry.filters import parse_filter
from data_prep.geometry.grid import TileSpec
from data_prep.images.intensity import MACENKO, parse_normalising
from data_prep.images.open_image import MAX_PIXELS, SUFFIXES
from data_prep.images.plane_selection import PlaneSelector
from data_prep.images.tiff_metadata import parse_length
from data_prep.splits.assign import parse_fractions
from data_prep.splits.labels import compile_pattern, parse_rule
from distkeras_grid.errors import ConfigurationError

CHOICES = {
    "encoding": ("raw", "difference", "png", "jpeg"),
    "on_error": ("fail", "skip"),
    "channels": ("auto", "1", "3"),
    "near_duplicates": ("join", "report", "off"),
}
# Least and largest value, and the unit of the least.
LIMITS = {
    "quality": (1, 100, ""),
    "bits": (8, 16, ""),
    "bottom_strip": (0, math.inf, " rows"),
    "report_images": (0, math.inf, " images"),
    "max_pixels": (1, math.inf, ""),
}


def suffix_glob() -> str:
    """Return the Hadoop glob of all image suffixes, in any case."""
    either_case = (
        "".join(f"[{letter}{letter.upper()}]" for letter in suffix) for suffix in SUFFIXES
    )
    return "*.{" + ",".join(either_case) + "}"


@dataclass(frozen=True)
class TilingSettings:
    """Which images to cut, how to cut them, and where to write the tiles.

    Parameters
    ----------
    input : str
        Folder of images, including its subfolders; any Hadoop path.
    output : str
        Folder of the data set.
    spec : TileSpec
    labels : str, default "folder"
        See `data_prep.splits.labels.annotate`.
    group : str, optional
        Regular expression with a group named ``group``: images of one group share a split.
    split : str, default "0.8:0.1:0.1"
        Shares of train, validation and test.
    seed : int, default 0
        Seed of the split.
    allow_empty : bool, default False
        Accept that a split has no tile of some class.
    near_duplicates : {"join", "report", "off"}, default "join"
        For images that show the same place: ``join`` keeps them in one split, ``report`` only
        lists them, ``off`` does not look for them.
    encoding : {"raw", "difference", "png", "jpeg"}, default "raw"
        Raw pixels, which Parquet compresses by zstd without loss; each row of pixels as its
        difference from the row above, compressed in the same way to fewer bytes; PNG, without
        loss; or JPEG.
    quality : int, default 90
        Quality of JPEG, 1 to 100.
    channels : {"auto", "1", "3"} or int, default "auto"
        Kept as text. ``auto`` keeps the channels of the images, and refuses a mixture.
    on_error : {"fail", "skip"}, optional
        What to do with an image that cannot be tiled. ``fail`` ends the job before anything is
        written. ``skip`` leaves the image out, lists it, and tries it again in the next update.
        Default: ``"skip"`` with `update`, otherwise ``"fail"``.
    page, channel, z : optional
        Which image to take from files that hold several; see
        `data_prep.images.plane_selection.PlaneSelector`.
    bits : int, optional
        Significant bits of 16-bit images, 8 to 16. Default: measured once, and kept for as long as
        the data set is added to.
    pixel_size : str, optional
        A length such as ``0.5um``: all images are resampled to it before they are cut.
    source_pixel_size : str, optional
        Pixel size of all images, which replaces what their files state.
    zones : str, optional
        A CSV table or GeoJSON file of zones that tiles keep off; see
        `data_prep.geometry.regions.read_zones`.
    bottom_strip : int, default 0
        Number of rows at the bottom of each image that tiles keep off, pixels.
    max_pixels : int, default 178,956,970
        Larger images that can only be decoded as a whole are refused.
    normalise : str, optional
        ``min-max``, ``percentile:LOW:HIGH`` or ``standard``: bring the values of each image to one
        range. ``macenko``: bring the stains of histology to those of a reference. See
        `data_prep.images.intensity.Normalization`.
    keep : str, optional
        Conditions such as ``bg_fraction<0.9,focus>=0.01``, which tiles must meet; others are not
        stored. See `data_prep.geometry.filters.parse_filter`.
    glob : str, optional
        Pattern of file names to take. Default: all PNG, JPEG, TIFF and BMP suffixes.
    overwrite : bool, default False
        Replace the data set of tiles in the output folder, once the new one is complete.
    update : bool, default False
        Add what has changed to the data set in the output folder; see
        `data_prep.dataset.update.update_tiles`.
    prune : bool, default False
        With `update`: also drop the tiles of images that were removed.
    new_classes : bool, default False
        With `update`: accept images of classes that the data set does not have. A new class gets
        the next number; existing tiles do not change.
    keep_versions : str, optional
        How long former versions can be read after their shards were replaced: the newest ``"10"``
        versions, or ``"30d"``, 30 days. Default: 7 days; see `data_prep.dataset.history`.
    report_images : int, default 300
        Number of images of a run that its report shows with their tiles.

    Raises
    ------
    ConfigurationError
        If a value cannot be used.

    Examples
    --------
    >>> TilingSettings("images", "tiles", TileSpec(128), split="0.8:0.2").fractions
    {'train': 0.8, 'test': 0.2}
    """

    input: str
    output: str
    spec: TileSpec = field(default_factory=TileSpec)
    labels: str = "folder"
    group: str | None = None
    split: str = "0.8:0.1:0.1"
    seed: int = 0
    allow_empty: bool = False
    near_duplicates: str = "join"
    encoding: str = "raw"
    quality: int = 90
    channels: str | int = "auto"
    on_error: str | None = None
    page: int | None = None
    channel: str | None = None
    z: str | None = None
    bits: int | None = None
    pixel_size: str | None = None
    source_pixel_size: str | None = None
    zones: str | None = None
    bottom_strip: int = 0
    max_pixels: int = MAX_PIXELS
    normalise: str | None = None
    keep: str | None = None
    glob: str | None = None
    overwrite: bool = False
    update: bool = False
    prune: bool = False
    new_classes: bool = False
    keep_versions: str | None = None
    report_images: int = 300

    def __post_init__(self) -> None:
        if self.on_error is None:
            object.__setattr__(self, "on_error", "skip" if self.update else "fail")
        if type(self.channels) is int:
            object.__setattr__(self, "channels", str(self.channels))
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise ConfigurationError(
                    f"{name} must be one of {', '.join(known)}. Received: {getattr(self, name)!r}."
                )
        if not self.input or not self.output:
            raise ConfigurationError("input and output must be paths. Received: an empty one.")
        self._check_numbers()
        for name in ("new_classes", "prune"):
            if getattr(self, name) and not self.update:
                raise ConfigurationError(f"{name} is a part of update. Give both, or none.")
        if self.update and self.overwrite:
            raise ConfigurationError("update keeps a data set and overwrite replaces it. Give one.")
        parse_fractions(self.split)
        parse_keep(self.keep_versions)
        PlaneSelector(self.page, self.channel, self.z)
        parse_rule(self.labels)
        if self.group is not None:
            compile_pattern(self.group, "group")

    def _check_numbers(self) -> None:
        for name, (least, most, unit) in LIMITS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                limits = f"{least} to {most}" if math.isfinite(most) else f"{least}{unit} or more"
                raise ConfigurationError(f"{name} must be {limits}. Received: {value!r}.")
        if parse_normalising(self.normalise) is not None and self.bits is not None:
            raise ConfigurationError(
                "normalise spreads the values over all bits that their type has. Received: bits "
                f"{self.bits}, too. Give one."
            )
        if self.normalise == MACENKO and self.channels == "1":
            raise ConfigurationError(
                "Stains are colours. Received: normalise macenko with channels 1. Give 3, or auto."
            )
        parse_filter(self.keep)
        for length in (self.pixel_size, self.source_pixel_size):
            if length is not None:
                parse_length(length)

    @property
    def fractions(self) -> dict[str, float]:
        """Shares of images by split."""
        return parse_fractions(self.split)

    @property
    def choice(self) -> PlaneSelector:
        """Which image to take from files that hold several."""
        return PlaneSelector(self.page, self.channel, self.z)

    @property
    def file_glob(self) -> str:
        """Which file names are taken."""
        return self.glob or suffix_glob()

    def to_json(self) -> dict[str, Any]:
        """Return the values as JSON types, except the specification, which is stored separately."""
        return {name: value for name, value in vars(self).items() if name != "spec"}


def parse_angles(text: str) -> list[float]:
    """Read angles from the command line.

    Examples
    --------
    >>> parse_angles("0:20:5"), parse_angles("0,90,22.5")
    ([0.0, 5.0, 10.0, 15.0], [0.0, 90.0, 22.5])
    """
    separator = ":" if ":" in text else ","
    try:
        numbers = [float(part) for part in text.split(separator)]
    except ValueError:
        numbers = []
    if separator == ",":
        if not numbers:
            raise _angles_error(text)
        return numbers
    if len(numbers) != 3 or not all(map(math.isfinite, numbers)) or numbers[2] <= 0:
        raise _angles_error(text)
    start, stop, step = numbers
    # Rounded first: 0:1:0.1 has ten angles, although 1 / 0.1 can be a little larger than 10.
    count = math.ceil(round((stop - start) / step, 9))
    if not 0 < count <= 36_000:
        raise _angles_error(text)
    return [start + i * step for i in range(count)]


def parse_overlap(text: str) -> float | int:
    """Read an overlap from the command line: a fraction, or whole pixels.

    Examples
    --------
    >>> parse_overlap("0.25"), parse_overlap("64"), parse_overlap("0")
    (0.25, 64, 0)
    """
    with contextlib.suppress(ValueError):
        return int(text)
    try:
        return float(text)
    except ValueError as error:
        raise ConfigurationError(
            f"--overlap takes a fraction such as 0.25, or whole pixels such as 64. Received: "
            f"{text!r}."
        ) from error


def _angles_error(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"angles must be START:STOP:STEP such as 0:360:5, or numbers such as 0,90. "
        f"Received: {text!r}."
    )
