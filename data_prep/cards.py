"""What other programs read of a data set of tiles, written after each publication."""

from __future__ import annotations

from collections.abc import Callable

from data_prep.hugging_face import CARD, describe_tiles
from distkeras_grid.errors import GridError
from distkeras_grid.spark.storage import Storage


def write_cards(storage: Storage, root: str, manifest: str, say: Callable[[str], object]) -> None:
    """Write ``.huggingface.yaml``; without it the data set is as good.

    Parameters
    ----------
    storage : Storage
    root : str
        The data set.
    manifest : str
        The content of ``_dataset.json``.
    say : callable
        Receives why it could not be written.
    """
    try:
        storage.write_in_place(f"{root}/{CARD}", describe_tiles(manifest))
    except GridError as error:
        say(f"{CARD} could not be written: {error}")
