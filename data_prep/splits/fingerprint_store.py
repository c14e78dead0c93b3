"""Fingerprints of pictures, stored beside the tiles: an update compares only what is new.

They are in files ``_likeness/*.msgpack`` below the data set, by the digest of the pixels. A file
that a killed update left behind is still valid, so nothing has to be undone.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec

from data_prep.splits.fingerprint_cache import FingerprintFile
from distkeras_grid.errors import UNREADABLE, DataError

if TYPE_CHECKING:
    from distkeras_grid.spark.storage import Storage

FOLDER = "_likeness"
# Fingerprints in one file: about 30 MB.
PRINTS_OF_A_FILE = 4096
SUFFIX = ".msgpack"
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


def save_fingerprints(files: Storage, root: str, fingerprints: Mapping[str, bytes]) -> None:
    """Add fingerprints to those of a data set.

    `fingerprints`: fingerprints, by the digest of the pixels.
    """
    every = sorted(fingerprints)
    for start in range(0, len(every), PRINTS_OF_A_FILE):
        some = {name: fingerprints[name] for name in every[start : start + PRINTS_OF_A_FILE]}
        files.write_bytes(f"{root}/{FOLDER}/{uuid.uuid4().hex}{SUFFIX}", pack(some))


def load_fingerprints(files: Storage, root: str) -> FingerprintFile:
    """Return all fingerprints of a data set, by the digest of the pixels."""
    folder = f"{root}/{FOLDER}"
    prints = FingerprintFile()
    names = files.list_names(folder) if files.exists(folder) else []
    for uri in sorted(f"{folder}/{name}" for name in names if name.endswith(SUFFIX)):
        for digest, content in unpack(files.read_bytes(uri), uri).items():
            prints.add(digest, content)
    return prints


def pack(fingerprints: Mapping[str, bytes]) -> bytes:
    """Return fingerprints as the bytes of a file."""
    return msgspec.msgpack.encode(dict(fingerprints))


def unpack(content: bytes, name: str) -> dict[str, bytes]:
    """Read what `pack` wrote."""
    try:
        return msgspec.msgpack.decode(content, type=dict[Digest, bytes])
    except UNREADABLE as error:
        raise DataError(
            f"{name} holds no fingerprints: {error}. Delete it; the next update makes them anew."
        ) from error
