"""Merging small shards into a few large ones: fewer files to open, and the same rows.

Each update adds a shard, and an update of few images adds one of small files. Compaction copies
small shards into large ones, in files of 128 to 256 MB, and commits them as an update commits its
shards: if the run is killed, the data set stays as it was. Rows are not shuffled, so each image's
tiles stay side by side, which their compression needs. Labels, splits and paths that were corrected
since are written into the files at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from data_prep.dataset.commit import Transaction, require_head, vacuum
from data_prep.dataset.dataset_card import write_cards
from data_prep.dataset.history import next_manifest
from data_prep.dataset.manifest import DataSet, tables_of
from data_prep.dataset.plan import MOST_FILE_BYTES, pluralize
from data_prep.dataset.shards import SHARD_BYTES, copy_tiles
from data_prep.spark.progress import task_progress
from distkeras_grid.dataset.manifest import TILED, ImageRecord
from distkeras_grid.errors import NoSpaceError
from distkeras_grid.progress import Say, format_bytes
from distkeras_grid.spark.session import build_session
from distkeras_grid.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A shard is small if the mean size of its files is smaller than this. Spark packs files into tasks
# of at most MOST_FILE_BYTES, the largest first, so each task but the last of a split gets more than
# half.
SMALL_FILE_BYTES = MOST_FILE_BYTES // 2


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """A shard on disk."""

    number: int
    files: dict[str, int]  # Number of Parquet files, by the split in whose folder they are
    size: int  # Size of all files, bytes

    @property
    def count(self) -> int:
        """Number of Parquet files of all splits."""
        return sum(self.files.values())


def choose_shards(shards: Sequence[ShardFiles]) -> list[list[ShardFiles]]:
    """Return which shards to merge, bundle by bundle."""
    bundles: list[list[ShardFiles]] = []
    room = 0
    for each in sorted(shards, key=lambda each: each.number):
        if each.size >= SMALL_FILE_BYTES * max(1, each.count):
            continue
        if not bundles or each.size > room:
            bundles.append([])
            room = SHARD_BYTES
        bundles[-1].append(each)
        room -= each.size
    return [bundle for bundle in bundles if _is_worth(bundle)]


def _is_worth(bundle: Sequence[ShardFiles]) -> bool:
    splits = {split for each in bundle for split in each.files}
    # The number that is surely reached, so that nothing is copied again and again.
    most = sum(each.size for each in bundle) / SMALL_FILE_BYTES + len(splits)
    return sum(each.count for each in bundle) > most


def compact_tiles(
    data: str,
    *,
    spark: SparkSession | None = None,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Copy small shards of a data set of tiles into fewer and larger ones."""
    session = spark or build_session("distkeras_grid compact")
    storage, root = Storage(session), data.rstrip("/")
    head = require_head(storage, root)
    bundles = choose_shards(_shard_files(storage, root, head))
    _check_space(storage, root, [each for bundle in bundles for each in bundle])
    now, entries, shards = head.manifest.corrections(whole=True), dict(head.entries), head.shards
    with Transaction(storage, root, head) as transaction:
        for bundle in bundles:
            number, folder = transaction.new_shard()
            former = [f"{root}/{shards.pop(each.number)}" for each in bundle]
            images = _entries(head, {each.number for each in bundle})
            with task_progress(session, "copying", say):
                copy_tiles(session, former, images, head.image, folder, now)
            entries |= {each.source: _in_shard(each, number) for each in images}
            shards[number] = transaction.name(number)
            files = pluralize(sum(each.count for each in bundle), "file")
            say(f"  shard {number} has the rows of {pluralize(len(bundle), 'shard')} with {files}")
        if bundles:
            content = {
                **head.content,
                **tables_of(head.image, entries.values()),
                "shards": list(shards.values()),
                "last_shard": transaction.last_shard,
            }
            head = transaction.commit(next_manifest(content, head.manifest, datetime.now(UTC)))
    write_cards(storage, root, head, say)
    vacuum(storage, root, say)
    return head.content


def _shard_files(storage: Storage, root: str, known: DataSet) -> list[ShardFiles]:
    """Look at the shards on disk."""
    shards = []
    for number, name in known.shards.items():
        folder = f"{root}/{name}"
        files = {}
        for split in storage.list_names(folder):
            if split.startswith("split="):
                names = storage.list_names(f"{folder}/{split}")
                files[split] = sum(each.endswith(".parquet") for each in names)
        shards.append(ShardFiles(number, files, storage.size(folder)))
    return shards


def _check_space(storage: Storage, root: str, bundle: Sequence[ShardFiles]) -> None:
    needed, free = sum(each.size for each in bundle), storage.free_space(root)
    if needed > free:
        raise NoSpaceError(
            f"A copy of {pluralize(len(bundle), 'shard')} needs {format_bytes(needed)}, and {root} "
            f"has {format_bytes(free)} free. Make room, or keep fewer versions."
        )


def _entries(known: DataSet, numbers: set[int]) -> list[ImageRecord]:
    return [e for e in known.entries.values() if e.status == TILED and e.shard in numbers]


def _in_shard(entry: ImageRecord, number: int) -> ImageRecord:
    """Return the entry of an image whose rows were copied, with their corrections, to a shard."""
    return replace(entry, shard=number, stored_source=None, stored_label=None, stored_split=None)
