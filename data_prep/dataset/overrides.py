"""Manual overrides of images: which image keeps them; no I/O.

A label, a group or an exclusion that `distkeras-grid revise` set stands until it is revised again.
It belongs to the picture, under whatever name the picture comes back. If a file has a new picture
under its old name, it keeps what was set for this name: mostly it is the same image, edited or
converted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from data_prep.spark.passes import ImageScan
from data_prep.splits.labels import Annotation
from distkeras_grid.dataset.manifest import REMOVED, TILED, ImageRecord


def apply_overrides(record: ImageRecord | None, annotation: Annotation) -> Annotation:
    """Return the annotation of an image; what was set by hand stays."""
    if record is None or not record.by_hand or record.status not in (TILED, REMOVED):
        return annotation
    return replace(annotation, **{name: getattr(record, name) for name in record.by_hand})


def match_previous(
    base_records: Mapping[str, ImageRecord], unread: Iterable[str], scans: Mapping[str, ImageScan]
) -> dict[str, ImageRecord]:
    """Return the records from which images take what was set by hand, by path of the image."""
    unread_contents = {base_records[path].content for path in unread}
    records = [each for each in base_records.values() if each.status in (TILED, REMOVED)]
    # Of several records of one picture, the one with tiles is the latest.
    records.sort(key=lambda record: record.status == TILED)
    by_content = {record.content: record for record in records}
    by_path = {record.source: record for record in records}
    previous = {}
    for path, scan in scans.items():
        own = by_path.get(path)
        if scan.error is None and scan.content not in unread_contents:
            same_name = own is not None and own.content == scan.content
            own = own if same_name else by_content.get(scan.content, own)
        if own is not None:
            previous[path] = own
    return previous


def effective_labels(
    labels: Mapping[str, Annotation],
    annotations: Mapping[str, Annotation],
    previous: Mapping[str, ImageRecord],
    classes: Collection[str],
) -> dict[str, Annotation]:
    """Return the annotations of all images, once it is known which file has which picture.

    `labels`: annotations by rule. `annotations`: those with the overrides of their paths.
    """
    known = {
        path: apply_overrides(record, labels[path])
        for path, record in previous.items()
        if path in annotations
    }
    fitting = {path: each for path, each in known.items() if not classes or each.label in classes}
    return {**annotations, **fitting}
