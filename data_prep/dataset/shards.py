"""Shards of a data set of tiles: cut new ones, copy kept tiles of former ones, publish."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from data_prep.dataset.commit import (
    ShardDelta,
    execute,
    new_name,
    publish,
    read_last,
    shard_name,
    shards_of,
)
from data_prep.dataset.dataset_card import write_cards
from data_prep.dataset.dataset_lock import DatasetLock
from data_prep.dataset.diff import FileInfo, UpdateActions, former_name, mark_failed
from data_prep.dataset.history import append_history, apply_retention, parse_keep, version_hash
from data_prep.dataset.manifest import (
    REMOVED,
    TILED,
    DataSet,
    ImageRecord,
    build_manifest,
    tiled_entry,
)
from data_prep.dataset.plan import PlannedImage, TilingPlan, pluralize
from data_prep.dataset.settings import TilingSettings
from data_prep.dataset.split_coverage import unfilled_cells
from data_prep.spark.driver import (
    cut_tiles,
    executor_errors,
    scan_images,
    tiling_versions,
    verify_row_counts,
)
from data_prep.spark.passes import CHANGED, Reader, write_tiles
from data_prep.spark.passes import settings as spark_settings
from data_prep.splits.duplicate_pairs import to_json
from data_prep.splits.fingerprint_store import save_fingerprints
from data_prep.splits.near_duplicates import DuplicatePair
from distkeras_grid.errors import EmptyDataError, EmptySplitError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.progress import Say
from distkeras_grid.spark.dataframes import MANIFEST
from distkeras_grid.spark.folds import Folds
from distkeras_grid.spark.storage import Storage, escaped
from distkeras_grid.spark.versions import Version, read_history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Most bytes that Spark copies because of one changed image.
SHARD_BYTES = 16 << 30
# A killed update loses about this part of its work, and writes its manifest at most so often.
PUBLICATIONS = 8
# Rows that Spark reads at once while it copies tiles; the default would hold thousands of them.
COPIED_ROWS = "64"


@dataclass
class UpdatePlan:
    """The decisions of an update."""

    before: DataSet | None  # The data set to add to; None if a new one begins
    basis: str | None  # Text of the present manifest
    changes: UpdateActions  # Changes; images that fail while they are cut are removed from it
    # Images to tile; those that replace tiles come first, so they go into one shard
    planned: list[PlannedImage]
    listed: Mapping[str, FileInfo]
    image: Field  # The image column
    pairs: list[DuplicatePair] = field(
        default_factory=list
    )  # Pairs of images that show the same place
    folds: dict[str, Folds] = field(default_factory=dict)
    # Fingerprints that are not stored yet, by the digest of the pixels
    fingerprints: Mapping[str, bytes] = field(default_factory=dict, repr=False)


@dataclass
class _State:
    """The progress of publishing."""

    entries: dict[str, ImageRecord]
    going: dict[str, ImageRecord]  # whose present tiles go, by path
    last: int  # number of the last shard
    update: int  # number of the next publication
    content: dict[str, Any]  # of the manifest that is there
    basis: str | None
    change: ShardDelta = field(default_factory=ShardDelta)
    done: dict[str, PlannedImage] = field(default_factory=dict)  # what was cut, by path
    waiting: set[str] = field(default_factory=set)  # paths of what is to be cut
    size: float = 0.0  # bytes that are not published
    begun: bool = False  # whether something is published


class Shards:
    """Writes the decisions of an update."""

    def __init__(
        self,
        spark: SparkSession,
        settings: TilingSettings,
        owner: DatasetLock,
        reader: Reader,
        say: Say,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._owner = owner
        self._reader = reader
        self._say = say
        self._storage = Storage(spark)
        self._root = settings.output.rstrip("/")

    def publish(self, night: UpdatePlan) -> dict[str, Any]:
        """Write shard by shard, and return the last manifest.

        An update publishes some shards at a time. Without `update`, a data set appears as a whole,
        whether it is new or replaces another.
        """
        state = self._begin(night)
        most = _bytes(night.planned) / PUBLICATIONS
        state.waiting = {each.source for each in night.planned}
        shards = divide_shards(night.planned) or [[]]
        for shard in shards:
            state.waiting -= {each.source for each in shard}
            tiled = self._cut(shard, night, state) if shard else {}
            self._drop({path for path in state.going if path not in state.waiting}, night, state)
            state.entries |= tiled
            state.size += _bytes(shard)
            if shard is shards[-1]:
                self._check_cells(night, state)
            # There is no change if conditions have dropped all tiles so far.
            is_part = self._settings.update and state.change and state.size >= most
            if shard is shards[-1] or is_part:
                self._commit(night, state)
        night.planned = [state.done.get(each.source, each) for each in night.planned]
        # If they are lost they are computed again: an update killed before this reads once more.
        save_fingerprints(self._storage, self._root, night.fingerprints)
        return state.content

    def _begin(self, night: UpdatePlan) -> _State:
        before, changes = night.before, night.changes
        going = {entry.source: entry for entry in changes.dropped}
        known = before.entries if before else {}
        # If the update is killed before their turn, the next one must know their splits.
        removed = {path: known[path] for path in changes.work if _is_removed(known.get(path))}
        state = _State(
            # Until then, an image to be replaced keeps its former tiles.
            entries=removed | going | changes.entries,
            going=going,
            last=self._owner.last_shard,
            update=0,
            content=before.content if before else {},
            basis=night.basis,
        )
        if night.basis is not None:
            former = read_last(night.basis)
            state.last = max(state.last, former.last_shard)
            # All tiles that replace a data set are new to readers of the former one.
            state.update = former.last_update + 1
        for path in changes.relabelled:
            # A training that continues with new tiles has not seen this image with this label.
            state.entries[path] = replace(state.entries[path], update=state.update)
        return state

    def _cut(
        self, shard: Sequence[PlannedImage], night: UpdatePlan, state: _State
    ) -> dict[str, ImageRecord]:
        """Tile images into a new shard; return their entries."""
        angles = len(list(self._settings.spec.angles))
        in_order = tuple(sorted(shard, key=lambda each: each.source))
        plan = TilingPlan(in_order, night.image.classes, angles, night.image.nbytes)
        number = state.last = state.last + 1
        folder = self._folder(number)
        missing, dropped = self._write(plan, night.image, folder)
        self._lose([each for each in shard if each.sha256 in missing], night, state)
        done = [
            _filtered(each, dropped.get(each.sha256, 0))
            for each in shard
            if each.sha256 not in missing
        ]
        state.done |= {each.source: each for each in done}
        if not done:
            self._storage.delete(folder)
            return {}
        self._tell_filtered(done)
        tiles = sum(each.tiles for each in done)
        if tiles:
            state.change.come.append(number)
        else:
            self._storage.delete(folder)
        self._say(
            f"  shard {number}: {pluralize(tiles, 'tile')} of {pluralize(len(done), 'image')}"
        )
        return {each.source: _entry(each, state, night) for each in done}

    def _write(
        self, plan: TilingPlan, image: Field, folder: str
    ) -> tuple[set[str], dict[str, int]]:
        """Cut tiles and write them to a folder; see `cut_tiles`."""
        return cut_tiles(self._spark, plan, self._reader, image, self._settings, folder, self._say)

    def _tell_filtered(self, done: Sequence[PlannedImage]) -> None:
        """Report how many tiles the conditions dropped, and which images keep none."""
        dropped = sum(each.filtered for each in done)
        if not dropped:
            return
        planned = dropped + sum(each.tiles for each in done)
        keep = f"--keep {self._settings.keep}"
        self._say(f"  {keep} drops {dropped:,} of {pluralize(planned, 'tile')}")
        for each in done:
            if not each.tiles:
                self._say(f"  warning: {each.source} keeps no tile: {keep} drops all")

    def _check_cells(self, night: UpdatePlan, state: _State) -> None:
        """Report classes of which a split keeps no tile; refuse them in a new data set.

        What an update of many shards has already published stays.
        """
        settings = self._settings
        cells = unfilled_cells(night.changes, night.planned, state.entries.values())
        new = (
            night.before is None
            and not state.begun
            and any(e.tiles for e in state.entries.values())
        )
        # A lost image is one line of the report, and does not end the run.
        if cells and new and settings.keep and not settings.allow_empty:
            raise EmptySplitError.of(cells, f"keep {settings.keep!r}", "ask for less (--keep)")
        for label, split, _ in cells:
            self._say(f"  class {label} has no tile in {split}")

    def _lose(self, lost: Sequence[PlannedImage], night: UpdatePlan, state: _State) -> None:
        """List images that could no longer be cut; their former tiles stay."""
        if not lost:
            return
        paths = {each.source for each in lost}
        # These are about the pictures that are lost, and not about those whose tiles are kept.
        night.pairs = [each for each in night.pairs if paths.isdisjoint((each.one, each.other))]
        lengths = {each.uri: night.listed[each.source].length for each in lost}
        now = scan_images(self._spark, lengths, self._reader, self._settings, self._say)
        for each in lost:
            scan = now.get(each.uri)
            reason = (scan.error if scan else None) or f"{each.uri} {CHANGED}."
            if scan is not None and scan.error is None and scan.sha256 == each.sha256:
                reason = (
                    f"{each.uri} could not be cut, although it can be read and has not changed. It "
                    "may need more memory than a task has."
                )
            former = state.going.pop(each.source, None)
            if former is None and night.before is not None:
                # It may have been removed, and have come back.
                former = night.before.entries.get(each.source)
            mark_failed(night.changes, each.source, former, reason)
            state.entries[each.source] = night.changes.entries[each.source]
            if former is not None:
                name = former_name(former)
                state.entries.pop(name, None)
                state.entries |= {
                    path: night.changes.entries[path]
                    for path in {name} & night.changes.entries.keys()
                }
            self._say(f"  left out: {each.source}: {night.changes.problems[each.source]}")

    def _drop(self, paths: set[str], night: UpdatePlan, state: _State) -> None:
        """Copy the shards of these images without their tiles, as new shards."""
        if {state.going[path].shard for path in paths} & set(state.change.come):
            # Only published shards can be copied.
            self._commit(night, state)
        going = [state.going.pop(path) for path in sorted(paths)]
        # Images that keep no tile are in no shard.
        for number in sorted({entry.shard for entry in going if entry.shard is not None}):
            stay = [
                entry
                for entry in state.entries.values()
                if (entry.status, entry.shard) == (TILED, number) and entry.source not in paths
            ]
            if not stay:
                continue
            state.last += 1
            self._copy(number, stay, night.image, self._folder(state.last))
            state.change.come.append(state.last)
            moved = {entry.source: replace(entry, shard=state.last) for entry in stay}
            state.entries |= moved
            state.going |= {path: moved[path] for path in state.going if path in moved}

    def _copy(self, number: int, stay: Sequence[ImageRecord], image: Field, folder: str) -> None:
        """Copy the tiles of these images into a new shard."""
        from pyspark.sql import functions as F

        wanted = Counter({str(entry.sha256): entry.tiles for entry in stay})
        reading = {"spark.sql.parquet.columnarReaderBatchSize": COPIED_ROWS}
        copying = executor_errors(self._spark, self._root, "copying a shard of")
        with spark_settings(self._spark, reading), copying:
            tiles = self._spark.read.parquet(escaped(f"{self._root}/{shard_name(number)}"))
            tiles = tiles.where(F.col("source_sha256").isin(sorted(wanted)))
            write_tiles(self._spark, tiles, image, folder)
            verify_row_counts(self._spark, folder, wanted)

    def _folder(self, number: int) -> str:
        """Return the hidden folder of a new shard."""
        return f"{self._root}/{new_name(number, self._owner.id)}"

    def _commit(self, night: UpdatePlan, state: _State) -> None:
        """Publish what is written, if it differs from what is published."""
        manifest = self._manifest(night, state)
        if night.before is None and not manifest["tiles"]:
            raise EmptyDataError(
                f"No tile of {pluralize(len(night.planned), 'image')} meets keep "
                f"{self._settings.keep!r}. Nothing was written. Ask for less."
            )
        former = state.content.get("sources")
        is_new = bool(state.change) or state.basis is None or manifest["sources"] != former
        history = self._history(state, manifest["shards"], is_new=is_new)
        manifest["history"] = [msgspec.to_builtins(each) for each in history]
        if not is_new:
            if list(history) == list(read_history(str(state.basis), MANIFEST).history):
                # A run that was killed after its decision may have left it undescribed.
                write_cards(self._storage, self._root, state.content, self._say)
                return
            # The same version, with fewer former versions.
            names = ("created", "last_update")
            manifest |= {name: state.content[name] for name in names}
        text = msgspec.json.encode(manifest).decode() + "\n"
        if state.basis is not None:
            state.change.go = sorted(shards_of(state.basis) - shards_of(text))
        plan = publish(self._owner.id, state.change, text, state.basis)
        execute(self._storage, self._root, plan)
        write_cards(self._storage, self._root, manifest, self._say)
        state.basis, state.content = text, manifest
        state.change, state.size, state.begun = ShardDelta(), 0.0, True
        # A reader between two publications of one update knows what comes with the second.
        state.update += is_new

    def _history(
        self, state: _State, shards: Sequence[str], *, is_new: bool
    ) -> tuple[Version, ...]:
        """Return the former versions that are kept."""
        keep, now = parse_keep(self._settings.keep_versions), datetime.now(UTC)
        if state.basis is None:
            return ()
        # What this update published before it was complete does not count as a version.
        if is_new and not state.begun:
            return append_history(state.basis, shards, keep, now)
        return apply_retention(read_history(state.basis, MANIFEST).history, shards, keep, now)

    def _manifest(self, night: UpdatePlan, state: _State) -> dict[str, Any]:
        listed = list(state.entries.values())
        shards = sorted({entry.shard for entry in listed if entry.shard is not None})
        built = build_manifest(self._settings, night.image, listed, tiling_versions())
        built["folds"] = {name: folds.to_json() for name, folds in night.folds.items()}
        manifest = {
            **built,
            "hash": version_hash(built),
            "shards": [shard_name(number) for number in shards],
            "last_shard": state.last,
            "last_update": state.update,
            "near_duplicates": to_json(night.pairs),
        }
        if waiting := [each for each in night.planned if each.source in state.waiting]:
            manifest["waiting"] = [_waiting(each) for each in waiting]
        return manifest


def _entry(planned: PlannedImage, state: _State, night: UpdatePlan) -> ImageRecord:
    file = night.listed[planned.source]
    stamp: dict[str, Any] = {"length": file.length, "modified": file.modified}
    stamp |= {"filtered": planned.filtered} if planned.filtered else {}
    stamp |= night.changes.decided.get(planned.source, {})
    shard = state.last if planned.tiles else None
    return tiled_entry(planned, shard=shard, update=state.update, **stamp)


def _waiting(planned: PlannedImage) -> dict[str, Any]:
    fields = {"content": planned.content, "label": planned.label, "split": planned.split}
    return fields | ({"group": planned.group} if planned.group is not None else {})


def _is_removed(entry: ImageRecord | None) -> bool:
    return entry is not None and entry.status == REMOVED


def _filtered(planned: PlannedImage, dropped: int) -> PlannedImage:
    return replace(planned, tiles=planned.tiles - dropped, filtered=dropped)


def _bytes(planned: Iterable[PlannedImage]) -> float:
    return sum(each.stored_bytes for each in planned)


def divide_shards(planned: Sequence[PlannedImage]) -> list[list[PlannedImage]]:
    """Divide images into shards of about `SHARD_BYTES`, in their order."""
    shards: list[list[PlannedImage]] = []
    room = 0.0
    for each in planned:
        if not shards or room <= 0:
            shards.append([])
            room = SHARD_BYTES
        shards[-1].append(each)
        room -= each.stored_bytes
    return shards
