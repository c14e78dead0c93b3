"""What a tiling job is about to write, known before it writes anything."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from data_prep.near_duplicates import Likeness
from distkeras_grid.errors import NoSpaceError

T = TypeVar("T")

# Files of one or two HDFS blocks: few names for the name node, enough to read side by side.
FILE_BYTES = 192 << 20
# Compression is measured on a sample of each image.
MARGIN = 1.1


@dataclass(frozen=True)
class PlannedSource:
    """One image, inspected, labelled and assigned.

    Parameters
    ----------
    source : str
        Path below the input folder.
    uri : str
        The whole path, as Spark names it.
    sha256, label, split : str
    group : str or None
    width, height, channels : int
    tiles : int
    tile_bytes : float
        Stored bytes of one tile, measured on a sample.
    notes : str, optional
        What was done to the values while the file was read.
    pixel_sha256 : str, optional
        Digest of the decoded pixels; see `data_prep.digests.pixel_digest`.
    bits : int
        Significant bits of its values.
    pixel_size, zones, excluded, uncovered, uncovered_by_angle, empty_angles, marks
        See `data_prep.manifest.Entry`.
    """

    source: str
    uri: str
    sha256: str
    label: str
    split: str
    group: str | None
    width: int
    height: int
    channels: int
    tiles: int
    tile_bytes: float
    notes: str | None = None
    bits: int = 8
    pixel_size: float | None = None
    zones: str | None = None
    excluded: int = 0
    uncovered: float = 0.0
    uncovered_by_angle: float = 0.0
    empty_angles: int = 0
    marks: str | None = None
    pixel_sha256: str | None = None

    @property
    def content(self) -> str:
        """What identifies the picture: its pixels, or the bytes where those are not known."""
        return self.pixel_sha256 or self.sha256


@dataclass(frozen=True)
class Plan:
    """What will be written.

    Parameters
    ----------
    sources : tuple of PlannedSource
        Sorted by path.
    classes : tuple of str
    angles : int
    raw_tile_bytes : int
        Bytes of one tile before compression.
    left_out : dict of str to str
        Why other images are not tiled, by path.
    near_duplicates : tuple of Likeness
        Images that show the same place.
    fingerprints : dict of str to bytes
        What was found out to tell that, by digest of the pixels.
    """

    sources: tuple[PlannedSource, ...]
    classes: tuple[str, ...]
    angles: int
    raw_tile_bytes: int
    left_out: dict[str, str] = field(default_factory=dict)
    near_duplicates: tuple[Likeness, ...] = ()
    fingerprints: dict[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def tiles(self) -> int:
        """Tiles of all sources."""
        return sum(source.tiles for source in self.sources)

    @property
    def stored_bytes(self) -> int:
        """Expected bytes of the data set."""
        return round(sum(source.tiles * source.tile_bytes for source in self.sources))

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Tiles by split and class."""
        counts: dict[str, dict[str, int]] = {}
        for source in self.sources:
            by_class = counts.setdefault(source.split, dict.fromkeys(self.classes, 0))
            by_class[source.label] += source.tiles
        return counts

    def describe(self, free: int) -> list[str]:
        """Return the plan as lines for a person.

        Parameters
        ----------
        free : int
            Bytes that can be written.
        """
        raw = self.tiles * self.raw_tile_bytes
        lines = [
            f"{counted(len(self.sources), 'image')}, {counted(self.angles, 'angle')}: "
            f"{counted(self.tiles, 'tile')}, about "
            f"{format_bytes(self.stored_bytes)} on disk ({format_bytes(raw)} of pixels); "
            f"{format_bytes(free)} free"
        ]
        images = Counter((source.split, source.label) for source in self.sources)
        for split, by_class in self.counts.items():
            shares = ", ".join(
                f"{name} {counted(images[split, name], 'image')} {counted(tiles, 'tile')}"
                for name, tiles in by_class.items()
            )
            lines.append(f"  {split}: {shares}")
        lines += self._describe_coverage()
        lines += [f"  {each.source}: {each.notes}" for each in self.sources if each.notes]
        for path, reason in sorted(self.left_out.items()):
            lines.append(f"  left out: {path}: {reason}")
        return lines

    def _describe_coverage(self) -> list[str]:
        """Tell what of the images no tile shows, and why."""
        pixels = sum(each.width * each.height for each in self.sources) or 1
        never, by_angle = (
            sum(getattr(each, name) * each.width * each.height for each in self.sources) / pixels
            for name in ("uncovered", "uncovered_by_angle")
        )
        lines = [f"  on no tile: {never:.1%} of the pixels; {by_angle:.1%} by angle"]
        if excluded := sum(each.excluded for each in self.sources):
            lines.append(f"  zones keep off {counted(excluded, 'tile')}")
        lines += [
            f"  {each.source}, {each.width}x{each.height}: no tile at {each.empty_angles} of "
            f"{self.angles} angles; --edge shift finds more"
            for each in self.sources
            if each.empty_angles
        ]
        marked = [each for each in self.sources if each.marks]
        if marked:
            lines.append(
                f"  {counted(len(marked), 'image')} may show a scale bar, a data bar or a frame, "
                "which a network can learn; look at them, and exclude what is there by --zones or "
                "--bottom-strip (left, top, right, bottom):"
            )
            lines += [f"    {each.source}: {each.marks}" for each in marked]
        return lines

    def check_space(self, free: int, output: str) -> None:
        """Raise if the data set will not fit.

        Raises
        ------
        NoSpaceError
            With the arithmetic.
        """
        needed = round(self.stored_bytes * MARGIN)
        if needed > free:
            raise NoSpaceError(
                f"{self.tiles:,} tiles need about {format_bytes(needed)}, and {output} has "
                f"{format_bytes(free)} free. Take fewer angles, less overlap, --mode inscribed, "
                "--encoding jpeg, or another output."
            )


@dataclass(frozen=True)
class Unit:
    """The work of one step: some angles of one image.

    Parameters
    ----------
    source : PlannedSource
    angles : tuple of float
        Whole groups of angles that differ by quarter turns, so that pixels are computed once.
    partition : int
        The task that does it; one split a task.
    """

    source: PlannedSource
    angles: tuple[float, ...]
    partition: int


def plan_units(plan: Plan, groups: Sequence[Sequence[float]], slots: int) -> list[Unit]:
    """Divide the work into tasks of about equal size.

    Parameters
    ----------
    plan : Plan
    groups : sequence of sequences of float
        Angles that differ by quarter turns.
    slots : int
        Tasks that run at once.

    Returns
    -------
    list of Unit
        In the order of their partitions.
    """
    # A few tasks a slot even out their ends; few large images are cut by angles, too.
    wanted = max(4 * slots, -(-plan.stored_bytes // FILE_BYTES))
    blocks = min(len(groups), -(-wanted // len(plan.sources)))
    angles = [tuple(angle for group in part for angle in group) for part in _divide(groups, blocks)]
    units: list[Unit] = []
    partitions = 0
    for split in plan.counts:
        steps = [
            (source, part) for source in plan.sources if source.split == split for part in angles
        ]
        share = sum(source.tiles for source, _ in steps) / blocks / plan.tiles
        tasks = min(len(steps), max(1, round(wanted * share)))
        for number, part in enumerate(_divide(steps, tasks)):
            units += [Unit(source, turned, partitions + number) for source, turned in part]
        partitions += tasks
    return units


def counted(number: int, thing: str) -> str:
    """Return a number of things in words.

    Examples
    --------
    >>> counted(1, "image"), counted(3000, "tile")
    ('1 image', '3,000 tiles')
    """
    return f"{number:,} {thing}{'s' * (number != 1)}"


def format_bytes(count: float) -> str:
    """Return a number of bytes for a person.

    Examples
    --------
    >>> format_bytes(999), format_bytes(65_500_000_000)
    ('999 bytes', '65.5 GB')
    """
    if count < 1000:
        return f"{count:.0f} bytes"
    for unit in ("kB", "MB", "GB", "TB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} PB"


def _divide(items: Sequence[T], parts: int) -> list[Sequence[T]]:
    """Cut a sequence into parts whose lengths differ by one at most."""
    edges = [len(items) * i // parts for i in range(parts + 1)]
    return [items[start:stop] for start, stop in itertools.pairwise(edges)]
