"""Changes of the tables of a data set of tiles, published like an update but without new tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from data_prep.dataset.commit import ShardDelta, execute, publish, read_last, shards_of
from data_prep.dataset.dataset_card import write_cards
from data_prep.dataset.dataset_lock import DatasetLock
from data_prep.dataset.history import next_manifest
from data_prep.dataset.manifest import DataSet
from distkeras_grid.errors import PathNotFoundError
from distkeras_grid.progress import Say
from distkeras_grid.spark.dataframes import MANIFEST
from distkeras_grid.spark.storage import Storage


def publish_tables(
    storage: Storage,
    data: str,
    change: Callable[[DataSet], dict[str, Any] | None],
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Publish a version with changed tables; return its manifest.

    `change`: gets the data set as it is. Returns the content of the new manifest with the same
    shards or fewer, or None if nothing changes. Number, hash and history are added here.
    """
    root = data.rstrip("/")
    uri = f"{root}/{MANIFEST}"
    if not storage.exists(uri):
        raise PathNotFoundError(f"There is no data set of tiles in {data}. Check the path.")
    with DatasetLock(storage, root, say) as owner:
        # Not earlier: a dead run's change may just have been finished.
        basis = storage.read_text(uri)
        before = DataSet.from_text(basis)
        changed = change(before)
        content = before.content
        if changed is not None:
            content, _ = publish_next(storage, root, owner.id, basis, changed)
        write_cards(storage, root, content, say)
    return content


def publish_next(
    storage: Storage,
    root: str,
    owner: str,
    basis: str,
    content: Mapping[str, Any],
    come: Sequence[int] = (),
) -> tuple[dict[str, Any], str]:
    """Publish the version that follows a manifest; return its manifest, parsed and as text."""
    numbered = {**content, "last_update": read_last(basis).last_update + 1}
    manifest = next_manifest(numbered, basis, datetime.now(UTC))
    text = msgspec.json.encode(manifest).decode() + "\n"
    go = sorted(shards_of(basis) - shards_of(text))
    execute(storage, root, publish(owner, ShardDelta(list(come), go), text, basis))
    return manifest, text
