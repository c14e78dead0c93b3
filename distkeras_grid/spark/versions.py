"""Versions of a data set of tiles, as its manifest lists them; no I/O.

`data_prep.dataset.history` says what a version is and how long one is kept.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

import msgspec

from distkeras_grid.errors import UNREADABLE, ConfigurationError, SchemaError

# Below the data set: the manifest of each former version, as it was.
FOLDER = "_versions"
LEAST_DIGITS = 12

Number = Annotated[int, msgspec.Meta(ge=0, lt=10**18)]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
ShardName = Annotated[str, msgspec.Meta(pattern=r"^shard=[0-9]{1,18}\Z")]
# As `datetime.isoformat` writes it, in UTC.
Time = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00\Z")]


class Version(msgspec.Struct, frozen=True):
    """A former version of a data set."""

    number: Number  # That of the publication that made it, from 0
    hash: Digest  # What its rows are, in 64 hexadecimal digits
    created: Time  # created and replaced: When it was published, and when the next one was
    replaced: Time
    manifest: Digest  # SHA-256 of its manifest
    shards: tuple[ShardName, ...]  # The folders that hold its tiles
    tiles: Number


class VersionHistory(msgspec.Struct, frozen=True):
    """The part of a manifest that tells of versions.

    Parameters
    ----------
    last_update : int
        Number of the version that the manifest describes, -1 where it has none.
    hash : str
        Empty in manifests of earlier releases.
    history : tuple of Version
        Former versions that are kept, oldest first.
    """

    last_update: Annotated[int, msgspec.Meta(ge=-1, lt=10**18)] = -1
    hash: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
    history: tuple[Version, ...] = ()


def file_of(number: int) -> str:
    """Return where the manifest of a former version lies, below the data set."""
    return f"{FOLDER}/{number}.json"


def read_history(manifest: str, path: str) -> VersionHistory:
    """Return which versions a data set has."""
    try:
        return msgspec.json.decode(manifest, type=VersionHistory)
    except UNREADABLE as error:
        raise SchemaError(
            f"{path} is not the manifest of a data set of tiles: {error}. Nothing was read. Look "
            "who wrote it."
        ) from error


def parse_version(wanted: int | str) -> int | str:
    """Return a number, or the beginning of a hash.

    Examples
    --------
    >>> parse_version("41"), parse_version(41), parse_version("3f9a0c11d2e4")
    (41, 41, '3f9a0c11d2e4')
    """
    text = str(wanted)
    if re.fullmatch(rf"\d{{1,{LEAST_DIGITS - 1}}}", text):
        return int(text)
    if re.fullmatch(rf"[0-9a-f]{{{LEAST_DIGITS},64}}", text):
        return text
    raise ConfigurationError(
        f"A version is a number from 0, or at least the first {LEAST_DIGITS} digits of its hash. "
        f"Received: {wanted!r}."
    )


def choose(history: VersionHistory, wanted: int | str, path: str) -> Version | None:
    """Return the former version that is wanted, None for the present one."""
    name = parse_version(wanted)
    if name == history.last_update or (isinstance(name, str) and history.hash.startswith(name)):
        return None
    for version in reversed(history.history):
        if name == version.number or (isinstance(name, str) and version.hash.startswith(name)):
            return version
    numbers = [str(each.number) for each in history.history] + [
        f"{history.last_update} (the present)"
    ]
    raise SchemaError(
        f"{path!r} has no version {wanted}, or does not keep it any more. Its versions: "
        f"{', '.join(numbers)}. distkeras-grid versions lists them; tile --update --keep-versions "
        "says for how long they are kept."
    )


def check_manifest(text: str, version: Version, path: str) -> str:
    """Return the manifest of a former version, if it is what was kept."""
    if hashlib.sha256(text.encode()).hexdigest() != version.manifest:
        raise SchemaError(
            f"{path}/{file_of(version.number)} is not the manifest that was kept as version "
            f"{version.number}: its SHA-256 differs. Look who changed it."
        )
    return text
