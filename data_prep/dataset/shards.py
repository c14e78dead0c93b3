"""Shards of a data set of tiles: cut new ones, copy kept tiles of former ones, commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

import msgspec

from data_prep.dataset.commit import Transaction, vacuum
from data_prep.dataset.dataset_card import write_cards
from data_prep.dataset.history import append_history, apply_retention, parse_keep, version_hash
from data_prep.dataset.manifest import DataSet, build_manifest
from data_prep.dataset.plan import MOST_FILE_BYTES, pluralize, stored_bytes
from data_prep.dataset.settings import TilingSettings
from data_prep.dataset.split_coverage import unfilled_cells
from data_prep.dataset.update_plan import UpdatePlan, tiling_plan
from data_prep.spark.driver import (
    cut_tiles,
    executor_errors,
    tiling_versions,
    verify_row_counts,
)
from data_prep.spark.passes import write_tiles
from data_prep.spark.scan import CHANGED, Reader
from data_prep.spark.scan import settings as spark_settings
from data_prep.splits.duplicate_pairs import to_json
from data_prep.splits.fingerprint_store import save_fingerprints
from distkeras_grid.dataset.manifest import (
    REMOVED,
    TILED,
    ImageRecord,
    LabelOverride,
    Version,
)
from distkeras_grid.errors import EmptyDataError, EmptySplitError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.progress import Say
from distkeras_grid.spark.dataframes import DIGEST_COLUMN, apply_label_overrides
from distkeras_grid.spark.session import READ_ROWS, READ_SETTING
from distkeras_grid.spark.storage import Storage, escaped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Most bytes that Spark copies because of one changed image.
SHARD_BYTES = 16 << 30
# A killed update loses about this part of its work, and commits at most so often.
COMMITS = 8


class Shards:
    """Writes the decisions of an update, shard by shard, and keeps its progress."""

    def __init__(
        self,
        spark: SparkSession,
        storage: Storage,
        settings: TilingSettings,
        reader: Reader,
        say: Say,
        plan: UpdatePlan,
    ) -> None:
        self._spark = spark
        self._storage = storage
        self._settings = settings
        self._reader = reader
        self._say = say
        self._plan = plan
        self._root = settings.output.rstrip("/")
        self._transaction = Transaction(storage, self._root, plan.head)
        # The number of the next version. All tiles that replace a data set are new to readers of
        # the former one.
        self._number = plan.head.manifest.last_update + 1 if plan.head else 0
        self._content = plan.base.content if plan.base else {}  # Of the manifest that is there
        self._entries = self._first_entries()
        self._done: dict[str, ImageRecord] = {}  # What was cut, by path
        self._waiting: set[str] = set()  # Paths of what is to be cut
        self._size = 0.0  # Bytes that are not committed
        self._begun = False  # Whether something is committed

    def _first_entries(self) -> dict[str, ImageRecord]:
        actions = self._plan.actions
        # If the update is killed before their turn, the next one must know their splits.
        removed = {
            path: record
            for path in actions.to_tile
            if (record := actions.base_records.get(path)) and record.status == REMOVED
        }
        # Until then, an image to be replaced keeps its former tiles.
        entries = removed | actions.dropped | actions.records
        # A training that continues with new tiles has not seen an image with its new label.
        new = {path: replace(entries[path], update=self._number) for path in actions.relabelled}
        return entries | new

    def publish(self) -> dict[str, Any]:
        """Write shard by shard, and return the last manifest.

        An update commits some shards at a time. Without `update`, a data set appears as a whole,
        whether it is new or replaces another.
        """
        plan = self._plan
        with self._transaction:
            # Another run may have been faster while this one looked at the images.
            self._transaction.check()
            self._write_all()
        plan.planned = [self._done.get(each.source, each) for each in plan.planned]
        # If they are lost they are computed again: an update killed before this reads once more.
        save_fingerprints(self._storage, self._root, plan.new_fingerprints)
        vacuum(self._storage, self._root, self._say)
        return self._content

    def _write_all(self) -> None:
        plan = self._plan
        sizes = {each.source: stored_bytes(plan.scans[each.source]) for each in plan.planned}
        self._waiting, most = set(sizes), sum(sizes.values()) / COMMITS
        shards = divide_shards(plan.planned, sizes) or [[]]
        for shard in shards:
            self._waiting -= {each.source for each in shard}
            tiled = self._cut(shard) if shard else {}
            self._drop(plan.actions.outdated(tiled.values(), self._waiting))
            self._entries |= tiled
            self._size += sum(sizes[each.source] for each in shard)
            if shard is shards[-1]:
                self._check_cells()
            # There is no change if conditions have dropped all tiles so far.
            is_part = self._settings.update and self._transaction.pending and self._size >= most
            if shard is shards[-1] or is_part:
                self._commit()

    def _cut(self, shard: Sequence[ImageRecord]) -> dict[str, ImageRecord]:
        """Tile images into a new shard; return their entries."""
        plan, angles = self._plan, len(list(self._settings.spec.angles))
        number, folder = self._transaction.new_shard()
        tiling = tiling_plan(shard, plan.scans, plan.image, angles)
        missing, dropped = cut_tiles(
            *(self._spark, tiling, self._reader, plan.image, self._settings, folder, self._say)
        )
        lost = [each for each in shard if each.sha256 in missing]
        self._lose({each.source: missing[str(each.sha256)] for each in lost})
        done = [
            replace(
                each,
                tiles=each.tiles - dropped.get(str(each.sha256), 0),
                filtered=dropped.get(str(each.sha256)) or None,
            )
            for each in shard
            if each.sha256 not in missing
        ]
        self._done |= {each.source: each for each in done}
        tiles = sum(each.tiles for each in done)
        if not tiles:
            self._transaction.discard(number)
        if not done:
            return {}
        self._tell_filtered(done)
        self._say(
            f"  shard {number}: {pluralize(tiles, 'tile')} of {pluralize(len(done), 'image')}"
        )
        return {
            each.source: replace(each, shard=number if each.tiles else None, update=self._number)
            for each in done
        }

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

    def _check_cells(self) -> None:
        """Report classes of which a split keeps no tile; refuse them in a new data set.

        What an update of many shards has already committed stays.
        """
        settings, records = self._settings, self._entries.values()
        cells = unfilled_cells(self._plan.planned, records)
        new = self._plan.base is None and not self._begun and any(each.tiles for each in records)
        # A lost image is one line of the report, and does not end the run.
        if cells and new and settings.keep and not settings.allow_empty:
            raise EmptySplitError.of(cells, f"keep {settings.keep!r}", "ask for less (--keep)")
        for label, split, _ in cells:
            self._say(f"  class {label} has no tile in {split}")

    def _lose(self, lost: Mapping[str, str]) -> None:
        """List images that could no longer be cut, and why; see `UpdateActions.fail`."""
        if not lost:
            return
        plan = self._plan
        # These are about the pictures that are lost, and not about those whose tiles are kept.
        plan.pairs = [each for each in plan.pairs if lost.keys().isdisjoint((each.one, each.other))]
        reasons = {path: why or f"{plan.files[path].uri} {CHANGED}." for path, why in lost.items()}
        for path in plan.actions.fail(reasons):
            self._entries.pop(path, None)
            if path in plan.actions.records:
                self._entries[path] = plan.actions.records[path]
        for path in sorted(reasons):
            self._say(f"  left out: {path}: {plan.actions.problems[path]}")

    def _drop(self, paths: set[str]) -> None:
        """Copy the shards of these images without their tiles, as new shards."""
        dropped = self._plan.actions.dropped
        if {dropped[path].shard for path in paths} & self._transaction.pending:
            # What is not committed is not copied again.
            self._commit()
        going = [dropped.pop(path) for path in sorted(paths)]
        for record in going:
            if self._entries.get(record.source) == record:
                del self._entries[record.source]
        # Images that keep no tile are in no shard.
        for number in sorted({record.shard for record in going if record.shard is not None}):
            stay = [
                record
                for record in self._entries.values()
                if (record.status, record.shard) == (TILED, number)
            ]
            if not stay:
                continue
            former = self._transaction.folder(number)
            new, folder = self._transaction.new_shard()
            copy_tiles(self._spark, [former], stay, self._plan.image, folder)
            moved = {record.source: replace(record, shard=new) for record in stay}
            self._entries |= moved
            dropped |= {path: moved[path] for path in dropped.keys() & moved.keys()}

    def _commit(self) -> None:
        """Commit what is written, if it differs from the head."""
        head = self._transaction.head
        manifest = self._manifest()
        if self._plan.base is None and not manifest["tiles"]:
            raise EmptyDataError(
                f"No tile of {pluralize(len(self._plan.planned), 'image')} meets keep "
                f"{self._settings.keep!r}. Nothing was written. Ask for less."
            )
        if head is None or self._transaction.pending or _differ(manifest, self._content):
            history = [] if head is None else self._history(head, manifest["shards"])
            manifest["history"] = [msgspec.to_builtins(each) for each in history]
            head = self._transaction.commit(manifest)
            self._content = head.content
            self._size, self._begun = 0.0, True
            # A reader between two commits of one update knows what comes with the second.
            self._number += 1
        # A run that was killed after its commit may have left it undescribed.
        write_cards(self._storage, self._root, head, self._say)

    def _history(self, head: DataSet, shards: Sequence[str]) -> Sequence[Version]:
        """Return the former versions that are kept."""
        keep, now = parse_keep(self._settings.keep_versions), datetime.now(UTC)
        if self._begun:
            # What this update committed before it was complete does not count as a version.
            return apply_retention(head.manifest.history, shards, keep, now)
        return append_history(head.manifest, shards, keep, now)

    def _manifest(self) -> dict[str, Any]:
        listed = list(self._entries.values())
        shards = sorted({entry.shard for entry in listed if entry.shard is not None})
        built = build_manifest(self._settings, self._plan.image, listed, tiling_versions())
        built["folds"] = {name: folds.to_json() for name, folds in self._plan.folds.items()}
        manifest = {
            **built,
            "hash": version_hash(built),
            "shards": [self._transaction.name(number) for number in shards],
            "last_shard": self._transaction.last_shard,
            "last_update": self._number,
            "near_duplicates": to_json(self._plan.pairs),
        }
        if waiting := [each for each in self._plan.planned if each.source in self._waiting]:
            manifest["waiting"] = [_unassigned(each) for each in waiting]
        return manifest


def _differ(manifest: Mapping[str, Any], former: Mapping[str, Any]) -> bool:
    """Tell whether images or the retention of versions have changed."""
    now, before = (each.get("settings", {}).get("keep_versions") for each in (manifest, former))
    return bool(manifest["sources"] != former.get("sources") or now != before)


def _unassigned(planned: ImageRecord) -> dict[str, Any]:
    fields = {"content": planned.content, "label": planned.label, "split": planned.split}
    return fields | ({"group": planned.group} if planned.group is not None else {})


def copy_tiles(
    spark: SparkSession,
    shards: Sequence[str],
    images: Iterable[ImageRecord],
    image: Field,
    folder: str,
    corrections: Sequence[LabelOverride] = (),
) -> None:
    """Copy the tiles of these images from shards into a new one.

    `corrections`: what rows have now.
    """
    import pyarrow as pa
    from pyspark.sql import functions as F

    wanted = Counter({str(each.sha256): each.tiles for each in images})
    root = folder.rpartition("/")[0]
    reading = {
        READ_SETTING: READ_ROWS,
        # A task reads this many bytes of whole files side by side, and writes one file of them.
        "spark.sql.files.maxPartitionBytes": str(MOST_FILE_BYTES),
        "spark.sql.files.openCostInBytes": "0",
        "spark.sql.files.minPartitionNum": "1",
    }
    with spark_settings(spark, reading), executor_errors(spark, root, "copying shards of"):
        rows = _rows_by_split(spark, shards)
        digests = spark.createDataFrame(pa.table({DIGEST_COLUMN: sorted(wanted)}))
        rows = rows.join(F.broadcast(digests), DIGEST_COLUMN, "left_semi").select(*rows.columns)
        write_tiles(spark, apply_label_overrides(rows, corrections), image, folder)
        verify_row_counts(spark, folder, wanted)


def _rows_by_split(spark: SparkSession, shards: Sequence[str]) -> DataFrame:
    """Return the rows of some shards; no task has rows from the folders of two splits."""
    storage, folders = Storage(spark), dict[str, list[str]]()
    for shard in shards:
        for name in storage.list_names(shard):
            if name.startswith("split="):
                folders.setdefault(name, []).append(escaped(f"{shard}/{name}"))
    root = shards[0].rpartition("/")[0]
    frames = [
        spark.read.option("basePath", root).parquet(*folders[name]).drop("shard")
        for name in sorted(folders)
    ]
    return reduce(lambda one, other: one.unionByName(other), frames)


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
