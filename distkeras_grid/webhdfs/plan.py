"""What goes where, and what is there already: pure functions on names and sizes."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from distkeras_grid.errors import ConfigurationError, OutputExistsError, StorageError

# Of a file that is being written. Spark and Hadoop skip names that begin with "_".
_HIDDEN = re.compile(r"_[0-9a-f]{16}\.[0-9a-f]{8}\.part")
SHOWN = 5  # names in a message


@dataclass(frozen=True, slots=True)
class Item:
    """A file or a directory to be made.

    Parameters
    ----------
    source, target : str
        Paths, from and to.
    size : int
        Bytes; 0 for a directory.
    is_directory : bool, default False
    opaque : bool, default False
        Whether HDFS' checksum of the source says nothing about its bytes.
    """

    source: str
    target: str
    size: int = 0
    is_directory: bool = False
    opaque: bool = False


@dataclass(frozen=True, slots=True)
class Present:
    """A file or a directory that is there already.

    Parameters
    ----------
    size : int
        Bytes; 0 for a directory.
    is_directory : bool, default False
    opaque : bool, default False
        Whether HDFS' checksum of it says nothing about its bytes.
    """

    size: int = 0
    is_directory: bool = False
    opaque: bool = False


def root_of(
    source: str,
    target: str,
    *,
    is_directory: bool,
    inside: bool,
    may_rename: bool,
) -> str:
    """Return where a file or a folder comes to lie.

    A folder keeps its name below the target, whether that exists or not, so that a second run
    finds what the first one has done. What lies *in* it goes straight to the target where the
    source ends in a slash, as with rsync.

    Parameters
    ----------
    source, target : str
        As given.
    is_directory : bool
        The source.
    inside : bool
        Whether what lies in the source is meant.
    may_rename : bool
        Whether the target is the new name of a single file.

    Examples
    --------
    >>> root_of("images", "/raw", is_directory=True, inside=False, may_rename=False)
    '/raw/images'
    >>> root_of("images/", "/raw", is_directory=True, inside=True, may_rename=False)
    '/raw'
    """
    if (is_directory and inside) or (not is_directory and may_rename):
        return target
    return posixpath.join(target, posixpath.basename(source.rstrip("/")))


def hidden_name(target: str, run: str) -> str:
    """Return the name under which a file is written until it is complete.

    Parameters
    ----------
    target : str
        The path that it will get.
    run : str
        Eight hexadecimal digits of this run's own.

    Examples
    --------
    >>> hidden_name("/raw/a.tif", "0badcafe")
    '/raw/_ed4cf50dec25e5ec.0badcafe.part'
    """
    directory, name = posixpath.split(target)
    return posixpath.join(directory, f"{_hidden_beginning(name)}{run}.part")


def is_hidden(path: str) -> bool:
    """Tell whether a path is one of a file that was being written."""
    return _HIDDEN.fullmatch(posixpath.basename(path)) is not None


def leftovers(targets: Iterable[str], present: Iterable[str]) -> list[str]:
    """Return what earlier runs, cut off, have left of the same targets.

    Parameters
    ----------
    targets : iterable of str
        Paths of files to be written.
    present : iterable of str
        Paths that exist in their directories.
    """
    ours = set()
    for target in targets:
        directory, name = posixpath.split(target)
        ours.add(posixpath.join(directory, _hidden_beginning(name)))
    return [path for path in present if is_hidden(path) and _beginning(path) in ours]


def check(items: Sequence[Item], present: Mapping[str, Present]) -> None:
    """Refuse, before any work, what could not succeed.

    Raises
    ------
    ConfigurationError
        If two sources have one target.
    OutputExistsError
        If a file stands where a folder shall be, or the other way round.
    """
    sources: dict[str, str] = {}
    for item in items:
        first = sources.setdefault(item.target, item.source)
        if first != item.source:
            raise ConfigurationError(
                f"{first} and {item.source} would both become {item.target}; give them in two "
                "commands, with two targets."
            )
        above = posixpath.dirname(item.target)
        if above in present and not present[above].is_directory:
            raise OutputExistsError(
                f"{above} is a file, so {item.source} cannot lie below it; choose another target"
            )
        there = present.get(item.target)
        if there is not None and there.is_directory != item.is_directory:
            kinds = ("a folder", "a file") if there.is_directory else ("a file", "a folder")
            raise OutputExistsError(
                f"{item.target} is {kinds[0]}, and {item.source} is {kinds[1]}; choose another "
                "target"
            )


def check_names(items: Iterable[Item]) -> None:
    """Refuse names that HDFS does not take.

    Raises
    ------
    StorageError
        With the first of them.
    """
    bad = [item.source for item in items if ":" in item.target]
    if bad:
        more = f" and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
        raise StorageError(
            f"HDFS takes no ':' in a name; rename or leave out {', '.join(bad[:SHOWN])}{more}"
        )


def missing_directories(items: Iterable[Item], present: Mapping[str, Present]) -> list[str]:
    """Return which directories have to be made, the deepest alone: they bring those above."""
    wanted = {item.target for item in items if item.is_directory}
    wanted |= {posixpath.dirname(item.target) for item in items if not item.is_directory}
    missing = {path for path in wanted if path not in present}
    above = {posixpath.dirname(path) for path in missing}
    return sorted(missing - above)


def failure(
    failed: Sequence[tuple[Item, StorageError]], *, files: int, not_tried: int
) -> StorageError:
    """Return the one error for files that failed while others were transferred.

    It is of their own class where all are of one, and tells each reason once.

    Parameters
    ----------
    failed : sequence of (Item, StorageError)
        Each file and its error, at least one.
    files : int
        All that were to be transferred.
    not_tried : int
        Of them, left when nothing succeeded any more.
    """
    kinds = {type(error) for _, error in failed}
    kind = kinds.pop() if len(kinds) == 1 else StorageError
    reasons: dict[str, list[str]] = {}
    for item, error in failed:
        reason = str(error).replace(item.source, "").replace(item.target, "")
        reasons.setdefault(reason, []).append(describe(error))
    told = [
        first + (f" (so did {len(others)} more)" if others else "")
        for first, *others in reasons.values()
    ]
    if files == 1:
        return kind(told[0])
    rest = f", {not_tried:,} were not tried any more" if not_tried else ""
    more = [f"and {len(told) - SHOWN} other reasons"] if len(told) > SHOWN else []
    return kind(
        f"{len(failed):,} of {files:,} files failed{rest}; the same again leaves out what is "
        f"complete: {' | '.join([*told[:SHOWN], *more])}"
    )


def describe(error: StorageError) -> str:
    """Return message and notes in one line."""
    notes: list[str] = getattr(error, "__notes__", [])
    return "; ".join([str(error), *notes])


def _hidden_beginning(name: str) -> str:
    # Not the name itself: with an addition it might be longer than a file system takes.
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
    return f"_{digest[:16]}."


def _beginning(path: str) -> str:
    directory, name = posixpath.split(path)
    return posixpath.join(directory, name.partition(".")[0] + ".")
