"""Shards of a data set of tiles: cut new ones, copy kept tiles of former ones, commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from data_prep.dataset.commit import Transaction, vacuum
from data_prep.dataset.dataset_card import write_cards
from data_prep.dataset.history import next_manifest
from data_prep.dataset.manifest import build_manifest
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
from distkeras_grid.dataset.manifest import TILED, ImageRecord, LabelOverride
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


class Shards:
    """Writes the decisions of an update into shards, and commits them as one version."""

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
        self._lost: dict[str, str] = {}  # Why images could no longer be cut, by path

    def publish(self) -> dict[str, Any]:
        """Write all shards, commit them at once, and return the manifest."""
        plan = self._plan
        with self._transaction:
            # Another run may have been faster while this one looked at the images.
            self._transaction.check()
            tiled = self._cut_all()
            self._lose()
            entries = self._without_dropped(self._other_records() | tiled)
            self._check_cells(entries.values())
            content = self._commit(entries)
        plan.planned = [tiled.get(each.source, each) for each in plan.planned]
        # If they are lost they are computed again: an update killed before this reads once more.
        save_fingerprints(self._storage, self._root, plan.new_fingerprints)
        vacuum(self._storage, self._root, self._say)
        return content

    def _other_records(self) -> dict[str, ImageRecord]:
        """Return the records of all images that were not cut."""
        actions = self._plan.actions
        # A training that continues with new tiles has not seen an image with its new label.
        new = {
            path: replace(actions.records[path], update=self._number) for path in actions.relabelled
        }
        return actions.records | new

    def _cut_all(self) -> dict[str, ImageRecord]:
        """Tile the planned images, shard by shard; return their entries by path."""
        plan = self._plan
        sizes = {each.source: stored_bytes(plan.scans[each.source]) for each in plan.planned}
        tiled: dict[str, ImageRecord] = {}
        for shard in divide_shards(plan.planned, sizes):
            tiled |= self._cut(shard)
        return tiled

    def _cut(self, shard: Sequence[ImageRecord]) -> dict[str, ImageRecord]:
        """Tile images into a new shard; return their entries."""
        plan = self._plan
        number, folder = self._transaction.new_shard()
        tiling = tiling_plan(shard, plan.scans, plan.image, self._settings.spec)
        missing, dropped = cut_tiles(
            *(self._spark, tiling, self._reader, plan.image, self._settings, folder, self._say)
        )
        lost = [each for each in shard if each.sha256 in missing]
        self._lost |= {each.source: missing[str(each.sha256)] for each in lost}
        done = [
            replace(
                each,
                tiles=each.tiles - dropped.get(str(each.sha256), 0),
                filtered=dropped.get(str(each.sha256)) or None,
            )
            for each in shard
            if each.sha256 not in missing
        ]
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

    def _check_cells(self, records: Collection[ImageRecord]) -> None:
        """Report classes of which a split keeps no tile; refuse them in a new data set."""
        settings = self._settings
        cells = unfilled_cells(self._plan.planned, records)
        new = self._plan.base is None and any(each.tiles for each in records)
        # A lost image is one line of the report, and does not end the run.
        if cells and new and settings.keep and not settings.allow_empty:
            raise EmptySplitError.of(cells, f"keep {settings.keep!r}", "ask for less (--keep)")
        for label, split, _ in cells:
            self._say(f"  class {label} has no tile in {split}")

    def _lose(self) -> None:
        """List images that could no longer be cut, and why; see `UpdateActions.fail`."""
        plan, lost = self._plan, self._lost
        # These are about the pictures that are lost, and not about those whose tiles are kept.
        plan.pairs = [each for each in plan.pairs if lost.keys().isdisjoint((each.one, each.other))]
        plan.actions.fail(
            {path: why or f"{plan.files[path].uri} {CHANGED}." for path, why in lost.items()}
        )
        for path in sorted(lost):
            self._say(f"  left out: {path}: {plan.actions.problems[path]}")

    def _without_dropped(self, entries: dict[str, ImageRecord]) -> dict[str, ImageRecord]:
        """Copy shards without the tiles that go, as new shards; return the entries."""
        dropped = list(self._plan.actions.dropped.values())
        # Images that keep no tile are in no shard.
        for number in sorted({each.shard for each in dropped if each.shard is not None}):
            stay = [
                record
                for record in entries.values()
                if (record.status, record.shard) == (TILED, number)
            ]
            if not stay:
                continue
            former = self._transaction.folder(number)
            new, folder = self._transaction.new_shard()
            copy_tiles(self._spark, [former], stay, self._plan.image, folder)
            entries |= {record.source: replace(record, shard=new) for record in stay}
        return entries

    def _commit(self, entries: Mapping[str, ImageRecord]) -> dict[str, Any]:
        """Commit what is written, if it differs from the head; return the manifest."""
        head, base = self._transaction.head, self._plan.base
        manifest = self._manifest(entries.values())
        if base is None and not manifest["tiles"]:
            raise EmptyDataError(
                f"No tile of {pluralize(len(self._plan.planned), 'image')} meets keep "
                f"{self._settings.keep!r}. Nothing was written. Ask for less."
            )
        if base is None or self._transaction.pending or _differ(manifest, base.content):
            former = head.manifest if head else None
            base = self._transaction.commit(next_manifest(manifest, former, datetime.now(UTC)))
        # A run that was killed after its commit may have left it undescribed.
        write_cards(self._storage, self._root, base, self._say)
        return base.content

    def _manifest(self, listed: Collection[ImageRecord]) -> dict[str, Any]:
        shards = sorted({entry.shard for entry in listed if entry.shard is not None})
        built = build_manifest(self._settings, self._plan.image, listed, tiling_versions())
        built["folds"] = {name: folds.to_json() for name, folds in self._plan.folds.items()}
        return {
            **built,
            "shards": [self._transaction.name(number) for number in shards],
            "last_shard": self._transaction.last_shard,
            "near_duplicates": to_json(self._plan.pairs),
        }


def _differ(manifest: Mapping[str, Any], former: Mapping[str, Any]) -> bool:
    """Tell whether images, pairs of them, or the settings of versions and pairs have changed."""

    def compared(content: Mapping[str, Any]) -> tuple[Any, ...]:
        settings = content["settings"]
        names = ("keep_versions", "near_duplicates")
        pairs = content.get("near_duplicates", [])
        return content["sources"], pairs, *(settings.get(name) for name in names)

    return compared(manifest) != compared(former)


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
