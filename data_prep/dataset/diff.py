"""What an update of a data set has to do: a pure comparison of the folder with what was tiled.

An image is known by its path and its content. If its length and its time of change are those of the
last update, it is not read again. Otherwise it is read, and its digest decides.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from data_prep.dataset.manifest import (
    LEFT_OUT,
    QUARANTINED,
    REMOVED,
    TILED,
    ImageRecord,
    UnassignedImage,
    revised,
)
from data_prep.dataset.overrides import apply_overrides, match_previous, override_fields
from data_prep.dataset.schema import max_stored_value
from data_prep.geometry.regions import ZoneRules
from data_prep.spark.broken_links import folders_of
from data_prep.spark.passes import ImageScan
from data_prep.splits.assign import (
    SPLITS,
    SplitSource,
    assign_splits,
    connected_groups,
    same_as,
    split_conflicts,
)
from data_prep.splits.duplicate_pairs import must_link_pairs, remap_pairs
from data_prep.splits.labels import Annotation
from data_prep.splits.near_duplicates import DuplicatePair
from distkeras_grid.feeding.schema import Field

MOVE = "move it by distkeras-grid revise --labels, or mend the table"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file of the input folder."""

    uri: str  # The whole path, as Spark names it
    length: int  # Length of the file, bytes
    modified: int  # Time of the last change, milliseconds since 1970


@dataclass(frozen=True)
class FolderDiff:
    """What the listing of the input folder tells, before any image is read."""

    unchanged: tuple[str, ...]  # Images that need not be read
    # New and touched images, and those that could not be tiled last time
    candidates: tuple[str, ...]
    removed: tuple[str, ...]  # Tiled images that are no longer there
    problems: dict[str, str]  # Why other images cannot be tiled, by path
    # Images that are as they were when they were put into quarantine
    quarantined: tuple[str, ...] = ()
    away: tuple[str, ...] = ()  # Tiled images that cannot be seen now and are not removed

    @property
    def unread(self) -> tuple[str, ...]:
        """Images that stay as they are, and are not read."""
        return self.unchanged + self.away


@dataclass
class UpdateActions:
    """What an update does."""

    # Images of the new data set, without the images that are still to be tiled
    entries: dict[str, ImageRecord]
    work: list[str] = field(default_factory=list)  # Images to tile
    dropped: list[ImageRecord] = field(
        default_factory=list
    )  # Images whose present tiles are dropped
    problems: dict[str, str] = field(default_factory=dict)  # Why images could not be tiled, by path
    # New paths of images that lie elsewhere now, by their former ones
    moved: dict[str, str] = field(default_factory=dict)
    # Images that have another label now; their tiles stay as they are
    relabelled: set[str] = field(default_factory=set)
    # Fields that the entries of images to tile take over, because they were set by hand
    decided: dict[str, dict[str, Any]] = field(default_factory=dict)
    # Why images do not stand in the split that a table gives them, by path
    ignored_splits: dict[str, str] = field(default_factory=dict)

    def excluded(self, path: str) -> str | None:
        """Return why the new tiles of an image will not be read; None if they will."""
        reason: str | None = self.decided.get(path, {}).get("set_aside")
        return reason

    def replaced(self) -> list[str]:
        """Return which images to tile have tiles already."""
        return sorted({entry.source for entry in self.dropped} & set(self.work))


def with_zones(entries: Mapping[str, ImageRecord], zones: ZoneRules) -> dict[str, ImageRecord]:
    """Return the entries; images whose zones have changed are marked as touched."""
    return {
        path: replace(entry, modified=None)
        if entry.status == TILED and entry.zones != zones.digest(path)
        else entry
        for path, entry in entries.items()
    }


def compare(
    entries: Mapping[str, ImageRecord],
    listed: Mapping[str, FileInfo],
    annotations: Mapping[str, Annotation],
    problems: Mapping[str, str],
    classes: tuple[str, ...],
    *,
    prune: bool,
    fingerprints: Container[str] | None = None,
    new_classes: bool = False,
    hidden: Collection[str] = (),
) -> FolderDiff:
    """Tell which images must be read.

    `classes`: names of the classes; empty where there is none yet. `fingerprints`: digests of
    pixels that have a fingerprint; images without one are read again. Default: all.
    """
    quarantined = {path for path in listed if _is_quarantined(entries.get(path), listed[path])}
    reasons = {path: reason for path, reason in problems.items() if path not in quarantined}
    for path, annotation in annotations.items():
        if classes and not new_classes and annotation.label not in classes:
            reasons[path] = (
                f"{path} has the class {annotation.label!r}, and the data set has "
                f"{', '.join(classes)}; models of it know no other. Take it by --new-classes, or "
                "mend the label"
            )
    gone = {path for path, entry in entries.items() if entry.status == TILED and path not in listed}
    away = {path for path in gone if any(each in hidden for each in (path, *folders_of(path)))}
    removed = gone - away
    usable = [path for path in listed if path not in reasons]
    unchanged = {
        path for path in usable if _is_tiled(entries.get(path), listed[path], fingerprints)
    }
    standing = unchanged | away if prune else unchanged | gone
    labels = {
        entries[path].content: annotations[path].label
        if path in annotations
        else entries[path].label
        for path in standing
    }
    unchanged |= {
        path
        for path in usable
        # An image in quarantine may have no label: it is not read.
        if path in annotations
        and _is_known_copy(entries.get(path), listed[path], annotations[path].label, labels)
    }
    return FolderDiff(
        unchanged=tuple(sorted(unchanged)),
        candidates=tuple(sorted(set(usable) - unchanged - quarantined)),
        removed=tuple(sorted(removed)),
        problems=reasons,
        quarantined=tuple(sorted(quarantined)),
        away=tuple(sorted(away)),
    )


def _is_quarantined(entry: ImageRecord | None, listed: FileInfo) -> bool:
    return (
        entry is not None
        and entry.status == QUARANTINED
        and (entry.length, entry.modified) == (listed.length, listed.modified)
    )


def _is_tiled(
    entry: ImageRecord | None, listed: FileInfo, fingerprints: Container[str] | None
) -> bool:
    return (
        entry is not None
        and entry.status == TILED
        and (entry.length, entry.modified) == (listed.length, listed.modified)
        # Without the fingerprint, a copy in another format would not be found.
        and entry.pixel_sha256 is not None
        and (fingerprints is None or entry.pixel_sha256 in fingerprints)
    )


def _is_known_copy(
    entry: ImageRecord | None, listed: FileInfo, label: str, labels: Mapping[str | None, str | None]
) -> bool:
    return (
        entry is not None
        and entry.status == LEFT_OUT
        and (entry.length, entry.modified) == (listed.length, listed.modified)
        # If the label of the picture has changed, the image is read, and the change is reported.
        and labels.get(entry.content) == label
    )


def decide(
    entries: Mapping[str, ImageRecord],
    listed: Mapping[str, FileInfo],
    annotations: Mapping[str, Annotation],
    comparison: FolderDiff,
    scans: Mapping[str, ImageScan],
    image: Field,
    *,
    prune: bool,
) -> UpdateActions:
    """Decide what becomes of each image, once the candidates have been read."""
    changes = UpdateActions({})
    for path in comparison.unchanged:
        _keep(changes, entries[path], annotations[path])
    changes.entries |= {path: entries[path] for path in (*comparison.quarantined, *comparison.away)}
    changes.entries |= {
        path: entry
        for path, entry in entries.items()
        if entry.status == REMOVED and path not in listed
    }
    origins = _canonical_paths(entries, comparison, scans, image)
    changes.moved = {origin: path for path, origin in origins.items()}
    for path in comparison.removed:
        if path not in changes.moved:
            _remove(changes, entries[path], prune=prune)
    for path in sorted(comparison.problems):
        _leave_out(changes, path, entries.get(path), comparison.problems[path])
    touched = []
    for path in comparison.candidates:
        former, scan = entries.get(path), scans[path]
        reason = scan.error or _schema_mismatch(path, scan, image)
        if reason is not None:
            _leave_out(changes, path, former, reason)
        elif path in origins or _has_same_tiles(former, scan):
            known = entries[origins.get(path, path)]
            known = replace(known, pixel_sha256=scan.pixel_sha256 or None)
            _keep(changes, _with_file_info(known, listed[path]), annotations[path], path)
        else:
            touched.append(path)
    changes.dropped += [
        entries[path] for path in touched if path in entries and entries[path].status == TILED
    ]
    # A picture that two files have got belongs to the one that had tiles, and with them a split.
    had_tiles = {entry.source for entry in changes.dropped}
    touched.sort(key=lambda path: path not in had_tiles)
    _classify_changed(changes, touched, listed, annotations, scans)
    changes.work.sort()
    _remember(changes, entries, scans)
    before = match_previous(entries, comparison.unread, scans)
    changes.decided = {path: override_fields(before.get(path)) for path in changes.work}
    return changes


def _classify_changed(
    changes: UpdateActions,
    touched: list[str],
    listed: Mapping[str, FileInfo],
    annotations: Mapping[str, Annotation],
    scans: Mapping[str, ImageScan],
) -> None:
    """Tile each content once: the first image given, unless the content is tiled already."""
    standing = changes.entries.values()
    originals = {entry.content: entry for entry in standing if entry.status == TILED}
    for path in touched:
        scan = scans[path]
        label, group = annotations[path].label, annotations[path].group
        pixels = scan.pixel_sha256 or None
        new = ImageRecord(
            path, TILED, sha256=scan.sha256, label=label, group=group, pixel_sha256=pixels
        )
        original = originals.setdefault(new.content, new)
        if original is new:
            changes.work.append(path)
        elif original.label == new.label:
            reason = same_as(original.source, new, original)
            copy = replace(new, status=LEFT_OUT, reason=reason, label=None)
            changes.entries[path] = _with_file_info(copy, listed[path])
        else:
            _leave_out(changes, path, None, _two_labels(new, original, listed))


def _keep(
    changes: UpdateActions, entry: ImageRecord, annotation: Annotation, path: str | None = None
) -> None:
    """Keep an image's tiles, with the path, the label and the group that it has now.

    A later step decides whether the new group is possible.
    """
    path, annotation = path or entry.source, apply_overrides(entry, annotation)
    if entry.group != annotation.group:
        entry = replace(entry, group=annotation.group)
    if entry.status == TILED and (entry.source, entry.label) != (path, annotation.label):
        if entry.label != annotation.label:
            changes.relabelled.add(path)
        entry = revised(entry, source=path, label=annotation.label)
    changes.entries[path] = entry


def _canonical_paths(
    entries: Mapping[str, ImageRecord],
    comparison: FolderDiff,
    scans: Mapping[str, ImageScan],
    image: Field,
) -> dict[str, str]:
    """Return the former paths of images that lie elsewhere now, by their new ones."""
    gone = {(entries[path].content, entries[path].zones): path for path in comparison.removed}
    origins = {}
    for path in comparison.candidates:
        scan, former = scans[path], entries.get(path)
        usable = scan.error is None and _schema_mismatch(path, scan, image) is None
        if usable and (former is None or former.status != TILED):
            origin = gone.get((scan.content, scan.zones))
            # Rows hold the digest of the file, so another file with the same pixels is a copy.
            if origin is not None and entries[origin].sha256 == scan.sha256:
                origins[path] = gone.pop((scan.content, scan.zones))
    return origins


def _remember(
    changes: UpdateActions, entries: Mapping[str, ImageRecord], scans: Mapping[str, ImageScan]
) -> None:
    """Remember pictures whose names have other pictures now, or whose tiles get another name.

    No entry of this night would tell their splits; one that is killed, or loses an image while it
    is cut, ends with these entries.
    """
    contents = {entry.content for entry in changes.entries.values() if entry.split}
    to_tile = set(changes.work)
    for path, former in entries.items():
        in_place = path in to_tile and scans[path].content == former.content
        if former.split and former.content not in contents and not in_place:
            changes.entries[former_name(former)] = _remembered(former)


def former_name(former: ImageRecord) -> str:
    """Return the name under which a picture is remembered after its file got another picture."""
    return f"{former.source}#{str(former.content)[:16]}"


def _remembered(former: ImageRecord) -> ImageRecord:
    """Return the entry of a picture that is gone; its split and its group stay known."""
    gone = replace(_without_rows(former), reason=None, length=None, modified=None)
    return replace(gone, source=former_name(former))


def _without_rows(entry: ImageRecord) -> ImageRecord:
    """Return the entry of an image whose tiles are dropped; its split and its group stay known."""
    gone = replace(entry, status=REMOVED, tiles=0, shard=None)
    return replace(gone, stored_source=None, stored_label=None, stored_split=None)


def _remove(changes: UpdateActions, entry: ImageRecord, *, prune: bool) -> None:
    """Drop a removed image's tiles, or keep them; its split is remembered in any case."""
    changes.entries[entry.source] = entry
    if prune:
        changes.dropped.append(entry)
        changes.entries[entry.source] = _without_rows(entry)


def _leave_out(changes: UpdateActions, path: str, former: ImageRecord | None, reason: str) -> None:
    """List an image that cannot be tiled; the next update tries it again."""
    changes.problems[path] = reason
    changes.entries[path] = ImageRecord(path, LEFT_OUT, reason=reason)
    if former is None:
        return
    if former.status == TILED:
        text = f"{reason}; its former tiles are kept"
        changes.problems[path] = text
        changes.entries[path] = replace(former, reason=text, length=None, modified=None)
    elif former.content and (former.split or former.group):
        # A file of this name is there, but the picture that it had may come back.
        changes.entries[former_name(former)] = _remembered(former)


def _schema_mismatch(path: str, scan: ImageScan, image: Field) -> str | None:
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


def _has_same_tiles(former: ImageRecord | None, scan: ImageScan) -> bool:
    return (
        former is not None
        and former.status == TILED
        and (former.sha256, former.zones) == (scan.sha256, scan.zones)
    )


def _with_file_info(entry: ImageRecord, listed: FileInfo) -> ImageRecord:
    reason = entry.reason if entry.status == LEFT_OUT else None
    return replace(entry, reason=reason, length=listed.length, modified=listed.modified)


def _two_labels(new: ImageRecord, original: ImageRecord, listed: Mapping[str, FileInfo]) -> str:
    gone = "" if original.source in listed else ", which is no longer there: --prune drops it"
    return (
        f"{new.source} is labelled {new.label!r}, and has {same_as(original.source, new, original)}"
        f", labelled {original.label!r}{gone}; keep the right one"
    )


def precheck_files(
    listed: Mapping[str, FileInfo], annotations: Mapping[str, Annotation], most_bytes: int
) -> dict[str, str]:
    """Return why images cannot be tiled, as far as that is known before they are read.

    `most_bytes`: bytes of the largest file that can be read.
    """
    reasons: dict[str, str] = {}
    chosen = any(each.split for each in annotations.values())
    for path, file in listed.items():
        if file.length == 0:
            reasons[path] = f"{path} is empty (0 bytes). Copy it again, or remove it."
        elif file.length > most_bytes:
            reasons[path] = (
                f"{path} has {file.length:,} bytes, and files of this kind are read up to "
                f"{most_bytes:,}. Cut it into smaller images."
            )
        elif chosen and path in annotations and annotations[path].split not in SPLITS:
            reasons[path] = (
                f"{path} has the split {annotations[path].split!r}, and where splits are chosen "
                f"each image needs one of {', '.join(SPLITS)}. Write it into the table."
            )
    return reasons


def decoded_images(scans: Mapping[str, ImageScan]) -> set[str]:
    """Return which images were read and cannot be tiled.

    An image that could not be read is not judged. Its file may be fine once permissions or the
    network are mended, although the file itself has not changed.
    """
    return {path for path, scan in scans.items() if scan.error and scan.sha256}


def quarantine(
    changes: UpdateActions, listed: Mapping[str, FileInfo], paths: Collection[str]
) -> None:
    """Put images into quarantine: no later update reads them until they change."""
    for path in paths:
        entry, file = changes.entries[path], listed[path]
        status = QUARANTINED if entry.status == LEFT_OUT else entry.status
        changes.entries[path] = replace(
            entry, status=status, length=file.length, modified=file.modified
        )


def splits_of(
    changes: UpdateActions,
    entries: Mapping[str, ImageRecord],
    annotations: Mapping[str, Annotation],
    scans: Mapping[str, ImageScan],
    fractions: Mapping[str, float],
    seed: int,
    pairs: Sequence[DuplicatePair] = (),
    waiting: Iterable[UnassignedImage] = (),
) -> dict[str, str]:
    """Assign the images to tile to splits. An image keeps its split, by path and by content.

    Groups count under their present names, those of removed images under their last ones. A new
    image gets the split that a table has chosen for it, else the one that a killed update has
    decided for it. One that would join images of different splits is left out.
    """
    table = {path: each.split for path, each in annotations.items() if each.split}
    contents = contents_of(changes, scans)
    left_out: set[str] = set()
    while True:
        current = current_splits(changes, entries, scans)
        chosen = {path: split for path, split in table.items() if path not in current}
        sources = sources_of(changes, annotations, scans)
        links = must_link_pairs(remap_pairs(pairs, contents, names_of(changes, scans)), current)
        torn = split_conflicts(sources, current, links, chosen)
        if left_out.issuperset(torn):
            break
        # If an image is left out, its former tiles or its picture's copies are still there, and
        # what belongs to them must not go to another split.
        for path, reason in torn.items():
            mark_failed(changes, path, entries.get(path), reason)
        left_out |= torn.keys()
        while again := _restored_images(changes, scans):
            for path, reason in again.items():
                mark_failed(changes, path, entries.get(path), reason)
    changes.ignored_splits = {
        path: f"the table says {table[path]}, and it stays in {split}; {MOVE}"
        for path, split in current.items()
        if table.get(path, split) != split
    }
    standing = {**chosen, **current}
    decided = _decided(changes, annotations, scans, waiting)
    standing |= _matching_labels(decided, sources, links, standing)
    assigned = assign_splits(sources, fractions, seed, standing, links)
    return {path: assigned[path] for path in changes.work}


def _decided(
    changes: UpdateActions,
    annotations: Mapping[str, Annotation],
    scans: Mapping[str, ImageScan],
    waiting: Iterable[UnassignedImage],
) -> dict[str, str]:
    """Return the splits that a killed update decided, by path, where they are still good.

    They are not if the label or the group was corrected, on which they were based.
    """
    known = {(each.content, each.label, each.group): each.split for each in waiting}
    decided = {}
    for path in changes.work:
        key = (scans[path].content, annotations[path].label, annotations[path].group)
        if key in known:
            decided[path] = known[key]
    return decided


def _matching_labels(
    decided: Mapping[str, str],
    sources: Sequence[SplitSource],
    links: Iterable[tuple[str, str]],
    standing: Mapping[str, str],
) -> dict[str, str]:
    """Return the decided splits without those that would tear what belongs together now."""
    fitting: dict[str, str] = {}
    if not decided:
        return fitting
    for unit in connected_groups(sources, links):
        paths = [source.path for source in unit]
        if standing.keys().isdisjoint(paths):
            first = min((path for path in paths if path in decided), default=None)
            fitting |= {first: decided[first]} if first is not None else {}
    return fitting


def _restored_images(changes: UpdateActions, scans: Mapping[str, ImageScan]) -> dict[str, str]:
    """Return why images need not be tiled: their pictures have tiles, which were to be dropped."""
    standing = {e.content: e for e in changes.entries.values() if e.status == TILED}
    return {
        path: f"{path} has {same_as(entry.source, scans[path], entry)}, whose tiles are kept"
        for path in changes.work
        if (entry := standing.get(scans[path].content))
    }


def current_splits(
    changes: UpdateActions, entries: Mapping[str, ImageRecord], scans: Mapping[str, ImageScan]
) -> dict[str, str]:
    """Return the splits that stay, by path; also those of copies and of removed images."""
    by_content = {entry.content: entry.split for entry in entries.values() if entry.split}
    splits = {}
    for path, entry in changes.entries.items():
        # Copies of tiled images stay in their splits; new copies may turn out not to fit.
        copied = by_content.get(entry.content) if path not in scans else None
        split = entry.split or (copied if entry.content else None)
        if split:
            splits[path] = split
    for path in changes.work:
        former = entries.get(path)
        # Content first: an image that models were trained on must not come back as a test image.
        split = by_content.get(scans[path].content) or (former.split if former else None)
        if split:
            splits[path] = split
    return splits


def sources_of(
    changes: UpdateActions,
    annotations: Mapping[str, Annotation],
    scans: Mapping[str, ImageScan],
) -> list[SplitSource]:
    """Return all images that are tiled, will be, or are remembered: removed ones and copies."""
    # A picture that was removed twice may have had two labels.
    labels = {entry.content: str(entry.label) for entry in changes.entries.values() if entry.label}
    labels |= {
        entry.content: str(entry.label)
        for entry in changes.entries.values()
        if entry.status == TILED
    }
    labels |= {scans[path].content: annotations[path].label for path in changes.work}
    sources, to_tile = [], set(changes.work)
    for path, entry in changes.entries.items():
        if entry.content is None or path in to_tile:
            continue
        # An image that got another class left its former label behind.
        label = labels.get(entry.content) or str(entry.label)
        weight = entry.tiles if entry.status == TILED else 0
        sources.append(
            SplitSource(
                *(path, str(entry.sha256), label, entry.group),
                pixel_sha256=entry.pixel_sha256,
                weight=weight,
            )
        )
    for path in changes.work:
        scan = scans[path]
        sources.append(
            SplitSource(
                *(path, scan.sha256, annotations[path].label, annotations[path].group),
                pixel_sha256=scan.pixel_sha256 or None,
                weight=scan.tiles,
            )
        )
    return sources


def contents_of(changes: UpdateActions, scans: Mapping[str, ImageScan]) -> dict[str, str | None]:
    """Return the digests of the pixels of all images that are known now, by path."""
    contents = {path: entry.pixel_sha256 for path, entry in changes.entries.items()}
    return contents | {path: scans[path].pixel_sha256 or None for path in changes.work}


def new_pictures(
    changes: UpdateActions, entries: Mapping[str, ImageRecord], scans: Mapping[str, ImageScan]
) -> set[str]:
    """Return the digests of the pixels of images to tile that were not there before.

    Images like them have not been looked for, even if their fingerprints are known: they were left
    out, have come back, or belong to a data set that is replaced.
    """
    then = {path: entry.pixel_sha256 for path, entry in entries.items()}
    now = {path: scans[path].pixel_sha256 for path in changes.work}
    return {pixels for path, pixels in now.items() if pixels and then.get(path) != pixels}


def names_of(changes: UpdateActions, scans: Mapping[str, ImageScan]) -> dict[str, str]:
    """Return a path of each picture that is known now, by the digest of its pixels.

    It is that of its tiles, where it has some or will have some: a copy may be left out or deleted,
    and what its picture is like must not be forgotten with it.
    """
    order = {REMOVED: 0, TILED: 2}
    # The last one stands: the first by path of those that say most.
    listed = sorted(changes.entries.items(), reverse=True)
    listed.sort(key=lambda item: order.get(item[1].status, 1))
    names = {entry.pixel_sha256: path for path, entry in listed if entry.pixel_sha256}
    return names | {pixels: path for path in changes.work if (pixels := scans[path].pixel_sha256)}


def mark_failed(changes: UpdateActions, path: str, former: ImageRecord | None, reason: str) -> None:
    """Leave out an image that was about to be tiled, or remembered as a copy.

    `former`: what was known of it before. Its present tiles stay. If it has none, its split and
    group are still remembered.
    """
    if path in changes.work:
        changes.work.remove(path)
    if former is not None and former in changes.dropped:
        changes.dropped.remove(former)
        changes.entries.pop(former_name(former), None)
    _leave_out(changes, path, former, reason)
