"""Check that each class has tiles in each split; no I/O. A cell is a class in a split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from data_prep.dataset.actions import UpdateActions
from data_prep.splits.assign import SPLITS, SplitSource, empty_cells
from distkeras_grid.dataset.manifest import TILED, ImageRecord

# Class, split, and number of units of the class.
Cell = tuple[str, str, int]


def missing_cells(
    actions: UpdateActions, fractions: Mapping[str, float], *, chosen: bool
) -> list[Cell]:
    """Return the cells without a tile, as far as that is known before tiles are cut."""
    tiled = [each for each in actions.all_records.values() if each.status == TILED]
    sources = [
        SplitSource(
            *(each.source, str(each.content), str(each.label), each.group),
            weight=each.tiles if each.has_rows else 0,
        )
        for each in tiled
    ]
    splits = {each.source: str(each.split) for each in tiled}
    if chosen:
        fractions = {split: 1.0 for split in SPLITS if split in splits.values()}
    return empty_cells(sources, splits, fractions, labels={each.label for each in sources})


def unfilled_cells(planned: Sequence[ImageRecord], records: Iterable[ImageRecord]) -> list[Cell]:
    """Return the cells of planned images that have no tile after cutting."""
    filled = {(each.label, each.split) for each in records if each.has_rows and each.tiles}
    images = Counter(each.label for each in planned)
    wanted = {(each.label, each.split) for each in planned if each.has_rows}
    cells = [(str(label), str(split), images[label]) for label, split in wanted - filled]
    return sorted(cells)


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
