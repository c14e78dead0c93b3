"""Changes of the tables of a data set of tiles: published as a night is, without a tile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from data_prep.cards import write_cards
from data_prep.manifest import DataSet
from data_prep.ownership import Ownership
from data_prep.publication import Change, perform, publish, shards_of
from data_prep.versions import successor
from distkeras_grid.errors import PathNotFoundError
from distkeras_grid.spark.dataframes import MANIFEST
from distkeras_grid.spark.storage import Storage

Say = Callable[[str], object]


def publish_tables(
    storage: Storage,
    data: str,
    change: Callable[[DataSet], dict[str, Any] | None],
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Publish a version with other tables; return its manifest.

    Parameters
    ----------
    storage : Storage
    data : str
        The data set.
    change : callable
        Gets the data set as it is, and returns the content of the new manifest with the same shards
        or fewer, None if nothing changes. Number, hash and history are put in here.
    say : callable, optional
        Receives the lines that tell what goes on.

    Raises
    ------
    PathNotFoundError
        If there is no data set of tiles.
    SchemaError
        If its manifest is damaged.
    BusyError
        If another run works on it.
    OutputExistsError
        If another run came between.
    """
    root = data.rstrip("/")
    uri = f"{root}/{MANIFEST}"
    if not storage.exists(uri):
        raise PathNotFoundError(f"There is no data set of tiles in {data}. Check the path.")
    with Ownership(storage, root, say) as owner:
        # Not before: a dead run's change may just have been finished.
        basis = storage.read_text(uri)
        before = DataSet.from_text(basis)
        changed = change(before)
        if changed is None:
            return before.content
        numbered = {**changed, "last_update": before.last_update + 1}
        content = successor(numbered, basis, datetime.now(UTC))
        text = msgspec.json.encode(content).decode() + "\n"
        go = sorted(shards_of(basis) - shards_of(text))
        perform(storage, root, publish(owner.id, Change(go=go), text, basis))
        write_cards(storage, root, text, say)
    return content
