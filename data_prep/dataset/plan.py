"""What a tiling job will write, known before it writes anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from distkeras_grid.errors import NoSpaceError
from distkeras_grid.progress import format_bytes

if TYPE_CHECKING:
    from data_prep.spark.passes import ImageScan
    from distkeras_grid.dataset.manifest import ImageRecord

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


def stored_tiles(scan: ImageScan) -> float:
    """Return the number of tiles to plan for: those that seem to be kept, and some others."""
    return scan.tiles * (scan.pass_rate + DOUBT * (1 - scan.pass_rate))


def stored_bytes(scan: ImageScan) -> float:
    """Return the bytes to plan for."""
    return stored_tiles(scan) * scan.tile_bytes


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

    sources: tuple[ImageRecord, ...]  # Images, sorted by path
    scans: Mapping[str, ImageScan]  # By path
    classes: tuple[str, ...]
    angles: int
    raw_tile_bytes: int  # Bytes of one tile before compression

    def scan(self, source: ImageRecord) -> ImageScan:
        """Return the scan of a source."""
        return self.scans[source.source]

    @property
    def tiles(self) -> int:
        """Number of tiles of all sources, as they are cut."""
        return sum(source.tiles for source in self.sources)

    @property
    def stored_tiles(self) -> float:
        """Expected number of tiles of the data set, carefully; see `stored_tiles`."""
        return sum(stored_tiles(self.scan(source)) for source in self.sources)

    @property
    def stored_bytes(self) -> int:
        """Expected size of the data set, bytes."""
        return round(sum(stored_bytes(self.scan(source)) for source in self.sources))

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Number of tiles by split and class."""
        counts: dict[str, dict[str, int]] = {}
        for source in self.sources:
            by_class = counts.setdefault(str(source.split), dict.fromkeys(self.classes, 0))
            by_class[str(source.label)] += source.tiles
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
        """Describe which tiles are left out, and why."""
        lines = []
        if excluded := sum(each.excluded or 0 for each in self.sources):
            lines.append(f"  zones keep off {pluralize(excluded, 'tile')}")
        count = round(sum(each.tiles * self.scan(each).pass_rate for each in self.sources))
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

    def check_space(self, free: int, output: str, copied: int = 0) -> None:
        """Raise if the data set will not fit.

        `free`: free space, bytes.
        `copied`: size of the shards that are copied, bytes.
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


def plan_tasks(plan: TilingPlan, slots: int) -> list[list[ImageRecord]]:
    """Divide the images into tasks by the bytes that they write; each task writes one file.

    All images of a task belong to one split, and each image is decoded once.
    """
    # Use all slots, unless the files would be too small to be read efficiently.
    size = min(FILE_BYTES, max(LEAST_FILE_BYTES, plan.stored_bytes / slots))
    tasks: list[list[ImageRecord]] = []
    for split in plan.counts:
        images = [image for image in plan.sources if image.split == split]
        parts = chunk_by_size([stored_bytes(plan.scan(image)) for image in images], size)
        numbered = groupby(zip(parts, images, strict=True), key=itemgetter(0))
        tasks += [[image for _, image in some] for _, some in numbered]
    return tasks


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


def rows_of_a_file(plan: TilingPlan) -> int:
    """Return the largest number of tiles in a file: large images are divided into several files."""
    mean = plan.stored_bytes / max(1.0, plan.stored_tiles)
    largest = max(plan.scan(source).tile_bytes for source in plan.sources)
    # A few large tiles among many small ones must not make all files small.
    return max(1, int(MOST_FILE_BYTES / max(1.0, min(largest, 2 * mean))))


def pluralize(number: int, thing: str) -> str:
    """Return a number and a noun as text.

    Examples
    --------
    >>> pluralize(1, "image"), pluralize(3000, "tile")
    ('1 image', '3,000 tiles')
    """
    return f"{number:,} {thing}{'s' * (number != 1)}"
