"""What a tiling job will write, known before it writes anything."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from distkeras_grid.errors import NoSpaceError
from distkeras_grid.progress import format_bytes

# Files of one or two HDFS blocks: few names for the NameNode, enough files to read in parallel.
FILE_BYTES = 192 << 20
MOST_FILE_BYTES = 256 << 20
# Bytes that a task writes in a few seconds.
LEAST_FILE_BYTES = 32 << 20
# Safety margin: compression is measured on a sample of each image.
MARGIN = 1.1
# Of the tiles that --keep seems to drop, this part is planned for all the same: what is kept is
# known from the tiles at one angle, and those at other angles show other parts of an image.
DOUBT = 0.1
# Time of a sample of tiles, cut at one angle and encoded, as a part of the whole job's: Arrow, the
# JVM and Parquet add to it, but angles that differ by quarter turns share their pixels.
TASK_SHARE = 0.6
LOSS = {
    "raw": "without loss",
    "difference": "without loss",
    "png": "without loss",
    "jpeg": "with loss",
}


@dataclass(frozen=True, slots=True)
class PlannedImage:
    """One image that was inspected, labelled and assigned to a split."""

    source: str  # Path below the input folder
    uri: str  # The whole path, as Spark names it
    sha256: str
    label: str
    split: str
    group: str | None
    width: int
    height: int
    channels: int
    tiles: int
    tile_bytes: float  # Stored bytes of one tile, measured on a sample
    notes: str | None = None  # Changes that were made to the values while the file was read
    bits: int = 8  # Significant bits of its values
    # pixel_size and zones and excluded and uncovered and uncovered_by_angle and empty_angles: See
    # `data_prep.dataset.manifest.ImageRecord`
    pixel_size: float | None = None
    zones: str | None = None
    excluded: int = 0
    uncovered: float = 0.0
    uncovered_by_angle: float = 0.0
    empty_angles: int = 0
    # Digest of the decoded pixels; see `data_prep.images.content_hash.pixel_digest`
    pixel_sha256: str | None = None
    # raw_bytes and difference_bytes and png_bytes and jpeg_bytes and tile_seconds and
    # decode_seconds: Size of a tile in each encoding, bytes, and times to cut a tile and to decode
    # the image, seconds; see `data_prep.spark.passes.ImageScan`
    raw_bytes: float = 0.0
    difference_bytes: float = 0.0
    png_bytes: float = 0.0
    jpeg_bytes: float = 0.0
    tile_seconds: float = 0.0
    decode_seconds: float = 0.0
    low: float | None = (
        None  # low and high and stain and filtered: See `data_prep.dataset.manifest.ImageRecord`
    )
    high: float | None = None
    stain: str | None = None
    # Expected part of the tiles that will be kept, as far as known before they are cut
    pass_rate: float = 1.0
    filtered: int = 0
    # cut_width and cut_height: Size of the image that is cut, which may be resampled, pixels
    cut_width: int = 0
    cut_height: int = 0
    version: str = ""  # Tells whether a large file has changed since it was looked at; else empty

    @property
    def content(self) -> str:
        """Digest that identifies the picture: of its pixels, else of the bytes of its file."""
        return self.pixel_sha256 or self.sha256

    @property
    def stored_tiles(self) -> float:
        """Number of tiles to plan for: those that seem to be kept, and some of the others."""
        return self.tiles * (self.pass_rate + DOUBT * (1 - self.pass_rate))

    @property
    def stored_bytes(self) -> float:
        """Bytes to plan for."""
        return self.stored_tiles * self.tile_bytes


def report_lines(notes: Mapping[str, str]) -> list[str]:
    """Return a line for each thing that is told of images, which the report tells of each.

    Examples
    --------
    >>> report_lines({"a.png": "no tile", "b.png": "no tile", "c.png": "page 2"})
    ['  a.png and 1 other image: no tile', '  c.png: page 2']
    """
    images: dict[str, list[str]] = {}
    for path, text in notes.items():
        images.setdefault(text, []).append(path)
    lines = []
    for text, (first, *others) in images.items():
        more = f" and {pluralize(len(others), 'other image')}" if others else ""
        lines.append(f"  {first}{more}: {text}")
    return lines


@dataclass(frozen=True)
class TilingPlan:
    """What will be written."""

    sources: tuple[PlannedImage, ...]  # Images, sorted by path
    classes: tuple[str, ...]
    angles: int
    raw_tile_bytes: int  # Bytes of one tile before compression

    @property
    def tiles(self) -> int:
        """Number of tiles of all sources, as they are cut."""
        return sum(source.tiles for source in self.sources)

    @property
    def stored_tiles(self) -> float:
        """Expected number of tiles of the data set, carefully; see `PlannedImage`."""
        return sum(source.stored_tiles for source in self.sources)

    @property
    def stored_bytes(self) -> int:
        """Expected size of the data set, bytes."""
        return round(sum(source.stored_bytes for source in self.sources))

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Number of tiles by split and class."""
        counts: dict[str, dict[str, int]] = {}
        for source in self.sources:
            by_class = counts.setdefault(source.split, dict.fromkeys(self.classes, 0))
            by_class[source.label] += source.tiles
        return counts

    def describe(self, free: int) -> list[str]:
        """Return the plan as lines for a person.

        `free`: free space, bytes.
        """
        raw = self.stored_tiles * self.raw_tile_bytes
        lines = [
            f"{pluralize(len(self.sources), 'image')}, {pluralize(self.angles, 'angle')}: "
            f"{pluralize(self.tiles, 'tile')}, about "
            f"{format_bytes(self.stored_bytes)} on disk ({format_bytes(raw)} of pixels); "
            f"{format_bytes(free)} free"
        ]
        images = Counter((source.split, source.label) for source in self.sources)
        for split, by_class in self.counts.items():
            shares = ", ".join(
                f"{name} {pluralize(images[split, name], 'image')} {pluralize(tiles, 'tile')}"
                for name, tiles in by_class.items()
            )
            lines.append(f"  {split}: {shares}")
        lines += self._describe_coverage()
        return lines + report_lines(
            {each.source: each.notes for each in self.sources if each.notes}
        )

    def _describe_coverage(self) -> list[str]:
        """Describe which part of the images no tile shows, and why."""
        never, by_angle = uncovered(self.sources)
        lines = [f"  on no tile: {never:.1%} of the pixels; {by_angle:.1%} by angle"]
        if excluded := sum(each.excluded for each in self.sources):
            lines.append(f"  zones keep off {pluralize(excluded, 'tile')}")
        count = round(sum(each.tiles * each.pass_rate for each in self.sources))
        if count < self.tiles:
            lines.append(
                f"  about {count:,} of {pluralize(self.tiles, 'tile')} will be kept (--keep), by "
                "those at the first angle"
            )
        lines += report_lines(
            {
                each.source: f"no tile at {each.empty_angles} of {self.angles} angles; --edge "
                "shift finds more"
                for each in self.sources
                if each.empty_angles
            }
        )
        return lines

    def estimate(self, slots: int, copied: int, free: int, looked: float = 0.0) -> list[str]:
        """Return what `describe` omits: other encodings, files, time and space.

        `copy_to_local`: size of the shards that are copied without the replaced tiles, bytes.
        `free`: free space, bytes.
        `looked`: time that looking at the images took, seconds. The job looks at them again.
        """
        lines = []
        for encoding, loss in LOSS.items():
            name = f"{encoding}_bytes"
            if size := sum(each.stored_tiles * getattr(each, name) for each in self.sources):
                lines.append(f"  --encoding {encoding}: {format_bytes(size)}, {loss}")
        files = _count_files(self, slots)
        mean = format_bytes(self.stored_bytes / files)
        parts = [f"{each / 60:.1f}" for each in (looked, *self.seconds(slots))]
        minutes = looked / 60 + sum(self.seconds(slots)) / 60
        needed = round(self.stored_bytes * MARGIN) + copied
        copies = f", {format_bytes(copied)} of it for copies of shards" if copied else ""
        return [
            *lines,
            f"  {pluralize(files, 'file')} of about {mean}",
            f"  about {minutes:.1f} minutes on {pluralize(slots, 'task slot')}: {parts[0]} to look "
            f"at the images, as now, {parts[1]} to decode them again, and {parts[2]} to cut, by "
            "samples of each image",
            f"  {format_bytes(needed)} needed{copies}; {format_bytes(free)} free, quotas included",
        ]

    def seconds(self, slots: int) -> tuple[float, float]:
        """Return the times to decode all images and to cut all tiles [s], on idle slots."""
        cutting = sum(source.tiles * source.tile_seconds for source in self.sources)
        decoding = sum(source.decode_seconds for source in self.sources)
        tasks = min(slots, plan_units(self, slots)[-1].partition + 1)
        return decoding / tasks, cutting / TASK_SHARE / tasks

    def check_space(self, free: int, output: str, copied: int = 0) -> None:
        """Raise if the data set will not fit.

        `free`: free space, bytes.
        `copy_to_local`: size of the shards that are copied, bytes.
        """
        needed = round(self.stored_bytes * MARGIN) + copied
        if needed > free:
            copies = f", {format_bytes(copied)} of it for copies of shards" if copied else ""
            stored, note = round(self.stored_tiles), ""
            if stored < self.tiles:
                note = f" (--keep drops others of {self.tiles:,})"
            raise NoSpaceError(
                f"{stored:,} tiles{note} need about {format_bytes(needed)}{copies}, and {output} "
                f"has {format_bytes(free)} free. Take fewer angles, less overlap, "
                "--mode inscribed, --encoding difference or jpeg, or another output."
            )


@dataclass(frozen=True)
class TaskAssignment:
    """One image, and the task that cuts it. Each image is decoded once."""

    source: PlannedImage
    partition: int  # Number of the task; all its images belong to one split


def plan_units(plan: TilingPlan, slots: int) -> list[TaskAssignment]:
    """Divide the work into tasks by the bytes that they write; each task writes one file."""
    # Use all slots, unless the files would be too small to be read efficiently.
    size = min(FILE_BYTES, max(LEAST_FILE_BYTES, plan.stored_bytes / slots))
    units: list[TaskAssignment] = []
    first = 0
    for split in plan.counts:
        sources = [source for source in plan.sources if source.split == split]
        tasks = chunk_by_size([source.stored_bytes for source in sources], size)
        units += [
            TaskAssignment(each, first + task) for each, task in zip(sources, tasks, strict=True)
        ]
        first += tasks[-1] + 1
    return units


def chunk_by_size(sizes: Sequence[float], wanted: float) -> list[int]:
    """Divide items in their order into parts of about equal size.

    `wanted`: wanted size of a part. All parts but the last have at least two thirds of it, and all
    have at most four thirds, unless a single item is larger.

    Examples
    --------
    >>> chunk_by_size([5, 633, 5, 90, 90, 90], wanted=192)
    [0, 0, 1, 1, 1, 2]
    """
    parts: list[int] = []
    number, filled = 0, 0.0
    for size in sizes:
        if filled >= wanted * 2 / 3:
            number, filled = number + 1, 0.0
        parts.append(number)
        filled += size
    return parts


def _count_files(plan: TilingPlan, slots: int) -> int:
    tiles: dict[int, float] = {}
    for unit in plan_units(plan, slots):
        tiles[unit.partition] = tiles.get(unit.partition, 0) + unit.source.stored_tiles
    return sum(math.ceil(count / rows_of_a_file(plan)) for count in tiles.values())


def rows_of_a_file(plan: TilingPlan) -> int:
    """Return the largest number of tiles in a file: large images are divided into several files."""
    mean = plan.stored_bytes / max(1.0, plan.stored_tiles)
    largest = max(source.tile_bytes for source in plan.sources)
    # A few large tiles among many small ones must not make all files small.
    return max(1, int(MOST_FILE_BYTES / max(1.0, min(largest, 2 * mean))))


def uncovered(sources: Collection[PlannedImage]) -> tuple[float, float]:
    """Return the share of pixels that no tile shows, and its mean over the angles."""
    pixels = sum(each.width * each.height for each in sources) or 1
    never = sum(each.uncovered * each.width * each.height for each in sources)
    by_angle = sum(each.uncovered_by_angle * each.width * each.height for each in sources)
    return never / pixels, by_angle / pixels


def pluralize(number: int, thing: str) -> str:
    """Return a number and a noun as text.

    Examples
    --------
    >>> pluralize(1, "image"), pluralize(3000, "tile")
    ('1 image', '3,000 tiles')
    """
    return f"{number:,} {thing}{'s' * (number != 1)}"
