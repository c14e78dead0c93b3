"""The images in a folder of this machine, listed by the system itself and not by Spark's Java.

Java passes over links whose target is not there, over what lay below them, and over names that it
cannot decode; Spark follows a link to a folder above it forty times.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from data_prep.dataset.diff import FileInfo
from data_prep.images.multifile_images import ENDING
from distkeras_grid.errors import StorageError
from distkeras_grid.spark.local_names import is_readable, printable

# Decides by the name of a file.
Matches = Callable[[str], bool]


@dataclass(frozen=True)
class FolderListing:
    """The images of a folder, by path below it."""

    files: dict[str, FileInfo] = field(default_factory=dict)
    # Why something else is not known: a folder that cannot be opened, a link without a target, a
    # name that is not UTF-8. What lies behind it is not removed.
    unseen: dict[str, str] = field(default_factory=dict)


def list_local(root: str, matches: Matches, *, each_path: bool = False) -> FolderListing:
    """List a local folder and all below it, or a single image.

    Names that begin with ``_`` or ``.`` are passed over, as by Spark. A real folder is listed once,
    or with `each_path` on each path that leads to it, but for loops.
    """
    root = root.rstrip("/") or "/"
    if os.path.isfile(root) or (root.endswith(ENDING) and os.path.isdir(root)):
        return _list_alone(root, matches)
    listing = FolderListing()
    # Links come last, so that a folder has its own path where it has one.
    folders, links = [b""], list[bytes]()
    identities: dict[bytes, tuple[int, int]] = {}
    entered = set[tuple[int, int]]()
    while folders or links:
        if not folders:
            links.sort(reverse=True)
        below = folders.pop() if folders else links.pop()
        try:
            status = os.stat(os.path.join(root.encode(), below))
            entries = list(os.scandir(os.path.join(root.encode(), below)))
        except FileNotFoundError:
            continue
        except OSError as error:
            if not below:
                raise StorageError(f"{root} cannot be listed: {error.strerror}.") from error
            listing.unseen[printable(below)] = _closed(error)
            continue
        identity = status.st_dev, status.st_ino
        if identity in ({identities[each] for each in _above(below)} if each_path else entered):
            continue
        identities[below] = identity
        entered.add(identity)
        for entry in entries:
            path = os.path.join(below, entry.name)
            if _note(entry, path, matches, listing):
                (links if entry.is_symlink() else folders).append(path)
    return FolderListing(dict(sorted(listing.files.items())), listing.unseen)


def _list_alone(path: str, matches: Matches) -> FolderListing:
    try:
        alone = {f"file:{path}": _info(path.encode())}
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}.") from error
    return FolderListing(alone if matches(os.path.basename(path)) else {})


def _note(entry: os.DirEntry[bytes], path: bytes, matches: Matches, listing: FolderListing) -> bool:
    """Note an image, or what cannot be seen; return whether the entry is a folder to enter."""
    shown = printable(path)
    if entry.name[:1] in (b".", b"_"):
        return False
    try:
        state = entry.stat()
        is_folder = stat.S_ISDIR(state.st_mode) and not entry.name.endswith(ENDING.encode())
        is_file = stat.S_ISDIR(state.st_mode) or stat.S_ISREG(state.st_mode)
        if not is_folder and not (is_file and matches(printable(entry.name))):
            return False
        if not is_readable(entry.name):
            listing.unseen[shown] = (
                "its name is not UTF-8, so that Spark does not see it. Rename it."
            )
            return False
        if not is_folder:
            listing.files[shown] = _info(entry.path, state)
    except FileNotFoundError:
        if entry.is_symlink():
            target = printable(os.readlink(entry.path))
            listing.unseen[shown] = (
                f"it is a link to {target}, which does not exist. Mount the disk, or mend the link."
            )
        return False
    except OSError as error:
        # A disk or a server that fails for a moment: it may still be there.
        listing.unseen[shown] = _closed(error)
        return False
    return is_folder


def _closed(error: OSError) -> str:
    return (
        f"it cannot be opened ({error.strerror}), and what it holds is not known. Let the user of "
        "this Spark session read it, or give a folder without it."
    )


def _info(path: bytes, state: os.stat_result | None = None) -> FileInfo:
    """Return size and time of a file, or of all files of an image that is a folder."""
    states = [os.stat(path) if state is None else state]
    if stat.S_ISDIR(states[0].st_mode):
        states = []
        for folder, _, names in os.walk(path, onerror=_unless_gone):
            for name in names:
                with suppress(FileNotFoundError):
                    states.append(os.stat(os.path.join(folder, name)))
    modified = max((each.st_mtime_ns // 1_000_000 for each in states), default=0)
    return FileInfo(f"file:{printable(path)}", sum(each.st_size for each in states), modified)


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _above(path: bytes) -> list[bytes]:
    """Return the folders above a path, from the root, which is empty."""
    parts = path.split(b"/")
    return [b"/".join(parts[:end]) for end in range(len(parts))] if path else []
