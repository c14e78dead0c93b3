"""Cells (a class in a split) that have no tile, for any reason; no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from data_prep.dataset.diff import UpdateActions
from data_prep.dataset.manifest import TILED, ImageRecord
from data_prep.dataset.plan import PlannedImage
from data_prep.splits.assign import SPLITS, SplitSource, empty_cells

# Class, split, and number of units of the class.
Cell = tuple[str, str, int]


def missing_cells(
    changes: UpdateActions,
    planned: Sequence[PlannedImage],
    fractions: Mapping[str, float],
    *,
    chosen: bool,
) -> list[Cell]:
    """Return the cells without a tile, as far as that is known before tiles are cut."""
    standing = [entry for entry in changes.entries.values() if entry.status == TILED]
    sources = [_source(entry, entry.tiles if entry.has_rows else 0) for entry in standing]
    sources += [
        _source(each, 0 if changes.excluded(each.source) else each.tiles) for each in planned
    ]
    both: list[ImageRecord | PlannedImage] = [*standing, *planned]
    splits = {each.source: str(each.split) for each in both}
    if chosen:
        fractions = {split: 1.0 for split in SPLITS if split in splits.values()}
    return empty_cells(sources, splits, fractions, labels={each.label for each in sources})


def _source(image: ImageRecord | PlannedImage, weight: int) -> SplitSource:
    content = str(image.content)
    return SplitSource(image.source, content, str(image.label), image.group, weight=weight)


def unfilled_cells(
    changes: UpdateActions, planned: Sequence[PlannedImage], entries: Iterable[ImageRecord]
) -> list[Cell]:
    """Return the cells of planned images that have no tile after cutting."""
    filled = {(entry.label, entry.split) for entry in entries if entry.has_rows and entry.tiles}
    images = Counter(each.label for each in planned)
    wanted = {(e.label, e.split) for e in planned if not changes.excluded(e.source)}
    return [(label, split, images[label]) for label, split in sorted(wanted - filled)]


def emptied_cells(
    before: Mapping[str, Mapping[str, int]], now: Mapping[str, Mapping[str, int]]
) -> list[tuple[str, str]]:
    """Return class and split of the cells that had tiles and have none now.

    Examples
    --------
    >>> emptied_cells({"train": {"a": 4, "b": 4}, "test": {"a": 4, "b": 0}}, {"train": {"a": 8}})
    [('b', 'train'), ('a', 'test')]
    """
    return [
        (label, split)
        for split, by_class in before.items()
        for label, tiles in by_class.items()
        if tiles and not now.get(split, {}).get(label)
    ]
