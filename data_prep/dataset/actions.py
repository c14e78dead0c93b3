"""What an update does with each image, once the new and touched ones were scanned; no I/O.

Tiles belong to a picture and not to a path: of each picture there is one record with tiles. A file
with the bytes of a tiled picture takes over its tiles, wherever it lies. An image that cannot be
tiled keeps its former tiles, unless their picture is tiled under another path.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from data_prep.dataset.diff import FileInfo, FolderDiff
from data_prep.dataset.manifest import revised
from data_prep.dataset.overrides import apply_overrides
from data_prep.dataset.schema import max_stored_value
from data_prep.spark.passes import ImageScan
from data_prep.splits.assign import (
    SplitSource,
    assign_splits,
    same_as,
    split_conflicts,
)
from data_prep.splits.duplicate_pairs import must_link_pairs, remap_pairs
from data_prep.splits.labels import Annotation
from distkeras_grid.dataset.manifest import (
    LEFT_OUT,
    REMOVED,
    TILED,
    DuplicatePair,
    ImageRecord,
)
from distkeras_grid.feeding.schema import Field

MOVE = "move it by distkeras-grid revise --labels, or mend the table"
# What a scan measures and a record keeps: the fields of both.
OF_SCANS = sorted(
    {each.name for each in fields(ImageScan)} & {each.name for each in fields(ImageRecord)}
)


@dataclass
class UpdateActions:
    """What an update does with each image; all mappings are by path."""

    records: dict[str, ImageRecord]  # Of all images that are not tiled in this update
    to_tile: dict[str, ImageRecord] = field(default_factory=dict)  # As they will be
    dropped: dict[str, ImageRecord] = field(default_factory=dict)  # Whose present tiles go
    base_records: Mapping[str, ImageRecord] = field(default_factory=dict, repr=False)
    scanned: Collection[str] = ()
    problems: dict[str, str] = field(default_factory=dict)  # Why images could not be tiled
    # New paths of images that lie elsewhere now, by their former ones
    moved: dict[str, str] = field(default_factory=dict)
    # Images that have another label now; their tiles stay as they are
    relabelled: set[str] = field(default_factory=set)
    # Why images do not stand in the split that a table gives them
    ignored_splits: dict[str, str] = field(default_factory=dict)
    replaced: frozenset[str] = frozenset()  # Images to tile that had tiles before

    @property
    def all_records(self) -> dict[str, ImageRecord]:
        """Records of all images, as they will be after the update."""
        return {**self.records, **self.to_tile}

    @property
    def contents(self) -> dict[str, str | None]:
        """Digests of the pixels."""
        return {path: record.pixel_sha256 for path, record in self.all_records.items()}

    def fail(self, reasons: Mapping[str, str]) -> None:
        """Leave out images that were about to be tiled, or new copies.

        The result is the same whether images fail together or one after another.
        """
        for path, reason in reasons.items():
            self.to_tile.pop(path, None)
            self.leave_out(path, reason)
        tiled = {record.content for record in self.to_tile.values()}
        for path in sorted(self.dropped.keys() & self.problems.keys()):
            if self.dropped[path].content not in tiled:
                former = self.dropped.pop(path)
                self.records.pop(former_name(former), None)
                self.keep_tiles(former, self.problems[path])

    def leave_out(self, path: str, reason: str) -> None:
        """List an image that cannot be tiled; the next update tries it again.

        A file of this name is there, but the picture that it had may come back.
        """
        self.problems[path] = reason
        self.records[path] = ImageRecord(path, LEFT_OUT, reason=reason)
        former = self.base_records.get(path)
        if former is None or former.status == TILED or not former.content:
            return
        if former.split or former.group:
            self.records[former_name(former)] = _remembered(former)

    def keep_tiles(self, former: ImageRecord, reason: str) -> None:
        """Keep the tiles of an image that cannot be tiled again."""
        text = f"{reason}; its former tiles are kept"
        self.problems[former.source] = text
        self.records[former.source] = replace(former, reason=text, length=None, modified=None)


def decide_actions(
    base_records: Mapping[str, ImageRecord],
    files: Mapping[str, FileInfo],
    annotations: Mapping[str, Annotation],
    diff: FolderDiff,
    scans: Mapping[str, ImageScan],
    previous: Mapping[str, ImageRecord],
    image: Field,
    *,
    prune: bool,
) -> UpdateActions:
    """Decide what becomes of each image.

    `previous`: records from which images take what was set by hand; see `match_previous`.
    """
    actions = UpdateActions({}, base_records=base_records, scanned=frozenset(scans))
    for path in diff.unchanged:
        _keep(actions, base_records[path], annotations[path])
    actions.records |= {path: base_records[path] for path in diff.away}
    actions.records |= {
        path: record
        for path, record in base_records.items()
        if record.status == REMOVED and path not in files
    }
    unusable = {
        path: reason
        for path in diff.to_scan
        if (reason := scans[path].error or schema_mismatch(path, scans[path], image))
    }
    for path, reason in sorted({**diff.problems, **unusable}.items()):
        former = base_records.get(path)
        if former is not None and former.status == TILED:
            actions.keep_tiles(former, reason)
        else:
            actions.leave_out(path, reason)
    usable = [path for path in diff.to_scan if path not in unusable]
    takes = _match_tiles(base_records, diff.removed, usable, scans)
    for path, record in takes.items():
        scanned = replace(record, pixel_sha256=scans[path].pixel_sha256 or None)
        _keep(actions, _with_file_info(scanned, files[path]), annotations[path], path)
    actions.moved = {each.source: path for path, each in takes.items() if each.source != path}
    stay = {record.source for record in takes.values()}
    for path in (*diff.removed, *usable):
        former = base_records.get(path)
        if former is not None and former.status == TILED and path not in stay:
            if path in files or prune:
                actions.dropped[path] = former
            if path not in files:
                actions.records[path] = _without_tiles(former) if prune else former
    new = {
        path: _new_record(path, scans[path], annotations[path], files[path], previous.get(path))
        for path in usable
        if path not in takes
    }
    _classify_new(actions, new, files)
    actions.replaced = frozenset(actions.to_tile.keys() & actions.dropped.keys())
    _remember(actions)
    return actions


def _match_tiles(
    base_records: Mapping[str, ImageRecord],
    removed: Iterable[str],
    usable: Sequence[str],
    scans: Mapping[str, ImageScan],
) -> dict[str, ImageRecord]:
    """Return the records whose tiles files take over, by the path of the file.

    Rows hold the digest of the file, so another file with the same pixels is a copy.
    """
    tiled = {
        path: record
        for path in (*removed, *usable)
        if (record := base_records.get(path)) is not None and record.status == TILED
    }
    keys = {path: (scans[path].sha256, scans[path].zones) for path in usable}
    takes = {
        path: record
        for path, record in tiled.items()
        if (record.sha256, record.zones) == keys.get(path)
    }
    free = {(each.sha256, each.zones): each for p, each in tiled.items() if p not in takes}
    for path in usable:
        if path not in takes and keys[path] in free:
            takes[path] = free.pop(keys[path])
    return takes


def _new_record(
    path: str,
    scan: ImageScan,
    annotation: Annotation,
    file: FileInfo,
    previous: ImageRecord | None,
) -> ImageRecord:
    values: dict[str, Any] = {name: getattr(scan, name) for name in OF_SCANS}
    values |= {"pixel_sha256": scan.pixel_sha256 or None}
    values |= {"length": file.length, "modified": file.modified}
    if previous is not None:
        values |= {"set_aside": previous.set_aside, "by_hand": previous.by_hand}
    return ImageRecord(path, TILED, label=annotation.label, group=annotation.group, **values)


def _classify_new(
    actions: UpdateActions, new: Mapping[str, ImageRecord], files: Mapping[str, FileInfo]
) -> None:
    """Tile each picture once: the first image with it, unless it has tiles already."""
    originals = {each.content: each for each in actions.records.values() if each.status == TILED}
    contradictions = {}
    # A picture that two files have got belongs to the one that had tiles, and with them a split.
    for path in sorted(new, key=lambda path: (path not in actions.dropped, path)):
        record = new[path]
        original = originals.setdefault(record.content, record)
        if original is record:
            actions.to_tile[path] = record
        elif original.label == record.label:
            actions.records[path] = _copy(record, original)
        else:
            contradictions[path] = _two_labels(record, original, files)
    actions.fail(contradictions)


def _copy(record: ImageRecord, original: ImageRecord) -> ImageRecord:
    """Return the record of an image that is not tiled, because another one has its pixels."""
    copy = ImageRecord(record.source, LEFT_OUT, reason=same_as(original.source, record, original))
    names = ("sha256", "pixel_sha256", "group", "length", "modified")
    return replace(copy, **{name: getattr(record, name) for name in names})


def _keep(
    actions: UpdateActions, record: ImageRecord, annotation: Annotation, path: str | None = None
) -> None:
    """Keep an image's tiles, with the path, the label and the group that it has now.

    A later step decides whether the new group is possible.
    """
    path, annotation = path or record.source, apply_overrides(record, annotation)
    if record.group != annotation.group:
        record = replace(record, group=annotation.group)
    if record.status == TILED and (record.source, record.label) != (path, annotation.label):
        if record.label != annotation.label:
            actions.relabelled.add(path)
        record = revised(record, source=path, label=annotation.label)
    actions.records[path] = record


def _remember(actions: UpdateActions) -> None:
    """Remember pictures whose paths have other pictures now, or whose tiles get another path.

    No record of this update would say their splits, also if it loses an image while it is cut.
    """
    contents = {record.content for record in actions.records.values() if record.split}
    for path, former in actions.base_records.items():
        new = actions.to_tile.get(path)
        in_place = new is not None and new.content == former.content
        if former.split and former.content not in contents and not in_place:
            actions.records[former_name(former)] = _remembered(former)


def former_name(former: ImageRecord) -> str:
    """Return the name under which a picture is remembered after its file got another picture."""
    return f"{former.source}#{str(former.content)[:16]}"


def _remembered(former: ImageRecord) -> ImageRecord:
    """Return the record of a picture that is gone; its split and its group stay known."""
    gone = replace(_without_tiles(former), reason=None, length=None, modified=None)
    return replace(gone, source=former_name(former))


def _without_tiles(record: ImageRecord) -> ImageRecord:
    """Return the record of an image whose tiles are dropped; its split and its group stay known."""
    gone = replace(record, status=REMOVED, tiles=0, shard=None)
    return replace(gone, stored_source=None, stored_label=None, stored_split=None)


def schema_mismatch(path: str, scan: ImageScan, image: Field) -> str | None:
    """Return why the tiles of an image do not fit the image column; None if they do."""
    channels = image.shape[2]
    if (scan.channels, scan.dtype) == (channels, image.dtype):
        white = max_stored_value(image)
        if 1 << scan.bits > white + 1:
            return (
                f"{path} has {scan.bits} significant bits, and the data set was made of images "
                f"with {white.bit_length()}; tile it into a new output by --bits {scan.bits}"
            )
        return None
    return (
        f"{path} has {scan.channels} channels of {scan.dtype}, and the data set has {channels} of "
        f"{image.dtype}; convert it"
    )


def _with_file_info(record: ImageRecord, file: FileInfo) -> ImageRecord:
    return replace(record, reason=None, length=file.length, modified=file.modified)


def _two_labels(new: ImageRecord, original: ImageRecord, files: Mapping[str, FileInfo]) -> str:
    gone = "" if original.source in files else ", which is no longer there: --prune drops it"
    return (
        f"{new.source} is labelled {new.label!r}, and has {same_as(original.source, new, original)}"
        f", labelled {original.label!r}{gone}; keep the right one"
    )


def assign_update_splits(
    actions: UpdateActions,
    table: Mapping[str, str],
    fractions: Mapping[str, float],
    seed: int,
    pairs: Sequence[DuplicatePair] = (),
) -> None:
    """Give the images to tile their splits. An image keeps its split, by path and by content.

    Groups count under their present names, those of removed images under their last ones. An image
    with another picture stays in its split unless it would join images of different splits. A new
    image gets the split that a table has chosen for it. Each image to tile that would join images
    of different splits is left out.

    `table`: chosen splits, by path.
    """
    contents = actions.contents
    failed: set[str] = set()
    while True:
        current = current_splits(actions)
        former = former_splits(actions, current)
        before = {**former, **current}
        chosen = {path: split for path, split in table.items() if path not in before}
        sources = sources_of(actions)
        links = must_link_pairs(remap_pairs(pairs, contents, names_of(actions)), before)
        conflicts = split_conflicts(sources, current, links, chosen, former)
        if failed.issuperset(conflicts):
            break
        # If an image is left out, its former tiles or its picture's copies are still there, and
        # what belongs to them must not go to another split.
        actions.fail(conflicts)
        failed |= conflicts.keys()
    actions.ignored_splits = {
        path: f"the table says {table[path]}, and it stays in {split}; {MOVE}"
        for path, split in before.items()
        if table.get(path, split) != split
    }
    splits = assign_splits(sources, fractions, seed, {**chosen, **before}, links)
    actions.to_tile = {
        path: replace(record, split=splits[path]) for path, record in actions.to_tile.items()
    }


def current_splits(actions: UpdateActions) -> dict[str, str]:
    """Return the splits that stay, by path; also those of copies and of removed images."""
    by_content = {each.content: each.split for each in actions.base_records.values() if each.split}
    splits: dict[str, str | None] = {}
    for path, record in actions.records.items():
        # Copies of tiled images stay in their splits; new copies may turn out not to fit.
        is_copy = record.content is not None and path not in actions.scanned
        splits[path] = record.split or (by_content.get(record.content) if is_copy else None)
    for path, record in actions.to_tile.items():
        # An image that models were trained on must not come back as a test image.
        splits[path] = by_content.get(record.content)
    return {path: split for path, split in splits.items() if split}


def former_splits(actions: UpdateActions, current: Container[str]) -> dict[str, str]:
    """Return the splits of images to tile whose paths had other pictures, by path."""
    records = {path: actions.base_records.get(path) for path in actions.to_tile}
    return {
        path: record.split
        for path, record in records.items()
        if path not in current and record is not None and record.split
    }


def sources_of(actions: UpdateActions) -> list[SplitSource]:
    """Return all images that are tiled, will be, or are remembered: removed ones and copies."""
    records = actions.all_records
    # An image that got another class left its former label behind: of records of one picture, the
    # one with tiles says its label.
    by_age = sorted(records.values(), key=lambda record: record.status == TILED)
    labels = {record.content: record.label for record in by_age if record.label}
    return [
        SplitSource(
            *(path, str(record.sha256), str(labels.get(record.content)), record.group),
            pixel_sha256=record.pixel_sha256,
            weight=record.tiles if record.status == TILED else 0,
        )
        for path, record in records.items()
        if record.content is not None
    ]


def new_pictures(actions: UpdateActions) -> set[str]:
    """Return the digests of the pixels of images to tile that were not there before.

    Images like them have not been looked for, even if their fingerprints are known: they were left
    out, have come back, or belong to a data set that is replaced.
    """
    before = {path: record.pixel_sha256 for path, record in actions.base_records.items()}
    return {
        record.pixel_sha256
        for path, record in actions.to_tile.items()
        if record.pixel_sha256 and before.get(path) != record.pixel_sha256
    }


def names_of(actions: UpdateActions) -> dict[str, str]:
    """Return a path of each picture that is known now, by the digest of its pixels.

    It is that of its tiles, where it has some or will have some: a copy may be left out or deleted,
    and what its picture is like must not be forgotten with it.
    """
    order = {REMOVED: 0, TILED: 2}
    # The last one stands: the first by path of those that say most.
    records = sorted(actions.records.items(), reverse=True)
    records.sort(key=lambda item: order.get(item[1].status, 1))
    records += actions.to_tile.items()
    return {record.pixel_sha256: path for path, record in records if record.pixel_sha256}
