"""The report of a run: images, tiles, and what was left out, as JSON and as a page.

Pure: figures and pictures come in, text goes out. `data_prep.report.samples` gets the pictures.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape

import numpy as np
from numpy.typing import NDArray

from data_prep.geometry.grid import TileSpec
from distkeras_grid.dataset.manifest import ImageRecord
from distkeras_grid.pages import format_document, format_table
from distkeras_grid.progress import format_bytes

Corners = NDArray[np.float64]

FOLDER = "_reports"
# Number of newest runs whose reports are kept: three months of nightly runs.
MAX_REPORTS = 90
# Earlier releases wrote further pages of images.
_NAME = re.compile(r"(\d{4}-\d\d-\d\dT\d{6}Z)(-images-\d+)?\.(json|html)")
# At most this many names are listed on the page; the JSON file has all.
SHOWN_REASONS = 200
# Longer side of a thumbnail on the page [CSS pixels].
GRID_PIXELS = 360

MORE_STYLE = """
.sheet { display: flex; flex-wrap: wrap; gap: .4rem; margin: .6rem 0; }
.sheet img { width: 112px; height: 112px; }
.grids { display: flex; flex-wrap: wrap; gap: 1.2rem; }
figure { margin: 0; }
figcaption { font-size: .85rem; max-width: 360px; overflow-wrap: anywhere; }
svg { display: block; border-radius: 4px; }
.flat { fill: #0a84ff22; stroke: #0a84ff; stroke-width: 1; vector-effect: non-scaling-stroke; }
.turned { fill: none; stroke: #ff9f0a; stroke-width: 1; vector-effect: non-scaling-stroke; }
"""


@dataclass(frozen=True)
class ReportImage:
    """Pictures of a report."""

    # JPEG files of some tiles, by class
    tiles: dict[str, list[bytes]] = field(default_factory=dict)
    # JPEG files of some images, by path
    thumbnails: dict[str, bytes] = field(default_factory=dict)
    # Corners of the tiles of these images by angle, in pixels of the image as it came. Images with
    # too many tiles are missing.
    squares: dict[str, dict[float, Corners]] = field(default_factory=dict)
    angles: dict[float, int] = field(default_factory=dict)  # Tiles by angle


@dataclass(frozen=True)
class RunSummary:
    """The figures of a run: the report in JSON."""

    began: str  # Time in UTC, ISO 8601
    seconds: float
    input: str
    output: str
    images: dict[str, dict[str, int]]  # images and tiles: Numbers in this run, by split and class
    tiles: dict[str, dict[str, int]]
    angles: dict[str, int]  # Number of tiles of this run by angle
    new: int  # new and changed and unchanged and relabelled and removed: Numbers of images
    changed: int
    unchanged: int
    relabelled: int
    removed: int
    left_out: dict[str, str]  # left_out and copies: Reasons by path
    copies: dict[str, str]
    without_tiles: dict[str, int]  # Number of angles at which an image has no tile, by path
    excluded: int  # Number of tiles that zones exclude
    # read_bytes and written_bytes: Bytes of the image files, each counted once; bytes of the shards
    # that have the tiles of this run
    read_bytes: int
    written_bytes: int
    total_tiles: int  # Number of tiles in the data set after the run
    filter: str | None = None  # The conditions of `keep`
    filtered: int = 0  # Number of tiles that do not meet the conditions
    # Number of dropped tiles of images that keep none, by path
    images_without_tiles: dict[str, int] = field(default_factory=dict)
    # Why images do not stand in the split that a table gives them, by path
    ignored_splits: dict[str, str] = field(default_factory=dict)
    # Images of this run that show the same place as another: ``one``, ``other`` and ``why``
    alike: list[dict[str, str]] = field(default_factory=list)

    @property
    def read_rate(self) -> float:
        """Megabytes of image files per second."""
        return self.read_bytes / 1e6 / max(self.seconds, 1e-3)

    @property
    def written_rate(self) -> float:
        """Megabytes of tiles per second."""
        return self.written_bytes / 1e6 / max(self.seconds, 1e-3)

    def to_json(self) -> str:
        """Return the report as JSON."""
        rates = {
            "read_megabytes_per_second": round(self.read_rate, 3),
            "written_megabytes_per_second": round(self.written_rate, 3),
        }
        return json.dumps({"version": 1, **asdict(self), **rates}, indent=1) + "\n"


def count(
    sources: Sequence[ImageRecord],
) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
    """Return the numbers of images and tiles by split and class."""
    images: dict[str, dict[str, int]] = {}
    tiles: dict[str, dict[str, int]] = {}
    for each in sources:
        for table, number in ((images, 1), (tiles, each.tiles)):
            by_class = table.setdefault(str(each.split), {})
            by_class[str(each.label)] = by_class.get(str(each.label), 0) + number
    return images, tiles


def render(
    figures: RunSummary,
    shown: ReportImage,
    sources: Mapping[str, ImageRecord],
    angles: Sequence[float],
) -> str:
    """Return the report as one page."""
    title = f"Tiles of {figures.input}"
    head = f"{figures.began}, {figures.seconds:,.0f} s, to {figures.output}"
    sections = {
        "Images and tiles of this run": _counts(figures),
        "Left out": _reasons(figures.left_out) or "<p>Nothing was left out.</p>",
        "Copies, tiled once": _reasons(figures.copies),
        "In another split than the table says": _reasons(figures.ignored_splits),
        "Filter": _filter(figures) if figures.filter else "",
        "Images of the same place": _listed(
            ("image", "and", "why"),
            [(each["one"], each["other"], each["why"]) for each in figures.alike],
        ),
        "Tiles by angle": _angles(figures),
        "Some tiles of each class": _sheets(shown),
        "Where tiles lie": _places(figures, shown, sources, angles),
    }
    parts = [f"<p>{escape(head)}</p>", _summary(figures)]
    parts += [f"<h2>{escape(name)}</h2>\n{body}" for name, body in sections.items() if body]
    return format_document(title, "\n".join(parts), MORE_STYLE)


def _summary(figures: RunSummary) -> str:
    tiled = (figures.new, figures.changed, figures.unchanged, figures.relabelled)
    counts = (*tiled, len(figures.copies))
    others = (figures.removed, len(figures.left_out))
    kinds = ("new", "changed", "unchanged", "relabelled", "copies")
    return format_table(
        [
            ("images", *kinds, "gone", "left out"),
            [f"{number:,}" for number in (sum(counts), *counts, *others)],
        ]
    ) + format_table(
        [
            ("read", "written", "tiles in the data set"),
            (
                f"{format_bytes(figures.read_bytes)} ({figures.read_rate:,.1f} MB/s)",
                f"{format_bytes(figures.written_bytes)} ({figures.written_rate:,.1f} MB/s)",
                f"{figures.total_tiles:,}",
            ),
        ]
    )


def _counts(figures: RunSummary) -> str:
    if not figures.tiles:
        return "<p>No image was tiled.</p>"
    classes = sorted({name for by_class in figures.tiles.values() for name in by_class})
    rows: list[list[str]] = [["split", *classes]]
    for split, by_class in figures.tiles.items():
        images = figures.images[split]
        cells = [f"{images.get(c, 0):,} images, {by_class.get(c, 0):,} tiles" for c in classes]
        rows.append([split, *cells])
    return format_table(rows)


def _reasons(reasons: Mapping[str, str]) -> str:
    return _listed(("image", "why"), sorted(reasons.items()))


def _filter(figures: RunSummary) -> str:
    """Return how many tiles the conditions dropped, and which images keep none."""
    tiles = sum(sum(by_class.values()) for by_class in figures.tiles.values())
    text = (
        f"<p>{escape(str(figures.filter))} drops {figures.filtered:,} of "
        f"{figures.filtered + tiles:,} tiles.</p>"
    )
    bare = [(path, f"{n:,}") for path, n in sorted(figures.images_without_tiles.items())]
    return text + _listed(("image that keeps no tile", "tiles dropped"), bare)


def _listed(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return the first rows of a table; nothing if there are none."""
    if not rows:
        return ""
    more = len(rows) - SHOWN_REASONS
    note = f"<p>And {more:,} more: see the JSON file.</p>" if more > 0 else ""
    return format_table([head, *rows[:SHOWN_REASONS]]) + note


def _angles(figures: RunSummary) -> str:
    """Return a bar for each angle, and the images without tiles at some angles."""
    most = max(figures.angles.values(), default=0)
    if not most:
        return ""
    width, height = 8, 80
    bars = []
    for i, (angle, number) in enumerate(figures.angles.items()):
        bar = round(height * number / most, 1)
        bars.append(
            f'<rect x="{i * width}" y="{height - bar}" width="{width - 2}" height="{bar}" '
            f'fill="#0a84ff"><title>{angle} degrees: {number:,} tiles</title></rect>'
        )
    picture = (
        f'<svg width="{len(bars) * width}" height="{height}" role="img" '
        f'aria-label="tiles by angle">{"".join(bars)}</svg>'
    )
    numbers = figures.angles.values()
    text = f"<p>{min(numbers):,} to {max(numbers):,} tiles an angle, {len(numbers)} angles.</p>"
    if figures.excluded:
        text += f"<p>Zones keep off {figures.excluded:,} tiles.</p>"
    bare = [(path, f"{n} of {len(numbers)}") for path, n in sorted(figures.without_tiles.items())]
    return picture + text + _listed(("image", "angles without a tile"), bare)


def _sheets(shown: ReportImage) -> str:
    return "\n".join(
        f"<h3>{escape(name)}</h3><div class='sheet'>"
        + "".join(f'<img src="{_data(tile)}" alt="{escape(name)}">' for tile in tiles)
        + "</div>"
        for name, tiles in shown.tiles.items()
    )


def _places(
    figures: RunSummary,
    shown: ReportImage,
    sources: Mapping[str, ImageRecord],
    angles: Sequence[float],
) -> str:
    """Return some images with their tiles."""
    paths = sorted(path for path in shown.thumbnails if path in sources)
    if not paths:
        return ""
    images = sum(sum(by_class.values()) for by_class in figures.images.values())
    more = (
        f"<p>{len(paths):,} of {images:,} images are shown; --report-images shows more.</p>"
        if len(paths) < images
        else ""
    )
    at = " and ".join(f"{angle:g}" for angle in angles)
    grids = "".join(
        _grid(sources[path], shown.thumbnails[path], shown.squares.get(path), angles)
        for path in paths
    )
    return (
        f"{more}"
        f"<p>Tiles at {at} degrees. What no square covers is in no tile at that angle.</p>"
        f'<div class="grids">{grids}</div>'
    )


def grid_angles(spec: TileSpec) -> list[float]:
    """Return the angles whose tile grids are shown: the first, and the first oblique one.

    Examples
    --------
    >>> grid_angles(TileSpec(angles=range(0, 360, 45)))
    [0.0, 45.0]
    """
    angles = list(spec.angles)
    oblique = [angle for angle in angles if angle % 90]
    return list(dict.fromkeys([angles[0], *oblique[:1]]))


def _grid(
    source: ImageRecord,
    thumbnail: bytes,
    squares: Mapping[float, Corners] | None,
    angles: Sequence[float],
) -> str:
    own_width, own_height = source.width or 1, source.height or 1
    scale = GRID_PIXELS / max(own_width, own_height)
    width, height = round(own_width * scale), round(own_height * scale)
    kinds = dict(zip(angles, ("flat", "turned"), strict=False))
    shapes = "".join(
        f'<path class="{kinds[angle]}" d="{_outlines(corners)}"/>'
        for angle, corners in (squares or {}).items()
    )
    label = escape(source.source)
    more = ", too many to draw" if squares is None and source.tiles else ""
    return (
        f'<figure><svg width="{width}" height="{height}" '
        f'viewBox="0 0 {own_width} {own_height}" role="img" aria-label="tiles of {label}">'
        f'<image href="{_data(thumbnail)}" width="{own_width}" height="{own_height}" '
        f'preserveAspectRatio="none"/>{shapes}</svg>'
        f"<figcaption>{label}: {own_width}x{own_height}, {source.tiles:,} tiles{more}, "
        f"{escape(str(source.split))}</figcaption></figure>"
    )


def _outlines(corners: Corners) -> str:
    """Return closed lines through the corners of each tile, in whole pixels, as an SVG path."""
    return "".join(
        f"M{a},{b} {c},{d} {e},{f} {g},{h}z"
        for a, b, c, d, e, f, g, h in np.rint(corners).astype(int).reshape(-1, 8).tolist()
    )


def _data(jpeg: bytes) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode("ascii")


def outdated(names: Iterable[str]) -> list[str]:
    """Return the report files to delete: all but those of the newest runs; never other files.

    Examples
    --------
    >>> nights = [f"2026-{month:02}-01T020000Z.json" for month in range(1, 13)]
    >>> outdated([*nights, "thesis.json"])
    []
    """
    times = {name: match.group(1) for name in names if (match := _NAME.fullmatch(name))}
    newest = sorted(set(times.values()))[-MAX_REPORTS:]
    return sorted(name for name, time in times.items() if time not in newest)
