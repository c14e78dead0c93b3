"""The plan of an update: which images are tiled, into which splits, and what is said of it; no I/O.

`plan_update` decides everything that can be decided before tiles are cut: labels, copies and moves,
near-duplicates, splits, leaks, and classes that a split lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from data_prep.dataset.actions import (
    UpdateActions,
    assign_update_splits,
    decide_actions,
    names_of,
    new_pictures,
)
from data_prep.dataset.diff import FileInfo, FolderDiff
from data_prep.dataset.label_edits import with_classes
from data_prep.dataset.manifest import DataSet
from data_prep.dataset.overrides import effective_labels, match_previous
from data_prep.dataset.plan import TilingPlan
from data_prep.dataset.schema import image_field
from data_prep.dataset.settings import TilingSettings
from data_prep.dataset.split_coverage import missing_cells
from data_prep.geometry.grid import TileSpec
from data_prep.spark.driver import common_format, summarize_errors
from data_prep.spark.passes import ImageScan
from data_prep.splits.assign import check_leaks
from data_prep.splits.duplicate_pairs import (
    describe,
    describe_cut_short,
    remap_pairs,
)
from data_prep.splits.folds import renamed
from data_prep.splits.labels import Annotation, class_names, differing_by_case
from data_prep.splits.near_duplicates import find_near_duplicates
from distkeras_grid.dataset.folds import Folds
from distkeras_grid.dataset.manifest import LEFT_OUT, TILED, DuplicatePair, ImageRecord
from distkeras_grid.errors import EmptySplitError, ImageError, LabelError
from distkeras_grid.feeding.schema import Field


@dataclass(frozen=True)
class Listing:
    """The images of the input folder and their labels, before any image is read."""

    files: Mapping[str, FileInfo]
    unseen: Mapping[str, str]  # Why other images and folders are not listed, by path
    labels: Mapping[str, Annotation]  # As the rule or the table says, by path
    annotations: Mapping[str, Annotation]  # With the overrides of their paths
    problems: Mapping[str, str]  # Why images cannot be tiled, by path


@dataclass(frozen=True)
class Fingerprints:
    """Fingerprints by the digest of the pixels, and which of them are not stored yet."""

    all: Mapping[str, bytes]
    new: Mapping[str, bytes]


@dataclass
class UpdatePlan:
    """The decisions of an update. Images that fail while they are cut are taken out of it."""

    base: DataSet | None  # The data set to add to; None if a new one begins
    head: DataSet | None  # The present version, which a new data set replaces
    actions: UpdateActions
    planned: list[ImageRecord]  # Records of the images to tile
    scans: Mapping[str, ImageScan]
    files: Mapping[str, FileInfo]
    image: Field  # The image column
    pairs: list[DuplicatePair] = field(default_factory=list)  # Images that show the same place
    folds: dict[str, Folds] = field(default_factory=dict)
    new_fingerprints: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    diff: FolderDiff = field(default_factory=lambda: FolderDiff((), (), (), {}), repr=False)
    unseen: Mapping[str, str] = field(default_factory=dict)  # See `Listing`
    messages: list[str] = field(default_factory=list)  # For the log

    @property
    def tiled(self) -> list[ImageRecord]:
        """Planned images that have been tiled: some of them may have been lost."""
        return [each for each in self.planned if each.source in self.actions.to_tile]

    @property
    def copies(self) -> dict[str, str]:
        """Why copies of tiled pictures are not tiled, by path."""
        return {
            path: str(record.reason)
            for path, record in self.actions.records.items()
            if record.status == LEFT_OUT and record.sha256
        }


def tiling_plan(
    planned: Iterable[ImageRecord], scans: Mapping[str, ImageScan], image: Field, spec: TileSpec
) -> TilingPlan:
    """Return what is written if these images are tiled; sources are sorted by path."""
    sources = tuple(sorted(planned, key=lambda each: each.source))
    return TilingPlan(sources, scans, image.classes, len(list(spec.angles)), image.nbytes)


def plan_update(
    base: DataSet | None,
    head: DataSet | None,
    base_records: Mapping[str, ImageRecord],
    listing: Listing,
    diff: FolderDiff,
    scans: Mapping[str, ImageScan],
    fingerprints: Fingerprints,
    settings: TilingSettings,
) -> UpdatePlan:
    """Decide what an update writes.

    `base_records`: those of `base`, with changed zones marked; see `with_zones`.
    """
    previous = match_previous(base_records, diff.unread, scans)
    classes = base.image.classes if base and not settings.new_classes else ()
    annotations = effective_labels(listing.labels, listing.annotations, previous, classes)
    image = base.image if base else new_image_field(scans, annotations, diff.problems, settings)
    actions = decide_actions(
        *(base_records, listing.files, annotations, diff, scans, previous, image),
        prune=settings.prune,
    )
    pairs, messages = _duplicate_pairs(base, actions, fingerprints)
    table = {path: each.split for path, each in annotations.items() if each.split}
    contents = actions.contents
    assign_update_splits(
        *(actions, table, settings.fractions, settings.seed),
        pairs=pairs if settings.near_duplicates == "join" else (),
    )
    tiled = [each for each in actions.all_records.values() if each.status == TILED]
    check_leaks((str(each.split), str(each.content), each.group) for each in tiled)
    former_folds = base.manifest.folds if base else {}
    planned = sorted(actions.to_tile.values(), key=lambda each: each.source)
    plan = UpdatePlan(
        *(base, head, actions, planned, scans, listing.files),
        image=with_classes(image, {str(each.label) for each in tiled}),
        # Images that were left out now have their former pictures, or none.
        pairs=remap_pairs(pairs, contents, names_of(actions)),
        folds={name: renamed(each, actions.moved) for name, each in former_folds.items()},
        new_fingerprints=fingerprints.new,
        diff=diff,
        unseen=listing.unseen,
        messages=messages,
    )
    groups = {each.group for each in annotations.values() if each.group}
    messages += differing_by_case("classes", plan.image.classes)
    messages += differing_by_case("groups", groups)
    if actions.problems and settings.on_error == "fail":
        raise ImageError(f"{summarize_errors(actions.problems)} Nothing was written.")
    messages += _check_coverage(plan, settings, chosen=bool(table))
    return plan


def new_image_field(
    scans: Mapping[str, ImageScan],
    annotations: Mapping[str, Annotation],
    problems: Mapping[str, str],
    settings: TilingSettings,
) -> Field:
    """Return the image column of a data set that begins with these images."""
    good = {path: scan for path, scan in scans.items() if scan.error is None}
    if not good:
        reasons = {**problems, **{path: str(scan.error) for path, scan in scans.items()}}
        kind = ImageError if scans else LabelError
        raise kind(f"No image can be tiled: {summarize_errors(reasons)}")
    channels, dtype = common_format(good)
    classes = class_names([annotations[path].label for path in good])
    bits = max(scan.bits for scan in good.values())
    return image_field(settings.spec, channels, dtype, settings.encoding, classes, bits)


def _duplicate_pairs(
    base: DataSet | None, actions: UpdateActions, fingerprints: Fingerprints
) -> tuple[list[DuplicatePair], list[str]]:
    """Return pairs of images that show the same place: known ones, and those of new images."""
    names = names_of(actions)
    before = {path: each.pixel_sha256 for path, each in actions.base_records.items()}
    known = remap_pairs(base.manifest.near_duplicates if base else (), before, names)
    wanted = fingerprints.new.keys() | new_pictures(actions)
    search = find_near_duplicates(
        *(fingerprints.all, wanted, [(pair.one, pair.other) for pair in known]),
        names={path: digest for digest, path in names.items()},
    )
    splits = {path: str(each.split) for path, each in actions.records.items() if each.split}
    lines = [*describe(search.pairs, splits), *describe_cut_short(search.cut_short)]
    return list(dict.fromkeys([*known, *search.pairs])), lines


def _check_coverage(plan: UpdatePlan, settings: TilingSettings, *, chosen: bool) -> Sequence[str]:
    """Refuse a new data set that lacks a class in a split; in an update, only report it.

    `chosen`: whether a table chooses the splits.
    """
    cells = missing_cells(plan.actions, settings.fractions, chosen=chosen)
    if cells and plan.base is None and not settings.allow_empty:
        if not chosen:
            raise EmptySplitError.of(cells, f"shares {settings.split}")
        advice = f"give images of the class these splits in {settings.labels}"
        raise EmptySplitError.of(cells, f"splits of {settings.labels}", advice)
    return [f"  class {label} has no tile in {split}" for label, split, _ in cells]
