"""The tiling job: an update brings a data set up to date with a folder of images.

`tile_images` is the first update. New images are tiled into a shard of their own, a folder
``shard=N`` that appears whole. Changed images replace their tiles and keep their split. An image
that cannot be tiled is listed, and tried again next time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from data_prep.dataset.commit import shard_name
from data_prep.dataset.dataset_lock import DatasetLock
from data_prep.dataset.diff import (
    FileInfo,
    FolderDiff,
    UpdateActions,
    compare,
    contents_of,
    decide,
    decoded_images,
    names_of,
    new_pictures,
    precheck_files,
    quarantine,
    splits_of,
    with_zones,
)
from data_prep.dataset.label_edits import with_classes
from data_prep.dataset.manifest import LEFT_OUT, TILED, DataSet, ImageRecord, planned_source
from data_prep.dataset.overrides import annotated, apply_overrides, match_previous
from data_prep.dataset.plan import PlannedImage, TilingPlan, uncovered
from data_prep.dataset.schema import image_field
from data_prep.dataset.settings import TilingSettings
from data_prep.dataset.shards import Shards, UpdatePlan
from data_prep.dataset.split_coverage import missing_cells
from data_prep.images.crash_isolation import IsolationPolicy
from data_prep.images.file_access import SPARK, choose_opening
from data_prep.images.multifile_images import refuse_folders
from data_prep.report.html import FOLDER as REPORTS
from data_prep.report.html import (
    ReportImage,
    RunSummary,
    count,
    grid_angles,
    outdated,
    report_files,
)
from data_prep.report.samples import choose_images, look_up
from data_prep.spark.broken_links import Walk
from data_prep.spark.discovery import (
    check_absence,
    check_pruning,
    list_images,
    unseen_images,
    walked,
)
from data_prep.spark.driver import (
    check_output,
    common_format,
    cutting_of,
    executor_errors,
    load_contents,
    refuse_errors,
    scan_images,
    summarize_errors,
)
from data_prep.spark.passes import ImageScan, Reader
from data_prep.splits.assign import check_leaks
from data_prep.splits.duplicate_pairs import (
    MAX_LISTED,
    describe,
    describe_cut_short,
    find_duplicate_pairs,
    remap_pairs,
    to_json,
)
from data_prep.splits.fingerprint_cache import FingerprintFile, NameChange
from data_prep.splits.fingerprint_store import load_fingerprints
from data_prep.splits.folds import renamed
from data_prep.splits.labels import Annotation, annotate_each, class_names, differing_by_case
from data_prep.splits.near_duplicates import DuplicatePair
from distkeras_grid.errors import (
    EmptySplitError,
    GridError,
    ImageError,
    LabelError,
    PathNotFoundError,
)
from distkeras_grid.feeding.schema import Field
from distkeras_grid.progress import Say
from distkeras_grid.spark.dataframes import MANIFEST
from distkeras_grid.spark.interpreters import TILING_PACKAGES, check_executors
from distkeras_grid.spark.memory import python_limit_mb
from distkeras_grid.spark.session import build_session, task_slots
from distkeras_grid.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class UpdateResult:
    """The result of an update.

    Parameters
    ----------
    manifest : dict
        The new content of ``_dataset.json``.
    new, changed, unchanged : int
        Numbers of images tiled for the first time, tiled again, and left as they were.
    removed : int
        Number of tiled images that are no longer there, also since earlier updates.
    tiles : int
        Number of tiles cut.
    left_out : dict of str to str
        Why images could not be tiled, by path. An image whose name begins with ``_`` or ``.`` is
        among them, because Spark does not list it, and so is a folder of such a name with images.
    quarantined : dict of str to str
        Why images were left out by an earlier update, by path; this one did not read them.
    report : str, optional
        Path of the report page; the same figures as JSON are beside it.
    relabelled : int, default 0
        Number of images that got another label; their tiles did not change.
    copies : int, default 0
        Number of images with the pixels of another one, which has the tiles.
    filtered : int, default 0
        Number of tiles that were cut but do not meet the conditions of `keep`.
    images_without_tiles : tuple of str, default ()
        Images of which no tile was kept.
    """

    manifest: dict[str, Any] = field(repr=False)
    new: int
    changed: int
    unchanged: int
    removed: int
    tiles: int
    left_out: dict[str, str]
    quarantined: dict[str, str] = field(default_factory=dict)
    report: str | None = None
    relabelled: int = 0
    copies: int = 0
    filtered: int = 0
    images_without_tiles: tuple[str, ...] = ()


def tile_images(
    settings: TilingSettings, *, spark: SparkSession | None = None, say: Say = lambda _: None
) -> dict[str, Any]:
    """Cut all images below a folder into a data set of tiles.

    The data set consists of Parquet files in folders ``shard=N/split=...`` and ``_dataset.json``,
    which lists the shards. It appears in one step at the end, also where it replaces an existing
    one (``overwrite=True``).

    Parameters
    ----------
    settings, spark, say
        See `update_tiles`, which raises the same errors.

    Returns
    -------
    dict
        The content of ``_dataset.json``.

    Examples
    --------
    >>> from data_prep import TileSpec, TilingSettings
    >>> tile_images(TilingSettings("images", "tiles", TileSpec(128)), say=print)  # doctest: +SKIP
    """
    return update_tiles(settings, spark=spark, say=say).manifest


def update_tiles(
    settings: TilingSettings, *, spark: SparkSession | None = None, say: Say = lambda _: None
) -> UpdateResult:
    """Bring a data set of tiles up to date with the folder of images, or create it.

    Parameters
    ----------
    settings : TilingSettings
        Settings that affect the tiles must be those with which the data set was made.
    spark : SparkSession, optional
        Default: the running session, or a new local one.
    say : callable, optional
        Receives progress lines.

    Returns
    -------
    Update

    Raises
    ------
    ConfigurationError, PathNotFoundError, OutputExistsError, NoSpaceError
        If a setting, a path or the free space does not allow the update; nothing is written then.
    BusyError
        If another run works on the data set.
    EmptyDataError, ImageError
        If there is no image, or a new data set would have none.
    LabelError, SplitLeakError
        If labels or groups contradict what was tiled before.

    Examples
    --------
    >>> from data_prep import TileSpec, TilingSettings
    >>> settings = TilingSettings("images", "tiles", TileSpec(128), update=True)
    >>> update_tiles(settings, say=print).new                                    # doctest: +SKIP
    12
    """
    session = spark or build_session("distkeras_grid tiling")
    check_executors(session, TILING_PACKAGES)
    owner = _ownership(session, settings, say)
    with owner:
        return _UpdateRun(session, settings, say, owner).run()


def plan_tiles(
    settings: TilingSettings, *, spark: SparkSession | None = None, say: Say = lambda _: None
) -> UpdateResult:
    """Predict the result of `update_tiles`: tiles, bytes of each encoding, files, time and space.

    Nothing is written, and the files of dead runs are not deleted.

    Parameters
    ----------
    settings, spark, say
        See `update_tiles`.

    Returns
    -------
    Update
        The predicted result; its manifest is the present one.
    """
    session = spark or build_session("distkeras_grid tiling")
    check_executors(session, TILING_PACKAGES)
    return _UpdateRun(session, settings, say, _ownership(session, settings, say)).estimate()


def make_plan(spark: SparkSession, settings: TilingSettings, say: Say) -> tuple[TilingPlan, Field]:
    """Inspect, label and split all images of a folder, as for a new data set; write nothing."""
    owner = DatasetLock(Storage(spark), settings.output, say)
    night, _ = _UpdateRun(spark, settings, say, owner).decide(None)
    for line in _not_tiled(night.changes):
        say(line)
    angles = len(list(settings.spec.angles))
    sources = tuple(sorted(night.planned, key=lambda each: each.source))
    return TilingPlan(sources, night.image.classes, angles, night.image.nbytes), night.image


def _ownership(spark: SparkSession, settings: TilingSettings, say: Say) -> DatasetLock:
    """Check the paths; return the right to change the data set, which is not taken yet."""
    storage = Storage(spark)
    if not storage.exists(settings.input):
        raise PathNotFoundError(f"There is no input folder {settings.input}. Check the path.")
    check_output(storage, settings)
    return DatasetLock(storage, settings.output.rstrip("/"), say)


class _UpdateRun:
    """One update, step by step."""

    def __init__(
        self, spark: SparkSession, settings: TilingSettings, say: Say, owner: DatasetLock
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._say = say
        self._owner = owner
        self._storage = Storage(spark)
        self._root = settings.output.rstrip("/")
        self._basis: str | None = None  # text of the manifest that this night began with
        self._thumbnails: dict[str, bytes] = {}
        self._hidden: dict[str, str] = {}  # images and folders that cannot be seen
        self._began = datetime.now(UTC)
        self._clock = time.monotonic()
        opening = choose_opening(spark, self._storage.resolve(settings.input))
        limit = python_limit_mb(spark.sparkContext.getConf().get, str(spark.sparkContext.master))
        self._reader = Reader(
            *(opening, partial(load_contents, spark)),
            tolerant=not self._fails,
            care=IsolationPolicy(memory_mb=limit),
        )

    @property
    def _fails(self) -> bool:
        return self._settings.on_error == "fail"

    def run(self) -> UpdateResult:
        """Decide, write and publish."""
        night, comparison = self.decide(self._read())
        self._tell(night)
        shards = Shards(self._spark, self._settings, self._owner, self._reader, self._say)
        manifest = shards.publish(night)
        self._say(f"{manifest['tiles']:,} tiles are in {self._settings.output}")
        return self._report(night, _update(night, manifest, comparison, self._hidden))

    def _report(self, night: UpdatePlan, done: UpdateResult) -> UpdateResult:
        """Write the report; if that fails, the update is still valid."""
        uri = f"{self._root}/{REPORTS}/{self._began:%Y-%m-%dT%H%M%SZ}"
        tiled = _tiled(night)
        entries = {entry["source"]: entry for entry in done.manifest["sources"]}
        new = sorted({entries[each.source]["shard"] for each in tiled if each.tiles})
        folders = [f"{self._root}/{shard_name(number)}" for number in new]
        angles = grid_angles(self._settings.spec)
        try:
            with executor_errors(self._spark, uri, "the report in"):
                shown = look_up(self._spark, folders, tiled, angles, night.image, self._thumbnails)
            written = sum(self._storage.size(folder) for folder in folders)
            figures = self._figures(night, done, tiled, shown, written)
            reports, _, stem = uri.rpartition("/")
            sources = {each.source: each for each in tiled}
            for name, text in report_files(stem, figures, shown, sources, angles).items():
                self._storage.write_in_place(f"{reports}/{name}", text)
            for name in outdated(self._storage.list_names(reports)):
                self._storage.delete(f"{reports}/{name}")
        except GridError as error:
            self._say(f"no report could be written: {error}")
            return done
        self._say(f"the report is {uri}.html")
        return replace(done, report=f"{uri}.html")

    def _figures(
        self,
        night: UpdatePlan,
        done: UpdateResult,
        tiled: Sequence[PlannedImage],
        shown: ReportImage,
        written: int,
    ) -> RunSummary:
        images, tiles = count(tiled)
        never, by_angle = uncovered(tiled)
        names = {each.source for each in tiled}
        return RunSummary(
            began=self._began.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - self._clock, 3),
            input=self._settings.input,
            output=self._settings.output,
            images=images,
            tiles=tiles,
            angles={f"{a:g}": shown.angles.get(a, 0) for a in self._settings.spec.angles},
            new=done.new,
            changed=done.changed,
            unchanged=done.unchanged,
            relabelled=done.relabelled,
            removed=done.removed,
            left_out=done.left_out,
            quarantined=done.quarantined,
            copies=_copies(night.changes),
            ignored_splits=night.changes.ignored_splits,
            without_tiles={e.source: e.empty_angles for e in tiled if e.empty_angles},
            excluded=sum(each.excluded for each in tiled),
            filter=self._settings.keep,
            filtered=sum(each.filtered for each in tiled),
            images_without_tiles={each.source: each.filtered for each in tiled if not each.tiles},
            read_bytes=sum(night.listed[each.source].length for each in tiled),
            written_bytes=written,
            total_tiles=done.manifest["tiles"],
            uncovered=never,
            uncovered_by_angle=by_angle,
            alike=to_json(pair for pair in night.pairs if {pair.one, pair.other} & names),
        )

    def estimate(self) -> UpdateResult:
        """Decide, and describe what would be written."""
        night, comparison = self.decide(self._read())
        looked = time.monotonic() - self._clock
        plan = self._tell(night)
        if plan is not None:
            free = self._storage.free_space(self._root)
            for line in plan.estimate(
                *(task_slots(self._spark), self._copied(night), free), looked
            ):
                self._say(line)
        content = night.before.content if night.before else {"tiles": 0}
        return _update(night, content, comparison, self._hidden)

    def decide(self, before: DataSet | None) -> tuple[UpdatePlan, FolderDiff]:
        """Look at the images, and decide what becomes of each."""
        zones = cutting_of(self._settings, self._storage).zones
        known = with_zones(before.entries if before else {}, zones)
        self._say(f"listing the images in {self._settings.input} ...")
        walk = walked(self._storage, self._settings.input)
        listed = list_images(self._spark, self._storage, self._settings, walk)
        self._find_unseen(known, listed, walk)
        if self._reader.opening.kind == SPARK:
            refuse_folders(file.uri for file in listed.values())
        # The table of zones may still name removed images.
        zones.check_files({*listed, *known})
        self._say(self._reader.opening.describe())
        looks = self._settings.near_duplicates != "off"
        # Fingerprints of a replaced data set serve the new one.
        prints = load_fingerprints(self._storage, self._root) if looks else FingerprintFile()
        plain, annotations, broken, comparison = self._compare(before, known, listed, prints)
        stored = frozenset(prints)
        scans = self._look(comparison.candidates, listed, annotations, prints)
        fresh = NameChange({digest: digest for digest in prints if digest not in stored}, prints)
        classes = before.image.classes if before and not self._settings.new_classes else ()
        annotations = annotated(
            plain, annotations, match_previous(known, comparison.unread, scans), classes
        )
        image = before.image if before else self._new_image(scans, annotations, comparison.problems)
        prune = self._settings.prune
        changes = decide(known, listed, annotations, comparison, scans, image, prune=prune)
        if self._settings.on_error == "quarantine":
            quarantine(changes, listed, decoded_images(scans) | (broken & set(changes.problems)))
        pairs = self._find_alike(before, changes, scans, prints, fresh.keys())
        joined = pairs if self._settings.near_duplicates == "join" else []
        fractions, seed = self._settings.fractions, self._settings.seed
        contents = contents_of(changes, scans)
        waiting = before.waiting if before else ()
        splits = splits_of(changes, known, annotations, scans, fractions, seed, joined, waiting)
        # Images that were left out now have their former pictures, or none.
        pairs = remap_pairs(pairs, contents, names_of(changes, scans))
        image = with_classes(image, _labels(changes, annotations))
        groups = {each.group for each in annotations.values() if each.group}
        for what, names in (("classes", image.classes), ("groups", groups)):
            for line in differing_by_case(what, names):
                self._say(line)
        if changes.problems and self._fails:
            raise ImageError(f"{summarize_errors(changes.problems)} Nothing was written.")
        planned = self._plan(changes, annotations, scans, splits)
        _check_leaks(changes, planned)
        chosen = any(each.split for each in annotations.values())
        self._check_cells(before, changes, planned, chosen=chosen)
        former = before.folds if before else {}
        folds = {name: renamed(each, changes.moved) for name, each in former.items()}
        night = UpdatePlan(
            before, self._basis, changes, planned, listed, image, pairs, folds, fresh
        )
        return night, comparison

    def _find_unseen(
        self, known: Mapping[str, ImageRecord], listed: Mapping[str, FileInfo], walk: Walk
    ) -> None:
        """Report images that are not listed, which ends no run; refuse to prune what is there."""
        where = self._settings.input, self._settings.file_glob
        tiled = [path for path, entry in known.items() if entry.status == TILED]
        self._hidden = unseen_images(*(self._spark, self._storage, *where), listed, walk, tiled)
        for path, reason in sorted(self._hidden.items()):
            self._say(f"  left out: {path}: {reason}")
        for path, folder in sorted(walk.again.items()):
            self._say(f"  {path} leads to {folder or 'the input folder'}, which is listed once")
        if self._settings.prune:
            gone = [path for path in tiled if path not in listed]
            # What links have led to is kept anyway.
            check_pruning(gone, self._hidden.keys() - walk.broken.keys())
            check_absence(self._storage, *where, gone, walk)

    def _read(self) -> DataSet | None:
        """Return the data set to add to, None if a new one begins."""
        uri = f"{self._root}/{MANIFEST}"
        if not self._storage.exists(uri):
            return None
        self._basis = self._storage.read_text(uri)
        before = DataSet.from_text(self._basis)
        if self._settings.overwrite:
            return None
        before.check_settings(self._settings)
        return before

    def _compare(
        self,
        before: DataSet | None,
        known: Mapping[str, ImageRecord],
        listed: Mapping[str, FileInfo],
        prints: Mapping[str, bytes],
    ) -> tuple[dict[str, Annotation], dict[str, Annotation], set[str], FolderDiff]:
        """Return labels, those with what was set by hand, broken files, and the comparison."""
        settings = self._settings
        plain, problems = annotate_each(
            list(listed), settings.labels, self._storage.read_text, settings.group
        )
        if problems and self._fails:
            raise LabelError(summarize_errors(problems))
        annotations = {path: apply_overrides(known.get(path), each) for path, each in plain.items()}
        broken = precheck_files(listed, annotations, self._reader.opening.most_bytes)
        if broken and self._fails:
            raise ImageError(f"{summarize_errors(broken)} Nothing was written.")
        classes = before.image.classes if before else ()
        problems |= broken
        annotations = {path: each for path, each in annotations.items() if path not in broken}
        comparison = compare(
            *(known, listed, annotations, problems, classes),
            prune=settings.prune,
            fingerprints=prints if settings.near_duplicates != "off" else None,
            new_classes=settings.new_classes,
            hidden=self._hidden,
        )
        return plain, annotations, set(broken), comparison

    def _look(
        self,
        candidates: Sequence[str],
        listed: Mapping[str, FileInfo],
        annotations: Mapping[str, Annotation],
        prints: FingerprintFile,
    ) -> dict[str, ImageScan]:
        """Return what was found in the candidates, by path; add their fingerprints to a file."""
        if not candidates:
            return {}
        lengths = {listed[path].uri: listed[path].length for path in candidates}
        labels = {path: annotations[path].label for path in candidates}
        shown = choose_images(labels, self._settings.report_images)
        by_uri = scan_images(
            *(self._spark, lengths, self._reader, self._settings, self._say),
            [listed[path].uri for path in shown],
            prints,
        )
        self._thumbnails = {
            path: picture
            for path in shown
            if (looked := by_uri.get(listed[path].uri)) and (picture := looked.thumbnail)
        }
        scans = {
            path: by_uri.get(listed[path].uri) or _unread(listed[path].uri) for path in candidates
        }
        if self._fails:
            refuse_errors(scans)
        return scans

    def _new_image(
        self,
        scans: dict[str, ImageScan],
        annotations: dict[str, Annotation],
        problems: dict[str, str],
    ) -> Field:
        """Return the image column of a data set that begins with these images."""
        good = {path: scan for path, scan in scans.items() if scan.error is None}
        if not good:
            reasons = problems | {path: str(scan.error) for path, scan in scans.items()}
            kind = ImageError if scans else LabelError
            raise kind(f"No image can be tiled: {summarize_errors(reasons)}")
        channels, dtype = common_format(good)
        classes = class_names([annotations[path].label for path in good])
        bits = max(scan.bits for scan in good.values())
        settings = self._settings
        return image_field(settings.spec, channels, dtype, settings.encoding, classes, bits)

    def _plan(
        self,
        changes: UpdateActions,
        annotations: dict[str, Annotation],
        scans: dict[str, ImageScan],
        splits: dict[str, str],
    ) -> list[PlannedImage]:
        """Return the images to tile; those that replace tiles come first, so they share a shard."""
        replaced = set(changes.replaced())
        return [
            planned_source(
                scans[path],
                path,
                label=annotations[path].label,
                split=splits[path],
                group=annotations[path].group,
            )
            for path in sorted(changes.work, key=lambda path: (path not in replaced, path))
        ]

    def _find_alike(
        self,
        before: DataSet | None,
        changes: UpdateActions,
        scans: dict[str, ImageScan],
        prints: Mapping[str, bytes],
        fresh: Set[str],
    ) -> list[DuplicatePair]:
        """Return pairs of images that show the same place: known ones, and those of new images."""
        names, known = names_of(changes, scans), before.entries if before else {}
        then = {path: each.pixel_sha256 for path, each in known.items()}
        standing = remap_pairs(before.pairs if before else (), then, names)
        wanted = fresh | new_pictures(changes, known, scans)
        new = find_duplicate_pairs(names, prints, wanted, standing)
        splits = {path: str(each.split) for path, each in changes.entries.items() if each.split}
        for line in (*describe(new.pairs, splits), *describe_cut_short(new.cut_short)):
            self._say(line)
        return list(dict.fromkeys([*standing, *new.pairs]))

    def _check_cells(
        self,
        before: DataSet | None,
        changes: UpdateActions,
        planned: Sequence[PlannedImage],
        *,
        chosen: bool,
    ) -> None:
        """Refuse a new data set that lacks a class in a split; in an update, only report it."""
        settings = self._settings
        cells = missing_cells(changes, planned, settings.fractions, chosen=chosen)
        if cells and before is None and not settings.allow_empty:
            if not chosen:
                raise EmptySplitError.of(cells, f"shares {settings.split}")
            advice = f"give images of the class these splits in {settings.labels}"
            raise EmptySplitError.of(cells, f"splits of {settings.labels}", advice)
        for label, split, _ in cells:
            self._say(f"  class {label} has no tile in {split}")

    def _copied(self, night: UpdatePlan) -> int:
        """Return the bytes of the shards that are copied without the dropped tiles."""
        numbers = {entry.shard for entry in night.changes.dropped if entry.shard is not None}
        return sum(self._storage.size(f"{self._root}/{shard_name(each)}") for each in numbers)

    def _tell(self, night: UpdatePlan) -> TilingPlan | None:
        """Report what will be written; refuse it if it does not fit."""
        changes, image, plan = night.changes, night.image, None
        if night.planned:
            angles = len(list(self._settings.spec.angles))
            plan = TilingPlan(tuple(night.planned), image.classes, angles, image.nbytes)
            free = self._storage.free_space(self._root)
            for line in plan.describe(free):
                self._say(line)
            plan.check_space(free, self._root, self._copied(night))
        else:
            self._say("no image to tile")
        for line in _not_tiled(changes):
            self._say(line)
        refusals = sorted(changes.ignored_splits.items())
        for path, reason in refusals[:MAX_LISTED]:
            self._say(f"  split not changed: {path}: {reason}")
        if len(refusals) > MAX_LISTED:
            self._say(
                f"  split not changed: {len(refusals) - MAX_LISTED:,} more, which the report lists"
            )
        for path in sorted(changes.work):
            if excluded := changes.excluded(path):
                self._say(f"  tiled, and still excluded: {path}: {excluded}")
        return plan


def _not_tiled(changes: UpdateActions) -> list[str]:
    """Return a line for each image that is not tiled, and why."""
    copies = [f"  copy: {path}: {why}" for path, why in sorted(_copies(changes).items())]
    problems = sorted(changes.problems.items())
    return copies + [f"  left out: {path}: {reason}" for path, reason in problems]


def _copies(changes: UpdateActions) -> dict[str, str]:
    """Return why copies of tiled pictures are not tiled, by path."""
    return {
        path: str(entry.reason)
        for path, entry in changes.entries.items()
        if entry.status == LEFT_OUT and entry.sha256
    }


def _update(
    night: UpdatePlan, manifest: dict[str, Any], comparison: FolderDiff, hidden: Mapping[str, str]
) -> UpdateResult:
    changes = night.changes
    replaced = len(changes.replaced())
    quarantined = {path: str(changes.entries[path].reason) for path in comparison.quarantined}
    relabelled = len(changes.relabelled)
    copies = len(_copies(changes))
    left = len(changes.problems) + len(quarantined) + copies
    tiled = _tiled(night)
    return UpdateResult(
        manifest=manifest,
        new=len(changes.work) - replaced,
        changed=replaced,
        unchanged=len(night.listed) - len(changes.work) - relabelled - left,
        removed=len(comparison.removed) - len(changes.moved),
        relabelled=relabelled,
        copies=copies,
        tiles=sum(each.tiles for each in tiled),
        filtered=sum(each.filtered for each in tiled),
        images_without_tiles=tuple(sorted(each.source for each in tiled if not each.tiles)),
        left_out={**changes.problems, **hidden},
        quarantined=quarantined,
    )


def _tiled(night: UpdatePlan) -> list[PlannedImage]:
    """Return the images that have been tiled: some of those planned may have been lost."""
    done = set(night.changes.work)
    return [each for each in night.planned if each.source in done]


def _labels(changes: UpdateActions, annotations: Mapping[str, Annotation]) -> set[str]:
    """Return the labels of all images that have tiles, or will have."""
    labels = {annotations[path].label for path in changes.work}
    return labels | {str(e.label) for e in changes.entries.values() if e.status == TILED}


def _unread(uri: str) -> ImageScan:
    """Return the result for a file that Spark could not read; the reason is unknown."""
    return ImageScan(uri, "", 0, 0, 0, "", 0.0, f"{uri} is gone, or cannot be read.")


def _check_leaks(changes: UpdateActions, planned: Sequence[PlannedImage]) -> None:
    standing = [entry for entry in changes.entries.values() if entry.status == TILED]
    rows = [(str(entry.split), str(entry.content), entry.group) for entry in standing]
    check_leaks(rows + [(each.split, each.content, each.group) for each in planned])
