"""Shards of a data set of tiles: cut new ones, copy kept tiles of former ones, commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from data_prep.dataset.commit import Transaction, vacuum
from data_prep.dataset.dataset_card import write_cards
from data_prep.dataset.history import append_history, apply_retention, parse_keep, version_hash
from data_prep.dataset.manifest import DataSet, build_manifest
from data_prep.dataset.plan import TilingPlan, pluralize, stored_bytes
from data_prep.dataset.settings import TilingSettings
from data_prep.dataset.split_coverage import unfilled_cells
from data_prep.dataset.update_plan import UpdatePlan, tiling_plan
from data_prep.spark.driver import (
    cut_tiles,
    executor_errors,
    scan_images,
    tiling_versions,
    verify_row_counts,
)
from data_prep.spark.passes import write_tiles
from data_prep.spark.scan import CHANGED, Reader
from data_prep.spark.scan import settings as spark_settings
from data_prep.splits.duplicate_pairs import to_json
from data_prep.splits.fingerprint_store import save_fingerprints
from distkeras_grid.dataset.manifest import REMOVED, TILED, ImageRecord, Version
from distkeras_grid.errors import EmptyDataError, EmptySplitError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.progress import Say
from distkeras_grid.spark.session import READ_ROWS, READ_SETTING
from distkeras_grid.spark.storage import Storage, escaped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Most bytes that Spark copies because of one changed image.
SHARD_BYTES = 16 << 30
# A killed update loses about this part of its work, and commits at most so often.
COMMITS = 8


@dataclass
class _State:
    """The progress of an update."""

    transaction: Transaction
    entries: dict[str, ImageRecord]
    update: int  # number of the next version
    content: dict[str, Any]  # of the manifest that is there
    done: dict[str, ImageRecord] = field(default_factory=dict)  # what was cut, by path
    waiting: set[str] = field(default_factory=set)  # paths of what is to be cut
    size: float = 0.0  # bytes that are not committed
    begun: bool = False  # whether something is committed


class Shards:
    """Writes the decisions of an update."""

    def __init__(
        self,
        spark: SparkSession,
        settings: TilingSettings,
        reader: Reader,
        say: Say,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._reader = reader
        self._say = say
        self._storage = Storage(spark)
        self._root = settings.output.rstrip("/")

    def publish(self, plan: UpdatePlan) -> dict[str, Any]:
        """Write shard by shard, and return the last manifest.

        An update commits some shards at a time. Without `update`, a data set appears as a whole,
        whether it is new or replaces another.
        """
        with Transaction(self._storage, self._root, plan.head) as transaction:
            # Another run may have been faster while this one looked at the images.
            transaction.check()
            state = self._begin(plan, transaction)
            self._write_all(plan, state)
        plan.planned = [state.done.get(each.source, each) for each in plan.planned]
        # If they are lost they are computed again: an update killed before this reads once more.
        save_fingerprints(self._storage, self._root, plan.new_fingerprints)
        if transaction.head is not None:
            vacuum(self._storage, self._root, self._say)
        return state.content

    def _write_all(self, plan: UpdatePlan, state: _State) -> None:
        sizes = {each.source: stored_bytes(plan.scans[each.source]) for each in plan.planned}
        state.waiting, most = set(sizes), sum(sizes.values()) / COMMITS
        shards = divide_shards(plan.planned, sizes) or [[]]
        for shard in shards:
            state.waiting -= {each.source for each in shard}
            tiled = self._cut(shard, plan, state) if shard else {}
            self._drop(plan.actions.outdated(tiled.values(), state.waiting), plan, state)
            state.entries |= tiled
            state.size += sum(sizes[each.source] for each in shard)
            if shard is shards[-1]:
                self._check_cells(plan, state)
            # There is no change if conditions have dropped all tiles so far.
            is_part = self._settings.update and state.transaction.pending and state.size >= most
            if shard is shards[-1] or is_part:
                self._commit(plan, state)

    def _begin(self, plan: UpdatePlan, transaction: Transaction) -> _State:
        actions, base_records = plan.actions, plan.actions.base_records
        # If the update is killed before their turn, the next one must know their splits.
        removed = {
            path: record
            for path in actions.to_tile
            if (record := base_records.get(path)) and record.status == REMOVED
        }
        state = _State(
            transaction,
            # Until then, an image to be replaced keeps its former tiles.
            entries=removed | actions.dropped | actions.records,
            # All tiles that replace a data set are new to readers of the former one.
            update=plan.head.manifest.last_update + 1 if plan.head else 0,
            content=plan.base.content if plan.base else {},
        )
        for path in actions.relabelled:
            # A training that continues with new tiles has not seen this image with this label.
            state.entries[path] = replace(state.entries[path], update=state.update)
        return state

    def _cut(
        self, shard: Sequence[ImageRecord], plan: UpdatePlan, state: _State
    ) -> dict[str, ImageRecord]:
        """Tile images into a new shard; return their entries."""
        angles = len(list(self._settings.spec.angles))
        number, folder = state.transaction.new_shard()
        tiling = tiling_plan(shard, plan.scans, plan.image, angles)
        missing, dropped = self._write(tiling, plan.image, folder)
        self._lose([each for each in shard if each.sha256 in missing], plan, state)
        done = [
            replace(
                each,
                tiles=each.tiles - dropped.get(str(each.sha256), 0),
                filtered=dropped.get(str(each.sha256)) or None,
            )
            for each in shard
            if each.sha256 not in missing
        ]
        state.done |= {each.source: each for each in done}
        tiles = sum(each.tiles for each in done)
        if not tiles:
            state.transaction.discard(number)
        if not done:
            return {}
        self._tell_filtered(done)
        self._say(
            f"  shard {number}: {pluralize(tiles, 'tile')} of {pluralize(len(done), 'image')}"
        )
        return {
            each.source: replace(each, shard=number if each.tiles else None, update=state.update)
            for each in done
        }

    def _write(
        self, plan: TilingPlan, image: Field, folder: str
    ) -> tuple[set[str], dict[str, int]]:
        """Cut tiles and write them to a folder; see `cut_tiles`."""
        return cut_tiles(self._spark, plan, self._reader, image, self._settings, folder, self._say)

    def _tell_filtered(self, done: Sequence[ImageRecord]) -> None:
        """Report how many tiles the conditions dropped, and which images keep none."""
        dropped = sum(each.filtered or 0 for each in done)
        if not dropped:
            return
        planned = dropped + sum(each.tiles for each in done)
        keep = f"--keep {self._settings.keep}"
        self._say(f"  {keep} drops {dropped:,} of {pluralize(planned, 'tile')}")
        for each in done:
            if not each.tiles:
                self._say(f"  warning: {each.source} keeps no tile: {keep} drops all")

    def _check_cells(self, plan: UpdatePlan, state: _State) -> None:
        """Report classes of which a split keeps no tile; refuse them in a new data set.

        What an update of many shards has already committed stays.
        """
        settings = self._settings
        cells = unfilled_cells(plan.planned, state.entries.values())
        new = plan.base is None and not state.begun and any(e.tiles for e in state.entries.values())
        # A lost image is one line of the report, and does not end the run.
        if cells and new and settings.keep and not settings.allow_empty:
            raise EmptySplitError.of(cells, f"keep {settings.keep!r}", "ask for less (--keep)")
        for label, split, _ in cells:
            self._say(f"  class {label} has no tile in {split}")

    def _lose(self, lost: Sequence[ImageRecord], plan: UpdatePlan, state: _State) -> None:
        """List images that could no longer be cut; see `UpdateActions.fail`."""
        if not lost:
            return
        paths = {each.source for each in lost}
        # These are about the pictures that are lost, and not about those whose tiles are kept.
        plan.pairs = [each for each in plan.pairs if paths.isdisjoint((each.one, each.other))]
        files = {each.source: plan.files[each.source] for each in lost}
        lengths = {file.uri: file.length for file in files.values()}
        now = scan_images(self._spark, lengths, self._reader, self._settings, self._say)
        reasons = {}
        for each in lost:
            uri = files[each.source].uri
            scan = now.get(uri)
            reason = (scan.error if scan else None) or f"{uri} {CHANGED}."
            if scan is not None and scan.error is None and scan.sha256 == each.sha256:
                reason = (
                    f"{uri} could not be cut, although it can be read and has not changed. It "
                    "may need more memory than a task has."
                )
            reasons[each.source] = reason
        for path in plan.actions.fail(reasons):
            state.entries.pop(path, None)
            state.entries |= {
                name: plan.actions.records[name] for name in {path} & plan.actions.records.keys()
            }
        for path in sorted(reasons):
            self._say(f"  left out: {path}: {plan.actions.problems[path]}")

    def _drop(self, paths: set[str], plan: UpdatePlan, state: _State) -> None:
        """Copy the shards of these images without their tiles, as new shards."""
        dropped = plan.actions.dropped
        if {dropped[path].shard for path in paths} & state.transaction.pending:
            # What is not committed is not copied again.
            self._commit(plan, state)
        going = [dropped.pop(path) for path in sorted(paths)]
        for record in going:
            if state.entries.get(record.source) == record:
                del state.entries[record.source]
        # Images that keep no tile are in no shard.
        for number in sorted({record.shard for record in going if record.shard is not None}):
            stay = [
                record
                for record in state.entries.values()
                if (record.status, record.shard) == (TILED, number)
            ]
            if not stay:
                continue
            former = state.transaction.folder(number)
            new, folder = state.transaction.new_shard()
            self._copy(former, stay, plan.image, folder)
            moved = {record.source: replace(record, shard=new) for record in stay}
            state.entries |= moved
            dropped |= {path: moved[path] for path in dropped.keys() & moved.keys()}

    def _copy(self, former: str, stay: Sequence[ImageRecord], image: Field, folder: str) -> None:
        """Copy the tiles of these images into a new shard."""
        from pyspark.sql import functions as F

        wanted = Counter({str(entry.sha256): entry.tiles for entry in stay})
        reading = {READ_SETTING: READ_ROWS}
        copying = executor_errors(self._spark, self._root, "copying a shard of")
        with spark_settings(self._spark, reading), copying:
            tiles = self._spark.read.parquet(escaped(former))
            tiles = tiles.where(F.col("source_sha256").isin(sorted(wanted)))
            write_tiles(self._spark, tiles, image, folder)
            verify_row_counts(self._spark, folder, wanted)

    def _commit(self, plan: UpdatePlan, state: _State) -> None:
        """Commit what is written, if it differs from the head."""
        head = state.transaction.head
        manifest = self._manifest(plan, state)
        if plan.base is None and not manifest["tiles"]:
            raise EmptyDataError(
                f"No tile of {pluralize(len(plan.planned), 'image')} meets keep "
                f"{self._settings.keep!r}. Nothing was written. Ask for less."
            )
        if head is None or state.transaction.pending or _differ(manifest, state.content):
            history = [] if head is None else self._history(head, state, manifest["shards"])
            manifest["history"] = [msgspec.to_builtins(each) for each in history]
            head = state.transaction.commit(manifest)
            state.content = head.content
            state.size, state.begun = 0.0, True
            # A reader between two commits of one update knows what comes with the second.
            state.update += 1
        # A run that was killed after its commit may have left it undescribed.
        write_cards(self._storage, self._root, head, self._say)

    def _history(self, head: DataSet, state: _State, shards: Sequence[str]) -> Sequence[Version]:
        """Return the former versions that are kept."""
        keep, now = parse_keep(self._settings.keep_versions), datetime.now(UTC)
        if state.begun:
            # What this update committed before it was complete does not count as a version.
            return apply_retention(head.manifest.history, shards, keep, now)
        return append_history(head.manifest, shards, keep, now)

    def _manifest(self, plan: UpdatePlan, state: _State) -> dict[str, Any]:
        listed = list(state.entries.values())
        shards = sorted({entry.shard for entry in listed if entry.shard is not None})
        built = build_manifest(self._settings, plan.image, listed, tiling_versions())
        built["folds"] = {name: folds.to_json() for name, folds in plan.folds.items()}
        manifest = {
            **built,
            "hash": version_hash(built),
            "shards": [state.transaction.name(number) for number in shards],
            "last_shard": state.transaction.last_shard,
            "last_update": state.update,
            "near_duplicates": to_json(plan.pairs),
        }
        if waiting := [each for each in plan.planned if each.source in state.waiting]:
            manifest["waiting"] = [_unassigned(each) for each in waiting]
        return manifest


def _differ(manifest: Mapping[str, Any], former: Mapping[str, Any]) -> bool:
    """Tell whether images or the retention of versions have changed."""
    now, before = (each.get("settings", {}).get("keep_versions") for each in (manifest, former))
    return bool(manifest["sources"] != former.get("sources") or now != before)


def _unassigned(planned: ImageRecord) -> dict[str, Any]:
    fields = {"content": planned.content, "label": planned.label, "split": planned.split}
    return fields | ({"group": planned.group} if planned.group is not None else {})


def divide_shards(
    planned: Sequence[ImageRecord], sizes: Mapping[str, float]
) -> list[list[ImageRecord]]:
    """Divide images into shards of about `SHARD_BYTES`, in their order.

    `sizes`: expected bytes, by path.
    """
    shards: list[list[ImageRecord]] = []
    room = 0.0
    for each in planned:
        if not shards or room <= 0:
            shards.append([])
            room = SHARD_BYTES
        shards[-1].append(each)
        room -= sizes[each.source]
    return shards
