"""The environment archives that `submit` has packed and uploaded: which there are, which may go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from distkeras_grid.spark.storage import Storage
from distkeras_grid.submission.applications import Application
from distkeras_grid.submission.archive import DIGEST
from distkeras_grid.submission.environment import is_archive

DAY = 86400.0


@dataclass(frozen=True)
class Archive:
    """One archive."""

    uri: str  # Path of the file
    size: int  # Bytes
    modified: float  # When it was packed or uploaded, Unix seconds
    # Who needs it: ``this environment``, and ids of applications that have not ended
    used_by: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the file."""
        return self.uri.rpartition("/")[2]


def archives_in(
    folder: str, storage: Storage, present: str, applications: Iterable[Application]
) -> list[Archive]:
    """Return the archives of a folder, the newest first; other files are left out."""
    if not storage.exists(folder):
        return []
    going = [each for each in applications if not each.ended]
    archives = []
    for name in filter(is_archive, storage.list_names(folder)):
        uri = f"{folder.rstrip('/')}/{name}"
        used_by = ["this environment"] if name == present else []
        used_by += [each.id for each in going if name in each.tags]
        archives.append(Archive(uri, storage.size(uri), storage.modified(uri), tuple(used_by)))
    return sorted(archives, key=lambda each: each.modified, reverse=True)


def outdated(archives: Sequence[Archive], days: float, now: float) -> list[Archive]:
    """Return the archives that nobody needs and that are older than so many days.

    `now`: unix seconds.

    Examples
    --------
    >>> old, used = Archive("/a", 1, 0.0, ()), Archive("/b", 1, 0.0, ("this environment",))
    >>> outdated([old, used], days=30, now=31 * DAY) == [old]
    True
    """
    return [each for each in archives if not each.used_by and now - each.modified > days * DAY]


def delete(archive: Archive, storage: Storage) -> None:
    """Delete an archive, and the file with its SHA-256."""
    storage.delete(archive.uri)
    storage.delete(archive.uri + DIGEST)
