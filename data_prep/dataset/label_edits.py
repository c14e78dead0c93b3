"""Changed labels, groups, splits and exclusions of images that are already tiled; no I/O.

A change made here stays: later updates do not undo it because of folders or tables.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from data_prep.dataset.actions import UpdateActions, current_splits, sources_of
from data_prep.dataset.manifest import DataSet, revised, tables_of
from data_prep.splits.assign import assign_splits, check_cells, parse_fractions, split_conflicts
from data_prep.splits.csv_table import read_csv
from data_prep.splits.duplicate_pairs import must_link_pairs
from data_prep.splits.folds import assign_folds
from data_prep.splits.labels import Annotation, class_names
from distkeras_grid.dataset.folds import Folds
from distkeras_grid.dataset.manifest import REMOVED, TILED, ImageRecord
from distkeras_grid.errors import LabelError
from distkeras_grid.feeding.schema import Field

EXCLUDED = "excluded"


@dataclass(frozen=True)
class EditResult:
    """The revised tables."""

    entries: dict[str, ImageRecord]  # Entries by path
    # relabelled and regrouped and moved and excluded and included: Numbers of images that got
    # another label, group or split, and of those whose tiles are no longer read, or are read again
    relabelled: int = 0
    regrouped: int = 0
    moved: int = 0
    excluded: int = 0
    included: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """The numbers, by name."""
        return {name: value for name, value in vars(self).items() if name != "entries"}

    def __bool__(self) -> bool:
        return any(self.counts.values())


def annotate_tiled(
    known: DataSet, table: Mapping[str, Annotation], path: str, *, new_classes: bool = False
) -> EditResult:
    """Give images the labels of a table, and its groups and splits if it has them."""
    entries = dict(known.entries)
    for source, name in files_of(known, table, path).items():
        annotation = table[name]
        if annotation.label not in known.image.classes and not new_classes:
            raise LabelError(
                f"{path} gives {name} the class {annotation.label!r}, and the data set has "
                f"{', '.join(known.image.classes)}. Take it by --new-classes, or mend the label."
            )
        fields: dict[str, Any] = {"label": annotation.label}
        fields |= {} if annotation.group is None else {"group": annotation.group}
        by_hand = tuple(sorted({*(entries[source].by_hand or ()), *fields}))
        fields |= {} if annotation.split is None else {"split": annotation.split}
        entries[source] = revised(entries[source], **fields, by_hand=by_hand)
    entries = _with_remembered(known, entries)
    _check(known, entries)
    return _compared(known, entries)


def resplit(known: DataSet, shares: str, seed: int, *, allow_empty: bool = False) -> EditResult:
    """Give all images new splits, as for a new data set."""
    fractions = parse_fractions(shares)
    sources = [
        # Excluded images stay with their groups, and do not count in the shares.
        replace(each, split=None, weight=each.weight if known.entries[each.path].has_rows else 0)
        for each in sources_of(UpdateActions(known.entries))
    ]
    paths = {each.path for each in sources}
    links = [pair for pair in _links(known, {}) if paths.issuperset(pair)]
    assigned = assign_splits(sources, fractions, seed, links=links)
    if not allow_empty:
        check_cells(sources, assigned, fractions, links)
    entries = dict(known.entries)
    for path, split in assigned.items():
        if entries[path].status == TILED:
            entries[path] = revised(entries[path], split=split)
        elif entries[path].split is not None:
            entries[path] = replace(entries[path], split=split)
    return _compared(known, entries)


def divide_into_folds(
    known: DataSet,
    by: str,
    seed: int = 0,
    name: str = "fold",
    *,
    former: Folds | None = None,
    allow_empty: bool = False,
) -> Folds:
    """Divide the images of a data set into folds; see `data_prep.splits.folds.assign_folds`."""
    now = UpdateActions(known.entries, base_records=known.entries)
    splits = current_splits(now)
    return assign_folds(
        [replace(each, split=splits.get(each.path)) for each in sources_of(now)],
        *(by, seed, name),
        former=former,
        links=_links(known, {}),
        without_rows={path for path, entry in known.entries.items() if not entry.has_rows},
        allow_empty=allow_empty,
    )


def exclude(known: DataSet, reasons: Mapping[str, str], path: str) -> EditResult:
    """Exclude images: their tiles stay on disk, but are not read."""
    entries = dict(known.entries)
    for source, name in files_of(known, reasons, path).items():
        entries[source] = replace(entries[source], set_aside=reasons[name])
    return _compared(known, entries)


def include(known: DataSet, names: Collection[str], path: str) -> EditResult:
    """Include images again that were excluded; see `exclude`."""
    entries = dict(known.entries)
    for source in files_of(known, names, path):
        entries[source] = replace(entries[source], set_aside=None)
    _check(known, entries)
    return _compared(known, entries)


def revised_content(
    known: DataSet, entries: Mapping[str, ImageRecord], **settings: Any
) -> dict[str, Any]:
    """Return the content of a manifest with other entries."""
    number = known.manifest.last_update + 1
    numbered = [
        entry if entry == known.entries[path] else replace(entry, update=number)
        for path, entry in entries.items()
    ]
    labels = {str(entry.label) for entry in entries.values() if entry.status == TILED}
    return {
        **known.content,
        **tables_of(with_classes(known.image, labels), numbered),
        "settings": {**known.content["settings"], **settings},
    }


def with_classes(image: Field, labels: Collection[str]) -> Field:
    """Return the image column with new classes added; the numbers of the others stay."""
    new = class_names(sorted(set(labels) - set(image.classes)))
    return replace(image, classes=(*image.classes, *new))


def parse_list(text: str, path: str) -> dict[str, str]:
    r"""Read a list of images to set aside.

    Examples
    --------
    >>> parse_list("file,reason\na/1.png,out of focus\na/2.png,\n", "bad.csv")
    {'a/1.png': 'out of focus', 'a/2.png': 'excluded'}
    """
    columns, rows = read_csv(text, path, LabelError)
    if "file" not in columns:
        raise LabelError(
            f"{path} must begin with a line naming the column file, and optionally reason. "
            f"Received: {', '.join(map(repr, columns)) or 'none'}."
        )
    reasons: dict[str, str] = {}
    for number, row in rows:
        if not row["file"] or None in row:
            raise LabelError(f"{path}, line {number}: no file, or too much: {row}.")
        name = unicodedata.normalize("NFC", row["file"])
        reasons[name] = row.get("reason") or EXCLUDED
    return reasons


def files_of(known: DataSet, names: Collection[str], path: str) -> dict[str, str]:
    """Return the names in a table by the paths of the tiled images that they refer to."""
    places: dict[str, list[str]] = {}
    for source, entry in known.entries.items():
        if entry.status == TILED:
            whole = unicodedata.normalize("NFC", source)
            for name in {whole, whole.rsplit("/", 1)[-1]}:
                places.setdefault(name, []).append(source)
    matches: dict[str, str] = {}
    for name in names:
        # A name is first compared with whole paths, then with file names.
        meant = [
            each for each in places.get(name, ()) if unicodedata.normalize("NFC", each) == name
        ]
        meant = meant or places.get(name, [])
        if len(meant) != 1:
            problem = f"is {' and '.join(meant[:3])}" if meant else "is not an image that is tiled"
            raise LabelError(f"{path} names {name}, which {problem}. Write the path.")
        if meant[0] in matches:
            raise LabelError(f"{path} names {meant[0]} twice, as {matches[meant[0]]} and {name}.")
        matches[meant[0]] = name
    return matches


def _links(known: DataSet, current: Mapping[str, str]) -> list[tuple[str, str]]:
    joined = known.content["settings"].get("near_duplicates") == "join"
    return must_link_pairs(known.manifest.near_duplicates, current) if joined else []


def _check(known: DataSet, entries: Mapping[str, ImageRecord]) -> None:
    """Refuse splits that separate what belongs together and was not separate before.

    Images without rows count, as they do at night: removed and excluded ones, and copies.
    """
    now = UpdateActions(dict(entries), base_records=entries)
    before = UpdateActions(known.entries, base_records=known.entries)
    links = _links(known, current_splits(before))
    sources = sources_of(now)
    paths = {each.path for each in sources}
    split_conflicts(
        sources,
        current_splits(now),
        [pair for pair in links if paths.issuperset(pair)],
    )


def _with_remembered(known: DataSet, entries: Mapping[str, ImageRecord]) -> dict[str, ImageRecord]:
    """Return the entries; those of removed images get the split that their picture has now."""
    moved = {
        entry.content: entry.split
        for path, entry in entries.items()
        if entry.split != known.entries[path].split
    }
    return {
        path: replace(entry, split=moved[entry.content])
        if entry.status == REMOVED and entry.content in moved
        else entry
        for path, entry in entries.items()
    }


def _compared(known: DataSet, entries: dict[str, ImageRecord]) -> EditResult:
    pairs: Sequence[tuple[ImageRecord, ImageRecord]] = [
        (known.entries[path], entry) for path, entry in entries.items() if entry.status == TILED
    ]
    differ = {
        name: sum(getattr(old, name) != getattr(new, name) for old, new in pairs)
        for name in ("label", "group", "split")
    }
    aside = [(old.set_aside is not None, new.set_aside is not None) for old, new in pairs]
    return EditResult(
        entries,
        relabelled=differ["label"],
        regrouped=differ["group"],
        moved=differ["split"],
        excluded=aside.count((False, True)),
        included=aside.count((True, False)),
    )
