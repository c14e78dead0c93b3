"""Plan a transfer by names and sizes, without I/O: what goes where, and what exists."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from distkeras_grid.errors import ConfigurationError, OutputExistsError, StorageError

SHOWN = 5  # names in a message


@dataclass(frozen=True, slots=True)
class TransferItem:
    """A file or a directory to be made."""

    source: str  # source and target: Paths, from and to
    target: str
    size: int = 0  # Bytes; 0 for a directory
    is_directory: bool = False
    # Whether the checksum that HDFS keeps of the source says nothing about its bytes
    opaque: bool = False


@dataclass(frozen=True, slots=True)
class ExistingEntry:
    """A file or a directory that is there already."""

    size: int = 0  # Bytes; 0 for a directory
    is_directory: bool = False
    opaque: bool = False  # Whether the checksum that HDFS keeps of it says nothing about its bytes


def transfer_root(
    source: str,
    target: str,
    *,
    is_directory: bool,
    inside: bool,
    may_rename: bool,
) -> str:
    """Return the target path of a file or a folder.

    A folder keeps its name below the target, whether that exists or not, so that a second run
    finds what the first one has done. What lies *in* it goes straight to the target where the
    source ends in a slash, as with rsync.

    Examples
    --------
    >>> transfer_root("images", "/raw", is_directory=True, inside=False, may_rename=False)
    '/raw/images'
    >>> transfer_root("images/", "/raw", is_directory=True, inside=True, may_rename=False)
    '/raw'
    """
    if (is_directory and inside) or (not is_directory and may_rename):
        return target
    return posixpath.join(target, posixpath.basename(source.rstrip("/")))


def check(items: Sequence[TransferItem], present: Mapping[str, ExistingEntry]) -> None:
    """Refuse a transfer that cannot succeed, before any work."""
    sources: dict[str, str] = {}
    for item in items:
        first = sources.setdefault(item.target, item.source)
        if first != item.source:
            raise ConfigurationError(
                f"Two sources have one target. Received: {first} and {item.source}, which would "
                f"both become {item.target}. Give them in two commands, with two targets."
            )
        above = posixpath.dirname(item.target)
        if above in present and not present[above].is_directory:
            raise OutputExistsError(
                f"{above} is a file, so {item.source} cannot lie below it. Choose another target."
            )
        there = present.get(item.target)
        if there is not None and there.is_directory != item.is_directory:
            kinds = ("a folder", "a file") if there.is_directory else ("a file", "a folder")
            raise OutputExistsError(
                f"{item.target} is {kinds[0]}, and {item.source} is {kinds[1]}. Choose another "
                "target."
            )


def check_names(items: Iterable[TransferItem]) -> None:
    """Refuse names that HDFS does not accept."""
    # A byte of a local name that is not UTF-8 is a lone surrogate in Python.
    bad = [
        _printable(item.source)
        for item in items
        if ":" in item.target or item.target != _printable(item.target)
    ]
    if bad:
        more = f" and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
        raise StorageError(
            f"HDFS takes names in UTF-8 and without ':'. Received: {', '.join(bad[:SHOWN])}{more}. "
            "Rename them, or leave them out."
        )


def _printable(path: str) -> str:
    """Return a path with escapes where Python could not decode it."""
    return path.encode(errors="backslashreplace").decode()


def missing_directories(
    items: Iterable[TransferItem], present: Mapping[str, ExistingEntry]
) -> list[str]:
    """Return the directories to make; only the deepest, which bring those above."""
    wanted = {item.target for item in items if item.is_directory}
    wanted |= {posixpath.dirname(item.target) for item in items if not item.is_directory}
    missing = {path for path in wanted if path not in present}
    above = {posixpath.dirname(path) for path in missing}
    return sorted(missing - above)
