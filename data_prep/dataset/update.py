"""The tiling job: an update brings a data set up to date with a folder of images.

`tile_images` is the first update. New images are tiled into a shard of their own, a folder that is
read once a manifest lists it. Changed images replace their tiles and keep their split. An image
that cannot be tiled is listed, and tried again next time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from data_prep.dataset.commit import read_head
from data_prep.dataset.diff import diff_folder, precheck_files, with_zones
from data_prep.dataset.manifest import DataSet
from data_prep.dataset.overrides import apply_overrides
from data_prep.dataset.plan import TilingPlan
from data_prep.dataset.settings import TilingSettings
from data_prep.dataset.shards import Shards
from data_prep.dataset.update_plan import (
    Fingerprints,
    Listing,
    UpdatePlan,
    plan_update,
    tiling_plan,
)
from data_prep.geometry.regions import ZoneRules
from data_prep.images.file_access import SPARK
from data_prep.images.multifile_images import refuse_folders
from data_prep.report.html import FOLDER as REPORTS
from data_prep.report.html import (
    ReportImage,
    RunSummary,
    count,
    grid_angles,
    outdated,
    render,
)
from data_prep.report.samples import choose_images, look_up
from data_prep.spark.discovery import check_pruning, list_images
from data_prep.spark.driver import (
    check_output,
    cutting_of,
    executor_errors,
    refuse_errors,
    scan_images,
    summarize_errors,
)
from data_prep.spark.passes import ImageScan, refused
from data_prep.spark.scan import Reader
from data_prep.splits.duplicate_pairs import MAX_LISTED, to_json
from data_prep.splits.fingerprint_cache import FingerprintFile
from data_prep.splits.fingerprint_store import load_fingerprints
from data_prep.splits.labels import annotate_each
from distkeras_grid.dataset.manifest import TILED, ImageRecord, shard_number
from distkeras_grid.errors import GridError, ImageError, LabelError, PathNotFoundError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.progress import Say
from distkeras_grid.spark.interpreters import TILING_PACKAGES, check_executors
from distkeras_grid.spark.session import build_session
from distkeras_grid.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What the result and the report both have.
REPORTED = ("new", "changed", "unchanged", "relabelled", "removed", "left_out", "filtered")


@dataclass(frozen=True)
class UpdateResult:
    """The result of an update.

    Parameters
    ----------
    manifest : dict
        The manifest of the new version.
    new, changed, unchanged : int
        Numbers of images tiled for the first time, tiled again, and left as they were.
    removed : int
        Number of tiled images that are no longer there, also since earlier updates.
    tiles : int
        Number of tiles cut.
    left_out : dict of str to str
        Why images could not be tiled, by path. Names that begin with ``_`` or ``.`` are passed
        over.
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
    report: str | None = None
    relabelled: int = 0
    copies: int = 0
    filtered: int = 0
    images_without_tiles: tuple[str, ...] = ()


def tile_images(
    settings: TilingSettings, *, spark: SparkSession | None = None, say: Say = lambda _: None
) -> dict[str, Any]:
    """Cut all images below a folder into a data set of tiles.

    The data set consists of Parquet files in folders ``shard=N-RUN/split=...`` and manifests,
    ``_versions/N.json``, which list the shards. It appears in one step at the end, also where it
    replaces an existing one (``overwrite=True``).

    Parameters
    ----------
    settings, spark, say
        See `update_tiles`, which raises the same errors.

    Returns
    -------
    dict
        The manifest.

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
    UpdateResult

    Raises
    ------
    ConfigurationError, PathNotFoundError, OutputExistsError, NoSpaceError
        If a setting, a path or the free space does not allow the update; nothing is written then.
    BusyError
        If another run commits a version while this one works.
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
    session = _session(spark)
    run = UpdateRun(session, settings, say)
    plan = run.announced_plan()
    manifest = Shards(session, Storage(session), settings, run.reader, say, plan).publish()
    say(f"{manifest['tiles']:,} tiles are in {settings.output}")
    return run.report(plan, result_of(plan, manifest))


def plan_tiles(
    settings: TilingSettings, *, spark: SparkSession | None = None, say: Say = lambda _: None
) -> UpdateResult:
    """Say what `update_tiles` would do, as it does before it begins to write; write nothing.

    Parameters
    ----------
    settings, spark, say
        See `update_tiles`.

    Returns
    -------
    UpdateResult
        The predicted result; its manifest is the present one.
    """
    plan = UpdateRun(_session(spark), settings, say).announced_plan()
    return result_of(plan, plan.base.content if plan.base else {"tiles": 0})


def make_plan(spark: SparkSession, settings: TilingSettings, say: Say) -> tuple[TilingPlan, Field]:
    """Inspect, label and split all images of a folder, as for a new data set; write nothing."""
    plan = UpdateRun(spark, settings, say).plan(None, None)
    for line in (*plan.messages, *_not_tiled(plan)):
        say(line)
    return tiling_plan(plan.planned, plan.scans, plan.image, settings.spec), plan.image


def result_of(plan: UpdatePlan, manifest: dict[str, Any]) -> UpdateResult:
    """Return what an update has done, or will do."""
    actions, tiled = plan.actions, plan.tiled
    changed = len(actions.replaced & actions.to_tile.keys())
    relabelled, copies = len(actions.relabelled), len(plan.copies)
    left = len(actions.problems) + copies
    return UpdateResult(
        manifest=manifest,
        new=len(actions.to_tile) - changed,
        changed=changed,
        unchanged=len(plan.files) - len(actions.to_tile) - relabelled - left,
        removed=len(set(plan.diff.removed) - actions.moved.keys()),
        relabelled=relabelled,
        copies=copies,
        tiles=sum(each.tiles for each in tiled),
        filtered=sum(each.filtered or 0 for each in tiled),
        images_without_tiles=tuple(sorted(each.source for each in tiled if not each.tiles)),
        left_out={**actions.problems, **plan.unseen},
    )


def _session(spark: SparkSession | None) -> SparkSession:
    session = spark or build_session("distkeras_grid tiling")
    check_executors(session, TILING_PACKAGES)
    return session


class UpdateRun:
    """What an update reads, says and reports on the driver; it decides nothing."""

    def __init__(self, spark: SparkSession, settings: TilingSettings, say: Say) -> None:
        self._spark = spark
        self._settings = settings
        self._say = say
        self._storage = Storage(spark)
        self._root = settings.output.rstrip("/")
        self._began = datetime.now(UTC)
        self._clock = time.monotonic()
        self._fails = settings.on_error == "fail"
        reader = Reader.of(spark, self._storage.resolve(settings.input))
        self.reader = replace(reader, tolerant=not self._fails)

    def announced_plan(self) -> UpdatePlan:
        """Return what will be done, and say it; refuse what cannot be done."""
        if not self._storage.exists(self._settings.input):
            raise PathNotFoundError(
                f"There is no input folder {self._settings.input}. Check the path."
            )
        check_output(self._storage, self._settings)
        plan = self.plan(*self._read_base())
        self._announce(plan)
        return plan

    def _read_base(self) -> tuple[DataSet | None, DataSet | None]:
        """Return the data set to add to, None if a new one begins; and the present version."""
        head = read_head(self._storage, self._root)
        if head is None or self._settings.overwrite:
            return None, head
        head.check_settings(self._settings)
        return head, head

    def plan(self, base: DataSet | None, head: DataSet | None) -> UpdatePlan:
        """Read the images, and decide what becomes of each."""
        settings, looks = self._settings, self._settings.near_duplicates != "off"
        zones = cutting_of(settings, self._storage).zones
        base_records = with_zones(base.entries if base else {}, zones)
        listing = self._discover(base_records, zones)
        # Fingerprints of a replaced data set serve the new one.
        prints = load_fingerprints(self._storage, self._root) if looks else FingerprintFile()
        stored = frozenset(prints)
        diff = diff_folder(
            *(base_records, listing.files, listing.annotations, listing.problems),
            base.image.classes if base else (),
            prune=settings.prune,
            fingerprints=prints if looks else None,
            new_classes=settings.new_classes,
            unseen=listing.unseen,
        )
        scans = self._scan(diff.to_scan, listing, prints)
        new = prints.subset(digest for digest in prints if digest not in stored)
        fingerprints = Fingerprints(prints, new)
        return plan_update(base, head, base_records, listing, diff, scans, fingerprints, settings)

    def _discover(self, base_records: Mapping[str, ImageRecord], zones: ZoneRules) -> Listing:
        """List the images of the input folder, and label them."""
        settings, opening = self._settings, self.reader.opening
        self._say(f"listing the images in {settings.input} ...")
        listing = list_images(self._spark, self._storage, settings)
        files = listing.files
        for path, reason in sorted(listing.unseen.items()):
            self._say(f"  left out: {path}: {reason}")
        if settings.prune:
            tiled = [path for path, record in base_records.items() if record.status == TILED]
            check_pruning(self._storage, settings, listing, tiled)
        if opening.kind == SPARK:
            refuse_folders(file.uri for file in files.values())
        # The table of zones may still name removed images.
        zones.check_files({*files, *base_records})
        self._say(opening.describe())
        labels, problems = annotate_each(
            list(files), settings.labels, self._storage.read_text, settings.group
        )
        if problems and self._fails:
            raise LabelError(summarize_errors(problems))
        annotations = {
            path: apply_overrides(base_records.get(path), each) for path, each in labels.items()
        }
        unreadable = precheck_files(files, annotations, opening.most_bytes)
        if unreadable and self._fails:
            raise ImageError(f"{summarize_errors(unreadable)} Nothing was written.")
        return Listing(
            *(files, listing.unseen, labels),
            {path: each for path, each in annotations.items() if path not in unreadable},
            problems | unreadable,
        )

    def _scan(
        self, paths: Sequence[str], listing: Listing, prints: FingerprintFile
    ) -> dict[str, ImageScan]:
        """Return what was found in images, by path; add their fingerprints to a file."""
        if not paths:
            return {}
        files = {path: listing.files[path] for path in paths}
        labels = {path: listing.annotations[path].label for path in paths}
        by_uri = scan_images(
            self._spark,
            {file.uri: file.length for file in files.values()},
            *(self.reader, self._settings, self._say),
            [files[path].uri for path in choose_images(labels, self._settings.report_images)],
            prints,
        )
        scans = {
            path: by_uri.get(file.uri)
            or refused(file.uri, f"{file.uri} is gone, or cannot be read.")
            for path, file in files.items()
        }
        if self._fails:
            refuse_errors(scans)
        return scans

    def _announce(self, plan: UpdatePlan) -> None:
        """Say what will be written; refuse it if it does not fit."""
        for line in plan.messages:
            self._say(line)
        if plan.planned:
            tiling = tiling_plan(plan.planned, plan.scans, plan.image, self._settings.spec)
            free = self._storage.free_space(self._root)
            for line in tiling.describe(free):
                self._say(line)
            tiling.check_space(free, self._root, self._copied_bytes(plan))
        else:
            self._say("no image to tile")
        for line in (*_not_tiled(plan), *_ignored_splits(plan)):
            self._say(line)
        for path, record in sorted(plan.actions.to_tile.items()):
            if record.set_aside:
                self._say(f"  tiled, and still excluded: {path}: {record.set_aside}")

    def _copied_bytes(self, plan: UpdatePlan) -> int:
        """Return the bytes of the shards that are copied without the dropped tiles."""
        numbers = {each.shard for each in plan.actions.dropped.values() if each.shard is not None}
        if plan.base is None:
            return 0
        names = [name for number, name in plan.base.shards.items() if number in numbers]
        return sum(self._storage.size(f"{self._root}/{name}") for name in names)

    def report(self, plan: UpdatePlan, done: UpdateResult) -> UpdateResult:
        """Write the report; if that fails, the update is still valid."""
        reports = f"{self._root}/{REPORTS}"
        uri = f"{reports}/{self._began:%Y-%m-%dT%H%M%SZ}"
        records = {each["source"]: each for each in done.manifest["sources"]}
        new = {records[each.source]["shard"] for each in plan.tiled if each.tiles}
        names = done.manifest["shards"]
        folders = [f"{self._root}/{name}" for name in names if shard_number(name) in new]
        angles = grid_angles(self._settings.spec)
        thumbnails = {path: scan.thumbnail for path, scan in plan.scans.items() if scan.thumbnail}
        try:
            with executor_errors(self._spark, uri, "the report in"):
                shown = look_up(self._spark, folders, plan.tiled, angles, plan.image, thumbnails)
            written = sum(self._storage.size(folder) for folder in folders)
            figures = self._figures(plan, done, shown, written)
            sources = {each.source: each for each in plan.tiled}
            page = render(figures, shown, sources, angles)
            self._storage.write_in_place(f"{uri}.json", figures.to_json())
            self._storage.write_in_place(f"{uri}.html", page)
            for name in outdated(self._storage.list_names(reports)):
                self._storage.delete(f"{reports}/{name}")
        except GridError as error:
            self._say(f"no report could be written: {error}")
            return done
        self._say(f"the report is {uri}.html")
        return replace(done, report=f"{uri}.html")

    def _figures(
        self, plan: UpdatePlan, done: UpdateResult, shown: ReportImage, written: int
    ) -> RunSummary:
        tiled, names = plan.tiled, {each.source for each in plan.tiled}
        images, tiles = count(tiled)
        return RunSummary(
            began=self._began.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - self._clock, 3),
            input=self._settings.input,
            output=self._settings.output,
            images=images,
            tiles=tiles,
            angles={f"{a:g}": shown.angles.get(a, 0) for a in self._settings.spec.angles},
            **{name: getattr(done, name) for name in REPORTED},
            copies=plan.copies,
            ignored_splits=plan.actions.ignored_splits,
            without_tiles={e.source: e.empty_angles for e in tiled if e.empty_angles},
            excluded=sum(each.excluded or 0 for each in tiled),
            filter=self._settings.keep,
            images_without_tiles={e.source: e.filtered or 0 for e in tiled if not e.tiles},
            read_bytes=sum(plan.files[each.source].length for each in tiled),
            written_bytes=written,
            total_tiles=done.manifest["tiles"],
            alike=to_json(pair for pair in plan.pairs if {pair.one, pair.other} & names),
        )


def _not_tiled(plan: UpdatePlan) -> list[str]:
    """Return a line for each image that is not tiled, and why."""
    copies = [f"  copy: {path}: {reason}" for path, reason in sorted(plan.copies.items())]
    problems = sorted(plan.actions.problems.items())
    return copies + [f"  left out: {path}: {reason}" for path, reason in problems]


def _ignored_splits(plan: UpdatePlan) -> list[str]:
    ignored = sorted(plan.actions.ignored_splits.items())
    lines = [f"  split not changed: {path}: {reason}" for path, reason in ignored[:MAX_LISTED]]
    more = len(ignored) - MAX_LISTED
    if more > 0:
        lines.append(f"  split not changed: {more:,} more, which the report lists")
    return lines
