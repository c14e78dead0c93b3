"""Changes of the tables of a data set of tiles, committed like an update but without new tiles."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from data_prep.dataset.commit import Transaction, vacuum
from data_prep.dataset.dataset_card import write_cards
from data_prep.dataset.history import next_manifest
from data_prep.dataset.manifest import DataSet
from distkeras_grid.progress import Say
from distkeras_grid.spark.storage import Storage


def publish_tables(
    storage: Storage,
    root: str,
    head: DataSet,
    changed: dict[str, Any] | None,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Commit a version with changed tables; return its manifest.

    `head`: the data set as it was when the change was computed.
    `changed`: content of the new manifest, with the same shards or fewer; None if nothing changes.
    Number, hash and history are added here.
    """
    if changed is not None:
        now = datetime.now(UTC)
        head = Transaction(storage, root, head).commit(next_manifest(changed, head.manifest, now))
    write_cards(storage, root, head, say)
    vacuum(storage, root, say)
    return head.content
