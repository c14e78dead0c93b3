"""Files that describe a data set of tiles to other programs, written at the end of each run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from data_prep.dataset import croissant, readme_card
from data_prep.dataset.hugging_face import CARD, describe_tiles
from data_prep.dataset.manifest import DataSet
from distkeras_grid.errors import GridError
from distkeras_grid.spark.storage import Storage


def write_cards(storage: Storage, root: str, known: DataSet, say: Callable[[str], object]) -> None:
    """Write ``.huggingface.yaml``, ``_croissant.json`` and ``_README.md``.

    The data set can be read without them. If a run is killed before it writes them, the files of
    the former version stay until the next run, which need not change anything else. A file that
    already has this content is not written.
    """
    try:
        text = describe_tiles(known)
        if _text_of(storage, f"{root}/{CARD}") != text:
            storage.write_in_place(f"{root}/{CARD}", text)
    except GridError as error:
        say(f"{CARD} could not be written: {error}")
    name = storage.resolve(root).rpartition("/")[2]
    stated: dict[str, Any] = {"name": name, "license": croissant.UNKNOWN}

    def described(former: str | None) -> str:
        text = croissant.describe(known.content, name, former)
        stated.update(msgspec.json.decode(text))
        return text

    def readable(former: str | None) -> str:
        license = stated["license"]
        license_text = (
            license if isinstance(license, str) else msgspec.json.encode(license).decode()
        )
        return readme_card.describe(known, str(stated["name"]), license_text, former)

    _replace(storage, f"{root}/{croissant.FILE}", described, say)
    _replace(storage, f"{root}/{readme_card.FILE}", readable, say)


def _replace(
    storage: Storage,
    uri: str,
    write: Callable[[str | None], str],
    say: Callable[[str], object],
) -> None:
    """Replace a file by what `write` makes of its content, which keeps what people wrote."""
    try:
        former = storage.read_text(uri) if storage.exists(uri) else None
        text = write(former)
        if text != former:
            # One rename replaces the file, so a killed run loses nothing.
            storage.write_text(uri, text, overwrite=True)
    except GridError as error:
        say(f"{uri.rpartition('/')[2]} could not be written: {error}")


def _text_of(storage: Storage, uri: str) -> str | None:
    """Return the content of a file; None if it is missing, or was only half written."""
    try:
        return storage.read_text(uri) if storage.exists(uri) else None
    except GridError:
        return None
