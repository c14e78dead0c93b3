"""Directories by their names, and what a listing by Spark does not show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from distkeras_grid.spark.storage import Storage
from distkeras_grid.spark.storage_errors import causes_of, is_closed, translated


class HiddenFiles(NamedTuple):
    """What a listing by Spark does not show, full paths, sorted."""

    files: list[str]  # Those whose names begin with ``_`` or ``.``
    directories: list[str]
    closed: list[str]  # Other directories that cannot be opened


def find_directories(storage: Storage, uri: str, glob: str, ending: str) -> list[str]:
    """Return the full paths of directories below `uri` with matching names, sorted."""
    pattern = storage.jvm.org.apache.hadoop.fs.GlobPattern(glob)
    folders: list[str] = []
    with translated("list", uri):
        file_system, path = storage.java_path(uri)
        waiting = [path]
        while waiting:
            here = waiting.pop()
            if not str(here.getName()).endswith(ending):
                entries = _entries(file_system, here, path) or ()
                waiting += [entry.getPath() for entry in entries if entry.isDirectory()]
            elif pattern.matches(here.getName()):
                folders.append(str(here.toString()))
    return sorted(folders)


def find_hidden(storage: Storage, uri: str, glob: str, known: Iterable[str]) -> HiddenFiles:
    """Return what Spark passes over below `uri`, and directories that cannot be opened.

    Spark and Hadoop pass over names that begin with ``_`` or ``.``. A directory that this user
    may not open ends a listing by Spark.
    """
    hadoop = storage.jvm.org.apache.hadoop.fs
    pattern, hidden = hadoop.GlobPattern(glob), hadoop.GlobFilter("[_.]*")
    files = HiddenFiles([], [], [])
    with translated("list", uri):
        file_system, path = storage.java_path(uri)
        inside = _directories_below(str(path.toString()), known)
        waiting = [path] if file_system.getFileStatus(path).isDirectory() else []
        while waiting:
            here = waiting.pop()
            entries = _entries(file_system, here, path, hidden)
            if entries is None:
                files.closed.append(str(here.toString()))
                continue
            for entry in entries:
                there = entry.getPath()
                if entry.isDirectory() or pattern.matches(there.getName()):
                    files[entry.isDirectory()].append(str(there.toString()))
            waiting += _directories_in(storage, file_system, here, inside)
    return HiddenFiles(*map(sorted, files))


def _entries(file_system: Any, path: Any, root: Any, *names: Any) -> Any:
    """Return the entries of a directory; None if it cannot be opened, and is not the root."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        return file_system.listStatus(path, *names)
    except Py4JJavaError as error:
        if path == root or not is_closed(causes_of(error.java_exception)):
            raise
        return None


def _directories_in(
    storage: Storage,
    file_system: Any,
    path: Any,
    known: Mapping[str, set[str]],
) -> list[Any]:
    """Return the paths of the directories in another that are not hidden."""
    name = str(path.toString())
    below = known.get(name, set())
    if _count_directories(file_system, path) == 1 + len(below):
        hadoop = storage.jvm.org.apache.hadoop.fs
        return [hadoop.Path(each) for each in below if each.rpartition("/")[0] == name]
    entries = file_system.listStatus(path)
    paths = [entry.getPath() for entry in entries if entry.isDirectory()]
    return [each for each in paths if str(each.getName())[0] not in "_."]


def _count_directories(file_system: Any, path: Any) -> int | None:
    """Return how many directories a path holds with itself; None if one cannot be opened."""
    from py4j.protocol import Py4JJavaError

    try:
        return int(file_system.getContentSummary(path).getDirectoryCount())
    except Py4JJavaError:
        # A hidden one may be locked, and nobody needs to open it. What matters fails when listed.
        return None


def _directories_below(root: str, files: Iterable[str]) -> dict[str, set[str]]:
    """Return all directories below each directory, from the paths of files below `root`.

    Examples
    --------
    >>> found = _directories_below("/raw", ["/raw/a/b/1.png", "/raw/a/b/2.png"])
    >>> {name: sorted(below) for name, below in found.items()}
    {'/raw/a': ['/raw/a/b'], '/raw': ['/raw/a', '/raw/a/b']}
    """
    folders: dict[str, set[str]] = {}
    for folder in {file.rpartition("/")[0] for file in files}:
        within = [folder]
        while len(within[-1]) > len(root):
            within.append(within[-1].rpartition("/")[0])
            folders.setdefault(within[-1], set()).update(within[:-1])
    return folders
