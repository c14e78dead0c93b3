"""Decisions of people about images, and which image keeps them; no I/O.

A label, a group or an exclusion that `distkeras-grid revise` set stands until it is revised again.
It belongs to the picture, under whatever name the picture comes back. If a file has a new picture
under its old name, it keeps what was set for this name: mostly it is the same image, edited or
converted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from data_prep.dataset.manifest import REMOVED, TILED, ImageRecord
from data_prep.spark.passes import ImageScan
from data_prep.splits.labels import Annotation


def apply_overrides(entry: ImageRecord | None, annotation: Annotation) -> Annotation:
    """Return the annotation of an image; what was set by hand stays."""
    by_hand = {name: getattr(entry, name) for name in _names(entry)}
    return replace(annotation, **by_hand) if by_hand else annotation


def _names(entry: ImageRecord | None) -> tuple[str, ...]:
    return (entry.by_hand or ()) if entry and entry.status in (TILED, REMOVED) else ()


def override_fields(entry: ImageRecord | None) -> dict[str, Any]:
    """Return the fields of an entry that the entry of its new tiles takes over."""
    fields = {} if entry is None else {"set_aside": entry.set_aside, "by_hand": entry.by_hand}
    return {name: value for name, value in fields.items() if value is not None}


def match_previous(
    entries: Mapping[str, ImageRecord], unread: Iterable[str], scans: Mapping[str, ImageScan]
) -> dict[str, ImageRecord]:
    """Return the entries from which images take what was set by hand, by path of the image."""
    standing = {entries[path].content for path in unread}
    known = [entry for entry in entries.values() if entry.status in (TILED, REMOVED)]
    # Of several entries of one picture, the one with tiles is the latest.
    known.sort(key=lambda entry: entry.status == TILED)
    by_content = {entry.content: entry for entry in known}
    by_path = {entry.source: entry for entry in known}
    result = {}
    for path, scan in scans.items():
        own = by_path.get(path)
        if scan.error is None and not (own and own.content == scan.content):
            other = None if scan.content in standing else by_content.get(scan.content)
            own = other or own
        if own is not None:
            result[path] = own
    return result


def annotated(
    plain: Mapping[str, Annotation],
    annotations: Mapping[str, Annotation],
    before: Mapping[str, ImageRecord],
    classes: Collection[str],
) -> dict[str, Annotation]:
    """Return the annotations of all images, once it is known which file has which picture."""
    now = {
        path: apply_overrides(entry, plain[path])
        for path, entry in before.items()
        if path in annotations
    }
    return {
        **annotations,
        **{p: each for p, each in now.items() if not classes or each.label in classes},
    }
