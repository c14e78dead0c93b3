"""Conversion of a data set of the layout before this one, in which no tile is written again.

Layout 1 had one manifest, ``_dataset.json``, that was replaced by a rename, and ``_versions`` held
the former ones. Files and hidden folders that killed runs left there are deleted.
"""

from __future__ import annotations

import re

import msgspec

from data_prep.dataset.commit import vacuum
from data_prep.dataset.dataset_card import write_cards
from data_prep.dataset.manifest import LAYOUT, DataSet
from distkeras_grid.dataset.versions import FORMER_MANIFEST, file_of
from distkeras_grid.errors import UNREADABLE, PathNotFoundError, SchemaError
from distkeras_grid.progress import Say
from distkeras_grid.spark.storage import Storage

_LEFT = re.compile(r"_(owner|dataset|lock|version|new-\d+|old-\d+)\.[0-9a-f]{32}|_update\.json")


def convert_layout(storage: Storage, data: str, say: Say = lambda _: None) -> int:
    """Convert a data set of layout 1; return the number of its present version.

    No command may work on it meanwhile. If this is interrupted, call it again.
    """
    root = data.rstrip("/")
    uri = f"{root}/{FORMER_MANIFEST}"
    if not storage.exists(uri):
        raise PathNotFoundError(f"{data} holds no {FORMER_MANIFEST}. There is nothing to convert.")
    try:
        content = msgspec.json.decode(storage.read_text(uri), type=dict)
        # Data sets of images have no sources, and one version.
        is_tiled = "sources" in content
        if is_tiled:
            content = {**content, "version": LAYOUT}
    except UNREADABLE as error:
        raise SchemaError(
            f"{uri} is not the manifest of a data set: {error!r}. Nothing was changed. Look who "
            "wrote it."
        ) from error
    head = DataSet.from_json(content, uri) if is_tiled else None
    number = 0 if head is None else head.manifest.last_update
    # A run that was killed may have left a file of this name. Nobody has read it.
    text = msgspec.json.encode(content).decode() + "\n"
    storage.write_text(f"{root}/{file_of(number)}", text, overwrite=True)
    for name in storage.list_names(root):
        if _LEFT.fullmatch(name):
            storage.delete(f"{root}/{name}")
    # Until then commands refuse the data set, and this function can begin again.
    storage.delete(uri)
    if head is not None:
        write_cards(storage, root, head, say)
        vacuum(storage, root, say)
    return number
