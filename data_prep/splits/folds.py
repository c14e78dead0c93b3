"""Folds for cross-validation, as names of columns that say which rows are held out; no I/O.

Images that stay together in a split stay together in a fold. The split ``test`` is in no fold: it
serves to test the model that is chosen in the end.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from data_prep.splits import stratify
from data_prep.splits.assign import (
    SplitSource,
    connected_groups,
    empty_cells,
    rank_of,
    weights_of,
)
from distkeras_grid.dataset.folds import TEST, Folds
from distkeras_grid.errors import ConfigurationError, EmptySplitError, LabelError

BY_GROUP = "group"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*")


def parse_folds(by: str) -> int | None:
    """Return the number of folds; None means one fold for each group."""
    if by == BY_GROUP:
        return None
    if not by.isdecimal() or not 2 <= int(by) <= 1000:
        raise ConfigurationError(
            f"folds must be a number from 2 to 1000, or {BY_GROUP!r}. Received: {by!r}."
        )
    return int(by)


def assign_folds(
    sources: Sequence[SplitSource],
    by: str,
    seed: int = 0,
    name: str = "fold",
    *,
    former: Folds | None = None,
    links: Iterable[tuple[str, str]] = (),
    without_rows: Container[str] = (),
    allow_empty: bool = False,
) -> Folds:
    """Divide images into folds.

    `without_rows`: paths of images without rows, such as copies and removed images. What they join
    stays together; they themselves have no fold.
    `allow_empty`: accept that a fold has no tile of some class; only if `by` is a number.

    Examples
    --------
    >>> images = [SplitSource(f"{i}", f"{i}", "a", group="gh"[i % 2]) for i in range(4)]
    >>> assign_folds(images, "group").held_out
    {'0': 'fold_g', '1': 'fold_h', '2': 'fold_g', '3': 'fold_h'}
    """
    count = parse_folds(by)
    before = {} if former is None else former.held_out
    if not NAME.fullmatch(name):
        raise ConfigurationError(f"A name of folds must be letters and digits. Received: {name!r}.")
    if former is not None and (former.by, former.seed) != (by, seed):
        raise ConfigurationError(
            f"The folds {name} were made by {former.by} with the seed {former.seed}. Received: "
            f"{by} and {seed}. Give the same, another --name, or --overwrite."
        )
    taking_part = [source for source in sources if source.split != TEST]
    paths = {source.path for source in taking_part}
    pairs = [pair for pair in links if paths.issuperset(pair)]
    joined = connected_groups(taking_part, pairs)
    with_rows = [[each for each in unit if each.path not in without_rows] for unit in joined]
    units = [unit for unit in with_rows if unit]
    if count is None:
        return _by_group(units, name, seed, before)
    columns = tuple(f"{name}_{i}" for i in range(count))
    if former is not None and former.columns != columns:
        raise ConfigurationError(f"The folds {name} are {', '.join(former.columns)}.")
    weighed = [
        stratify.SplitGroup(
            rank_of(unit, "folds", seed), weights_of(unit), _former_fold(unit, before)
        )
        for unit in units
    ]
    assigned = stratify.assign_groups(weighed, dict.fromkeys(columns, 1 / count))
    held_out = {
        source.path: fold for unit, fold in zip(units, assigned, strict=True) for source in unit
    }
    if not allow_empty:
        counted = [
            source if source.path in held_out else replace(source, weight=0)
            for source in taking_part
        ]
        if cells := empty_cells(counted, held_out, dict.fromkeys(columns, 1.0), pairs):
            raise EmptySplitError.of(cells, f"{count} folds", "ask for fewer folds")
    return Folds(by, seed, columns, held_out)


def renamed(folds: Folds, moved: Mapping[str, str]) -> Folds:
    """Return folds with the new paths of moved images.

    Examples
    --------
    >>> renamed(Folds("2", 0, ("f_0", "f_1"), {"a": "f_0", "b": "f_1"}), {"b": "c"}).held_out
    {'a': 'f_0', 'c': 'f_1'}
    """
    stay = {path: fold for path, fold in folds.held_out.items() if path not in moved}
    # Last, because an image that is gone may have had the new name.
    come = {moved[path]: fold for path, fold in folds.held_out.items() if path in moved}
    return replace(folds, held_out=stay | come)


def _by_group(
    units: Sequence[Sequence[SplitSource]], name: str, seed: int, before: Mapping[str, str]
) -> Folds:
    held_out: dict[str, str] = {}
    for unit in units:
        groups = sorted({source.group for source in unit if source.group is not None})
        if not groups:
            raise LabelError(
                f"{unit[0].path} has no group, so no fold holds it out. Give groups when tiling "
                "(--group PATTERN, or a column group), or ask for a number of folds."
            )
        # Groups that share a picture, or show one place, are held out together.
        fold = f"{name}_{'+'.join(groups)}"
        if _former_fold(unit, before) not in (None, fold):
            raise LabelError(
                f"{unit[0].path} and its group would move to {fold}: groups were corrected, or are "
                "joined by images of one place. Make the folds anew (--overwrite), or under "
                "another --name."
            )
        held_out |= {source.path: fold for source in unit}
    columns = tuple(sorted(set(held_out.values())))
    if len(columns) < 2:
        raise LabelError(f"All images are of one group. Received: {', '.join(columns) or 'none'}.")
    return Folds(BY_GROUP, seed, columns, dict(sorted(held_out.items())))


def _former_fold(unit: Sequence[SplitSource], before: Mapping[str, str]) -> str | None:
    folds = {before[source.path]: source.path for source in unit if source.path in before}
    if len(folds) > 1:
        members = " and ".join(f"{path} ({fold})" for fold, path in sorted(folds.items()))
        raise LabelError(
            f"{members} belong together now, but stand in different folds. Make the folds anew "
            "(--overwrite), or under another --name."
        )
    return next(iter(folds), None)
