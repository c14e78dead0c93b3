"""Plan a transfer by names and sizes, without I/O: what goes where, and what exists."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from distkeras_grid.errors import ConfigurationError, OutputExistsError, StorageError
from distkeras_grid.webhdfs.connection import FileStatus

SHOWN = 5  # names in a message
# The name of a file while it is written, with digests of its own name and of the run. Spark and
# Hadoop skip names that begin with "_".
_HIDDEN = re.compile(r"_[0-9a-f]{16}\.[0-9a-f]{8}\.part")


@dataclass(frozen=True, slots=True)
class TransferItem:
    """A file or a directory to be made."""

    source: str  # source and target: Paths, from and to
    target: str
    size: int = 0  # Bytes; 0 for a directory
    is_directory: bool = False
    # Whether the checksum that HDFS keeps of the source says nothing about its bytes
    opaque: bool = False

    @property
    def directory(self) -> str:
        """The directory that has to be there."""
        return self.target if self.is_directory else posixpath.dirname(self.target)


def transfer_root(
    source: str, target: str, *, is_directory: bool, inside: bool, may_rename: bool
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
    if inside if is_directory else may_rename:
        return target
    return posixpath.join(target, posixpath.basename(source.rstrip("/")))


def check(items: Sequence[TransferItem], present: Mapping[str, FileStatus]) -> None:
    """Refuse a transfer that cannot succeed, before any work."""
    sources: dict[str, str] = {}
    for item in items:
        if (first := sources.setdefault(item.target, item.source)) != item.source:
            raise ConfigurationError(
                f"Two sources have one target. Received: {first} and {item.source}, which would "
                f"both become {item.target}. Give them in two commands, with two targets."
            )
        for path, is_directory in ((item.directory, True), (item.target, item.is_directory)):
            if path in present and present[path].is_directory != is_directory:
                kind = "a file" if is_directory else "a folder"
                raise OutputExistsError(
                    f"{path} is {kind}, so {item.source} cannot become {item.target}. Choose "
                    "another target."
                )


def check_names(items: Iterable[TransferItem]) -> None:
    """Refuse names that HDFS does not accept."""
    # A byte of a local name that is not UTF-8 is a lone surrogate in Python.
    bad = [each.source for each in items if re.search("[:\ud800-\udfff]", each.target)]
    if bad:
        names = ", ".join(each.encode(errors="backslashreplace").decode() for each in bad[:SHOWN])
        more = f" and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
        raise StorageError(
            f"HDFS takes names in UTF-8 and without ':'. Received: {names}{more}. Rename them, or "
            "leave them out."
        )


def hidden_name(target: str, run: str) -> str:
    """Return the name under which a file is written until it is complete.

    Examples
    --------
    >>> hidden_name("/raw/a.tif", "0badcafe")
    '/raw/_ed4cf50dec25e5ec.0badcafe.part'
    """
    directory, name = posixpath.split(target)
    # Not the name itself: with an addition it might be longer than a file system takes.
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
    return posixpath.join(directory, f"_{digest[:16]}.{run}.part")


def is_hidden(path: str) -> bool:
    """Tell whether a path is one of a file that was being written."""
    return _HIDDEN.fullmatch(posixpath.basename(path)) is not None


def leftovers(targets: Iterable[str], present: Iterable[str]) -> list[str]:
    """Return the hidden files that interrupted runs have left for the same targets."""
    ours = {hidden_name(target, "").removesuffix(".part") for target in targets}
    return [path for path in present if is_hidden(path) and path[: -len("00000000.part")] in ours]
