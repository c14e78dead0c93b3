"""Versions of a data set of tiles: what identifies one, and how long it is kept.

A manifest, ``_versions/N.json``, is a version. It has a row for each image (label, split, group,
digests, the shard of its tiles, whether it is set aside), the folds, the pairs that show the same
place, the settings, and the list of shards. Its number, ``last_update``, never comes back. Versions
share the shards that they list, so a change of a table copies no tile.

**Tables and rows.** A row in a file has the path, the label and the split that its image had when
it was tiled. If a table says something else by now, the entry of the image keeps what the rows have
(``stored_label``, ``stored_split``, ``stored_source``), and reading puts the present values into
the rows: a broadcast join by the digest of the image file, of only the images that have changed.
A new class gets the next number, so the numbers in older files stay true. Who reads the files
without the manifest sees what was true when they were cut; `compact` writes the present values into
the files.

**What identifies a version.** Its hash is the SHA-256 of what decides its rows: how tiles are cut
and stored, for each image its path, digest, label, split, group, zones and number of tiles, and the
folds. It does not depend on the machine, the day, the number of nights, or on how rows are divided
into files, so a paper can cite it. Pixels at oblique angles can differ by one level between
releases of OpenCV; the manifest has its version.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from distkeras_grid.dataset.manifest import Manifest, Version
from distkeras_grid.errors import ConfigurationError

# Keys of an image, and of the settings, that decide which rows there are.
HASHED = ("source", "sha256", "label", "split", "group", "zones", "tiles")
HASHED_SETTINGS = (
    *("encoding", "quality", "channels", "page", "channel", "z", "bits"),
    *("pixel_size", "source_pixel_size"),
)
# Named only where they are set, so that data sets without them keep the hashes of earlier releases.
# The range of values of an image is not named: its digest and the method decide it, and its last
# digits differ between machines.
HASHED_WHERE_SET = ("normalise", "keep")


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How long former versions keep shards that the present version does not use."""

    newest: int = 1  # Number of newest versions to keep, including the present one
    days: int = 0  # Keep versions that were replaced at most this many days ago


# Whoever reads a version when it is replaced has so long to end.
DEFAULT = RetentionPolicy(days=7)


def parse_keep(text: str | None) -> RetentionPolicy:
    """Read ``--keep-versions``.

    Examples
    --------
    >>> parse_keep("10"), parse_keep("30d")
    (RetentionPolicy(newest=10, days=0), RetentionPolicy(newest=1, days=30))
    """
    if text is None:
        return DEFAULT
    match = re.fullmatch(r"([1-9]\d{0,4})(d?)", text)
    if not match:
        raise ConfigurationError(
            "keep_versions must be a number of versions such as 10, or of days such as 30d. "
            f"Received: {text!r}."
        )
    number = int(match.group(1))
    return RetentionPolicy(days=number) if match.group(2) else RetentionPolicy(newest=number)


def apply_retention(
    history: Sequence[Version], shards: Collection[str], keep: RetentionPolicy, now: datetime
) -> tuple[Version, ...]:
    """Return the former versions that can still be read."""
    since = now - timedelta(days=keep.days)
    oldest = len(history) - (keep.newest - 1)
    numbers = {
        each.number
        for place, each in enumerate(history)
        if place >= oldest or (keep.days and datetime.fromisoformat(each.replaced) >= since)
    }
    there = {*shards, *(name for each in history if each.number in numbers for name in each.shards)}
    return tuple(
        each for each in history if each.number in numbers or there.issuperset(each.shards)
    )


def next_manifest(
    content: Mapping[str, Any], head: Manifest | None, now: datetime
) -> dict[str, Any]:
    """Return a manifest as the version after the head, or as the first one."""
    history: tuple[Version, ...] = ()
    if head is not None:
        last = Version(
            *(head.last_update, head.hash, head.created, utc(now)),
            shards=head.shards,
            tiles=head.tiles,
        )
        keep = parse_keep(content["settings"].get("keep_versions"))
        history = apply_retention([*head.history, last], content["shards"], keep, now)
    return {
        **content,
        "last_update": head.last_update + 1 if head else 0,
        "created": utc(now),
        "hash": version_hash(content),
        "history": [msgspec.to_builtins(each) for each in history],
    }


def utc(now: datetime) -> str:
    """Return a time in the format of manifests."""
    return now.astimezone(UTC).isoformat(timespec="seconds")


def version_hash(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what decides the rows of a data set."""
    settings = content["settings"]
    rows = sorted(
        [entry.get(name) for name in HASHED]
        for entry in content["sources"]
        if entry["status"] == "tiled" and entry.get("set_aside") is None
    )
    identity = {
        "image": content["image"],
        "spec": content["spec"],
        "settings": {name: settings.get(name) for name in HASHED_SETTINGS}
        | {name: settings[name] for name in HASHED_WHERE_SET if settings.get(name) is not None},
        "sources": rows,
        "folds": content.get("folds", {}),
    }
    return hashlib.sha256(msgspec.json.encode(identity, order="sorted")).hexdigest()
