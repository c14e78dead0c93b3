"""The images in a folder of this machine, listed by the system itself and not by Spark's Java.

Java passes over links whose target is not there, over what lay below them, and over names that it
cannot decode; Spark follows a link to a folder above it forty times.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from data_prep.dataset.diff import FileInfo, folders_of
from data_prep.dataset.plan import pluralize
from data_prep.images.multifile_images import ENDING
from distkeras_grid.errors import StorageError
from distkeras_grid.spark.local_names import is_readable, printable

# Decides by the name of a file.
Matches = Callable[[str], bool]
# macOS keeps the attributes of NAME in a file of this name beside it, on disks of other systems.
ATTRIBUTES = "._"
CLOSED = (
    "this folder cannot be opened, and what it holds is not known. Let the user of this Spark "
    "session read it, or give a folder without it."
)


@dataclass(frozen=True)
class FolderListing:
    """The images of a folder, by path below it."""

    files: dict[str, FileInfo] = field(default_factory=dict)
    # Why other images, or folders with such, are not listed: a hidden name, a folder that cannot be
    # opened, a link without a target, a name that is not UTF-8
    unseen: dict[str, str] = field(default_factory=dict)
    # Folders that a link leads to and that have another path, too, by the paths of the links
    again: dict[str, str] = field(default_factory=dict)
    # Links without a target. What lies behind them is not removed.
    links: frozenset[str] = frozenset()


def hidden_name(name: str) -> str:
    """Return why a file or a folder is not listed."""
    return f"name begins with {name[0]!r}, which hides it from Spark. Rename it."


def is_attributes_of(path: str, listed: Mapping[str, object]) -> bool:
    """Tell whether a hidden file holds the attributes of a listed one."""
    folder, _, name = path.rpartition("/")
    twin = f"{folder}/{name.removeprefix(ATTRIBUTES)}".lstrip("/")
    return name.startswith(ATTRIBUTES) and twin in listed


def list_local(
    root: str, matches: Matches, *, tiled: Iterable[str] = (), each_path: bool = False
) -> FolderListing:
    """List a local folder and all below it, or a single image; each real folder is listed once.

    `tiled`: paths of images with tiles, which may lie behind a link without a target.
    `each_path`: list a folder on each path that leads to it, but for loops.
    """
    root = root.rstrip("/") or "/"
    if os.path.isfile(root) or (root.endswith(ENDING) and os.path.isdir(root)):
        try:
            alone = {f"file:{root}": _info(root.encode())}
        except OSError as error:
            raise StorageError(f"{root} cannot be read: {error.strerror}.") from error
        return FolderListing(alone if matches(os.path.basename(root)) else {})
    walk = _Walk(root.encode(), matches, each_path=each_path)
    walk.run()
    unseen = {path: CLOSED for path in walk.closed}
    for path in walk.hidden:
        if not is_attributes_of(path, walk.files):
            unseen[path] = f"its {hidden_name(os.path.basename(path))}"
    for folder in walk.hidden_folders:
        shown, inside = printable(folder), _Walk(os.path.join(root.encode(), folder), matches)
        try:
            inside.run()
        except StorageError as error:
            unseen[shown] = f"it cannot be looked into: {error}"
            continue
        if inside.files:
            count, name = len(inside.files), hidden_name(os.path.basename(shown))
            unseen[shown] = f"{pluralize(count, 'image')} in this folder, whose {name}"
    unseen |= _broken_links(walk, matches, tiled) | _unreadable_names(walk.unnamed)
    files = dict(sorted(walk.files.items()))
    return FolderListing(files, unseen, walk.again, frozenset(walk.broken))


class _Walk:
    """What lies below a folder. Images that are folders are not entered."""

    def __init__(self, root: bytes, matches: Matches, *, each_path: bool = False) -> None:
        self._root = root
        self._matches = matches
        self._each_path = each_path
        self.files: dict[str, FileInfo] = {}
        self.hidden: list[str] = []
        self.hidden_folders: list[bytes] = []
        self.closed: list[str] = []
        # Targets of links that are not there, by the paths of the links
        self.broken: dict[str, str] = {}
        self.again: dict[str, str] = {}
        self.unnamed: list[bytes] = []  # Images whose paths are not UTF-8

    def run(self) -> None:
        """Enter the folders; links last, so that a folder has its own path where it has one."""
        folders, links, places = [b""], list[bytes](), dict[tuple[int, int], str]()
        identities: dict[bytes, tuple[int, int]] = {}
        while folders or links:
            if not folders:
                links.sort(reverse=True)
            below = folders.pop() if folders else links.pop()
            try:
                status = os.stat(os.path.join(self._root, below))
                entries = list(os.scandir(os.path.join(self._root, below)))
            except FileNotFoundError:
                continue
            except OSError as error:
                if not below:
                    folder = printable(self._root)
                    raise StorageError(f"{folder} cannot be listed: {error.strerror}.") from error
                self.closed.append(printable(below))
                continue
            identity = status.st_dev, status.st_ino
            above = {identities[part] for part in _above(below)}
            identities[below] = identity
            if identity in (above if self._each_path else places):
                self.again[printable(below)] = places[identity]
                continue
            places.setdefault(identity, printable(below))
            for entry in entries:
                path = os.path.join(below, entry.name)
                if self._is_folder_to_enter(entry, path):
                    (links if entry.is_symlink() else folders).append(path)

    def _is_folder_to_enter(self, entry: os.DirEntry[bytes], path: bytes) -> bool:
        """Tell whether an entry is to be entered; note it if not."""
        is_hidden = entry.name[:1] in (b".", b"_")
        try:
            state = entry.stat()
        except OSError as error:
            if not is_hidden:
                self._note_unreachable(entry, printable(path), error)
            return False
        if stat.S_ISDIR(state.st_mode) and not entry.name.endswith(ENDING.encode()):
            if entry.name[:1] == b"_":
                self.hidden_folders.append(path)
            # In those that begin with a dot, programs keep thumbnails and deleted files.
            return not is_hidden
        is_image = stat.S_ISDIR(state.st_mode) or stat.S_ISREG(state.st_mode)
        if is_image and self._matches(printable(entry.name)):
            self._note_image(entry.path, path, state, is_hidden)
        return False

    def _note_unreachable(self, entry: os.DirEntry[bytes], path: str, error: OSError) -> None:
        if entry.is_symlink():
            self.broken[path] = printable(os.readlink(entry.path))
        elif not isinstance(error, FileNotFoundError):
            # A disk or a server that fails for a moment: the file may still be there.
            self.closed.append(os.path.dirname(path) or path)

    def _note_image(
        self, place: bytes, path: bytes, state: os.stat_result, is_hidden: bool
    ) -> None:
        if is_hidden:
            self.hidden.append(printable(path))
        elif not is_readable(path):
            self.unnamed.append(path)
        else:
            try:
                self.files[printable(path)] = _info(place, state)
            except OSError:
                self.closed.append(printable(path))


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


def _broken_links(walk: _Walk, matches: Matches, tiled: Iterable[str]) -> dict[str, str]:
    """Return why images behind links cannot be seen, by the paths of the links.

    If a disk is not mounted for a night, images to which links lead cannot be seen. They are not
    removed, so none of their tiles are pruned.
    """
    folders = {above for path in tiled for above in folders_of(path)} if walk.broken else set()
    return {
        path: f"it is a link to {target}, which does not exist or may not be read. Mount the disk, "
        "or mend the link."
        for path, target in walk.broken.items()
        if path in folders or matches(path.rpartition("/")[2])
    }


def _unreadable_names(images: list[bytes]) -> dict[str, str]:
    """Return which names are not UTF-8, by the first folder or image with such a name."""
    counts = Counter(_unreadable_part(path) for path in images)
    return {
        printable(part): (
            "its name is not"
            if part in images
            else f"{pluralize(count, 'image')} in this folder, whose name is not"
        )
        + " UTF-8, so that Spark does not see it. Rename it."
        for part, count in counts.items()
    }


def _unreadable_part(path: bytes) -> bytes:
    """Return the path up to the first name in it that is not UTF-8."""
    ends = (at for at, letter in enumerate(path + b"/") if letter == ord("/"))
    return next(path[:end] for end in ends if not is_readable(path[:end]))
