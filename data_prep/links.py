"""Symbolic links whose target is not there: Hadoop passes over them, and over what lay below.

If a disk is not mounted for a night, images to which links lead cannot be seen. They are not
removed, so none of their tiles are pruned.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Protocol

from data_prep.folders import ENDING


class Files(Protocol):
    """The methods of `distkeras_grid.spark.storage.Storage` that are needed here."""

    def resolve(self, uri: str) -> str: ...  # noqa: D102
    def matches(self, glob: str, name: str) -> bool: ...  # noqa: D102


def lost_images(files: Files, root: str, glob: str, tiled: Iterable[str] = ()) -> dict[str, str]:
    """Return why images below a folder cannot be seen, by the paths of links below it.

    Only local file systems have such links.

    Parameters
    ----------
    files : Files
    root : str
        The folder.
    glob : str
        Pattern of the names of images, in Hadoop's syntax.
    tiled : iterable of str
        Paths of images below the folder that have tiles. A link above one of them is returned, too.
    """
    whole = files.resolve(root)
    if not whole.startswith("file:"):
        return {}
    links = broken_links("/" + whole.removeprefix("file:").lstrip("/"))
    folders = {above for path in tiled for above in folders_of(path)} if links else set()
    return {
        path: f"it is a link to {target}, which does not exist or may not be read. Mount the disk, "
        "or mend the link."
        for path, target in links.items()
        if path in folders or files.matches(glob, path.rpartition("/")[2])
    }


def folders_of(path: str) -> list[str]:
    """Return the folders above a path.

    Examples
    --------
    >>> folders_of("a/b/0.png")
    ['a', 'a/b']
    """
    return [path[:at] for at, letter in enumerate(path) if letter == "/"]


def broken_links(folder: str) -> dict[str, str]:
    """Return the targets of broken links below a folder, by their paths below it.

    Names that Spark hides, and images that are folders, are not looked into. What cannot be opened
    is passed over: `data_prep.listing.hidden_images` reports it.
    """
    found: dict[str, str] = {}
    waiting, seen = [""], set[tuple[int, int]]()
    while waiting:
        below = waiting.pop()
        try:
            status = os.stat(f"{folder}/{below}")
            entries = list(os.scandir(f"{folder}/{below}"))
        except OSError:
            continue
        if (status.st_dev, status.st_ino) in seen:
            # A link can lead to a folder above it.
            continue
        seen.add((status.st_dev, status.st_ino))
        for entry in entries:
            path = f"{below}{entry.name}"
            if entry.name[0] in "._":
                continue
            if entry.is_symlink() and not os.path.exists(entry.path):
                found[path] = os.readlink(entry.path)
            elif _is_folder(entry) and not entry.name.endswith(ENDING):
                waiting.append(f"{path}/")
    return found


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Tell whether an entry is a folder; the system must be asked only about links."""
    try:
        return entry.is_dir()
    except OSError:
        return False
