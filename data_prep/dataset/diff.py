"""What differs between the input folder and a data set; no I/O.

An image is identified by its path and its content. A file whose length and modification time are
those of the last update is not read again. Any other is read, and its digests decide.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, replace

from data_prep.geometry.regions import ZoneRules
from data_prep.splits.assign import SPLITS
from data_prep.splits.labels import Annotation
from distkeras_grid.dataset.manifest import LEFT_OUT, TILED, ImageRecord


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file of the input folder."""

    uri: str  # The whole path, as Spark names it
    length: int  # Length of the file, bytes
    modified: int  # Time of the last change, milliseconds since 1970


@dataclass(frozen=True)
class FolderDiff:
    """What the listing of the input folder says, before any image is read; paths are sorted."""

    unchanged: tuple[str, ...]  # Images that need not be read
    # New and touched images, and those that could not be tiled last time
    to_scan: tuple[str, ...]
    removed: tuple[str, ...]  # Tiled images that are no longer there
    problems: dict[str, str]  # Why other images cannot be tiled, by path
    away: tuple[str, ...] = ()  # Tiled images that cannot be seen now and are not removed

    @property
    def unread(self) -> tuple[str, ...]:
        """Images that stay as they are, and are not read."""
        return self.unchanged + self.away


def with_zones(records: Mapping[str, ImageRecord], zones: ZoneRules) -> dict[str, ImageRecord]:
    """Return the records; images whose zones have changed count as touched."""
    return {
        path: replace(record, modified=None)
        if record.status == TILED and record.zones != zones.digest(path)
        else record
        for path, record in records.items()
    }


def diff_folder(
    base_records: Mapping[str, ImageRecord],
    files: Mapping[str, FileInfo],
    annotations: Mapping[str, Annotation],
    problems: Mapping[str, str],
    classes: tuple[str, ...],
    *,
    prune: bool,
    fingerprints: Container[str] | None = None,
    new_classes: bool = False,
    unseen: Collection[str] = (),
) -> FolderDiff:
    """Return which images must be read.

    `classes`: names of the classes; empty where there is none yet. `fingerprints`: digests of
    pixels that have a fingerprint; images without one are read again. Default: all. `unseen`:
    files and folders that cannot be seen.
    """
    same = {path for path, file in files.items() if _is_same_file(base_records.get(path), file)}
    reasons = dict(problems)
    if classes and not new_classes:
        reasons |= {
            path: f"{path} has the class {each.label!r}, and the data set has "
            f"{', '.join(classes)}; models of it know no other. Take it by --new-classes, or mend "
            "the label"
            for path, each in annotations.items()
            if each.label not in classes
        }
    usable = files.keys() - reasons.keys()
    gone = {
        path
        for path, record in base_records.items()
        if record.status == TILED and path not in files
    }
    away = {path for path in gone if any(each in unseen for each in (path, *folders_of(path)))}
    unchanged = {path for path in same & usable if _is_tiled(base_records[path], fingerprints)}
    # A copy is read if the label of its picture has changed, and the change is reported.
    labels = {
        base_records[path].content: annotations[path].label
        if path in annotations
        else base_records[path].label
        for path in unchanged | (away if prune else gone)
    }
    unchanged |= {
        path
        for path in same & usable
        if base_records[path].status == LEFT_OUT
        and labels.get(base_records[path].content) == annotations[path].label
    }
    return FolderDiff(
        unchanged=tuple(sorted(unchanged)),
        to_scan=tuple(sorted(usable - unchanged)),
        removed=tuple(sorted(gone - away)),
        problems=reasons,
        away=tuple(sorted(away)),
    )


def _is_same_file(record: ImageRecord | None, file: FileInfo) -> bool:
    stamp = file.length, file.modified
    return record is not None and (record.length, record.modified) == stamp


def _is_tiled(record: ImageRecord, fingerprints: Container[str] | None) -> bool:
    # Without the fingerprint, a copy in another format would not be found.
    digest = record.pixel_sha256
    is_known = digest is not None and (fingerprints is None or digest in fingerprints)
    return record.status == TILED and is_known


def folders_of(path: str) -> list[str]:
    """Return the folders above a path.

    Examples
    --------
    >>> folders_of("a/b/0.png")
    ['a', 'a/b']
    """
    return [path[:at] for at, letter in enumerate(path) if letter == "/"]


def precheck_files(
    files: Mapping[str, FileInfo], annotations: Mapping[str, Annotation], most_bytes: int
) -> dict[str, str]:
    """Return why images cannot be tiled, as far as that is known before they are read.

    `most_bytes`: bytes of the largest file that can be read.
    """
    reasons: dict[str, str] = {}
    chosen = any(each.split for each in annotations.values())
    for path, file in files.items():
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
