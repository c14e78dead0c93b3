"""What a folder of this machine holds, asked of the system itself and not of Spark's Java.

Java passes over links whose target is not there, over what lay below them, and over names that it
cannot decode; Spark follows a link to a folder above it forty times. So the two are compared.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from data_prep.dataset.plan import pluralize
from data_prep.images.multifile_images import ENDING
from distkeras_grid.errors import StorageError
from distkeras_grid.spark.local_names import is_readable, printable

# Decides by the name of a file.
Matches = Callable[[str], bool]


@dataclass
class Walk:
    """What is in a local folder and below it, by paths below it; nothing of other file systems.

    Names that Spark hides are left out, and what cannot be opened:
    `data_prep.spark.discovery.unseen_images` reports it.
    """

    folder: str = ""
    files: list[str] = field(default_factory=list)  # Files, and images that are folders
    # Targets of links that are not there, by the paths of the links
    broken: dict[str, str] = field(default_factory=dict)
    # Folders that a link leads to and that have another path, too, by the paths of the links. What
    # lies in them has that other path.
    again: dict[str, str] = field(default_factory=dict)
    unnamed: list[bytes] = field(default_factory=list)  # Files whose paths are not UTF-8

    def again_in(self, whole: str) -> list[str]:
        """Return the whole paths of the links in `again`, from that of the folder."""
        return [f"{whole.rstrip('/')}/{path}" for path in self.again]

    def check(self, listed: Iterable[str], matches: Matches, encoding: str) -> None:
        """Refuse a listing by Spark that lacks files."""
        known = set(listed)
        missing = [
            path
            for path in self.files
            if path not in known
            and matches(os.path.basename(path))
            # Somebody may have moved it in between.
            and os.path.lexists(f"{self.folder}/{path}".encode())
        ]
        if missing:
            raise StorageError(
                f"Spark lists {len(known):,} files in {self.folder}, and does not see "
                f"{len(missing):,} others that are there, such as {min(missing)}. Its Java reads "
                f"the names of files as {encoding}. If that is not UTF-8, start Python or "
                "spark-submit with LC_ALL=C.UTF-8 in its environment. If it is, look whether all "
                "hosts see the same folder. Nothing was written."
            )


def walk(folder: str, *, each_path: bool = False) -> Walk:
    """Look at all that lies in a folder and below it; each real folder is looked into once.

    With `each_path` it is looked into on each path that leads to it, but for loops.

    Links are followed last, so that a folder has its own path where it has one. Images that are
    folders are not looked into.
    """
    tree, root = Walk(folder), folder.encode()
    folders, links, places = [b""], list[bytes](), dict[tuple[int, int], str]()
    identities: dict[bytes, tuple[int, int]] = {}
    while folders or links:
        if not folders:
            links.sort(reverse=True)
        below = folders.pop() if folders else links.pop()
        try:
            status = os.stat(os.path.join(root, below))
            entries = list(os.scandir(os.path.join(root, below)))
        except OSError:
            continue
        identity = status.st_dev, status.st_ino
        above = {identities[part] for part in _above(below)}
        identities[below] = identity
        if identity in (above if each_path else places):
            tree.again[printable(below)] = places[identity]
            continue
        places.setdefault(identity, printable(below))
        for entry in entries:
            path = os.path.join(below, entry.name)
            if entry.name[:1] not in (b".", b"_") and _is_folder_to_enter(entry, path, tree):
                (links if entry.is_symlink() else folders).append(path)
    return tree


def _above(path: bytes) -> list[bytes]:
    """Return the folders above a path, from the root, which is empty."""
    parts = path.split(b"/")
    return [b"/".join(parts[:end]) for end in range(len(parts))] if path else []


def _is_folder_to_enter(entry: os.DirEntry[bytes], path: bytes, walk: Walk) -> bool:
    """Tell whether an entry is to be looked into; note it if not."""
    if entry.is_symlink() and not os.path.exists(entry.path):
        walk.broken[printable(path)] = printable(os.readlink(entry.path))
        return False
    is_folder = _asked(entry.is_dir)
    if is_folder and not entry.name.endswith(ENDING.encode()):
        return True
    if is_folder or _asked(entry.is_file):
        if is_readable(path):
            walk.files.append(path.decode())
        else:
            walk.unnamed.append(path)
    return False


def find_broken_links(walk: Walk, matches: Matches, tiled: Iterable[str] = ()) -> dict[str, str]:
    """Return why images in a local folder cannot be seen, by their paths or those of links.

    If a disk is not mounted for a night, images to which links lead cannot be seen. They are not
    removed, so none of their tiles are pruned.
    """
    folders = {above for path in tiled for above in folders_of(path)} if walk.broken else set()
    lost = {
        path: f"it is a link to {target}, which does not exist or may not be read. Mount the disk, "
        "or mend the link."
        for path, target in walk.broken.items()
        if path in folders or matches(path.rpartition("/")[2])
    }
    images = [path for path in walk.unnamed if matches(printable(os.path.basename(path)))]
    counts = Counter(_unreadable_part(path) for path in images)
    return lost | {
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


def folders_of(path: str) -> list[str]:
    """Return the folders above a path.

    Examples
    --------
    >>> folders_of("a/b/0.png")
    ['a', 'a/b']
    """
    return [path[:at] for at, letter in enumerate(path) if letter == "/"]


def _asked(question: Callable[[], bool]) -> bool:
    """Return what the system says of an entry, which it must be asked only about links."""
    try:
        return question()
    except OSError:
        return False
