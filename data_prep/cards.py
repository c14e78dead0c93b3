"""What other programs read of a data set of tiles, written after each publication."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from data_prep import croissant
from data_prep.hugging_face import CARD, describe_tiles
from distkeras_grid.errors import GridError
from distkeras_grid.spark.storage import Storage


def write_cards(storage: Storage, root: str, manifest: str, say: Callable[[str], object]) -> None:
    """Write ``.huggingface.yaml`` and ``_croissant.json``; without them the data set is as good.

    A run that is killed before leaves those of a former version.

    Parameters
    ----------
    storage : Storage
    root : str
        The data set.
    manifest : str
        The content of ``_dataset.json``.
    say : callable
        Receives why one could not be written.
    """
    try:
        storage.write_in_place(f"{root}/{CARD}", describe_tiles(manifest))
    except GridError as error:
        say(f"{CARD} could not be written: {error}")
    uri = f"{root}/{croissant.FILE}"
    try:
        former = storage.read_text(uri) if storage.exists(uri) else None
        name = storage.resolve(root).rpartition("/")[2]
        text = croissant.describe(msgspec.json.decode(manifest), name, former)
        _replace(storage, uri, text)
    except GridError as error:
        say(f"{croissant.FILE} could not be written: {error}")


def _replace(storage: Storage, uri: str, text: str) -> None:
    """Replace a file in one step: what people wrote into it is not lost by a kill.

    `Storage.write_text` would leave a checksum beside a file of this machine, and Hadoop would not
    read the file again after somebody has edited it.
    """
    temporary = storage.hidden_beside(uri)
    try:
        storage.write_in_place(temporary, text)
        storage.rename(temporary, uri, overwrite=True)
    except BaseException as error:
        storage.discard(temporary, error)
        raise
