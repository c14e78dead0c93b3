"""Folders that jobs write: each appears complete or not at all, and replaces only its own kind.

No file system can exchange two folders in one step, and on HDFS a rename replaces nothing. So the
new folder is written beside the old one, under a hidden name. At the end the old one is renamed,
the new one gets its name, and only then is the old one deleted.

A driver that is killed between the two renames leaves nothing under the name, and both folders
beside it, complete, under hidden names that differ only in their ends. Nothing else leaves that. So
the next one that writes there, of whatever driver, first gives the new folder its name. If the
former driver lives after all, it finds its work done.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase

from distkeras_grid.errors import (
    ConfigurationError,
    OutputExistsError,
    PathNotFoundError,
    StorageError,
)
from distkeras_grid.signals import is_interrupt
from distkeras_grid.spark.cancel import stop_work
from distkeras_grid.spark.storage import Storage

# Ends of the hidden names of a folder that is being written, and of the one that it replaces.
NEW, FORMER = ".tmp", ".old"


@dataclass(frozen=True, slots=True)
class OutputKind:
    """How a folder is recognized as the output of a job."""

    name: str  # For messages, such as ``"saved run"``
    marker: str  # The file in it that is written last
    # Patterns of all other names directly in it. Any further name belongs to the user.
    others: tuple[str, ...]
    # Patterns of names in a folder without its marker that a killed job began and that the next one
    # takes up
    unfinished: tuple[str, ...] = ()
    grows_by: str = ""  # For messages: how a job adds to such a folder

    def is_unfinished(self, names: list[str]) -> bool:
        """Tell whether these are the names in a folder that a killed job began."""
        begun = any(_matches(name, self.unfinished) for name in names)
        return begun and self.marker not in names and not self.foreign_files(names)

    def foreign_files(self, names: list[str]) -> list[str]:
        """Return the names that do not belong to such a folder."""
        return [name for name in names if not _matches(name, (self.marker, *self.others))]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, each) for each in patterns)


@dataclass(frozen=True, slots=True)
class InterruptedSwap:
    """The replacement of a folder, between its two renames: nothing has the folder's name."""

    new: str  # new and former: The two folders, both complete
    former: str


def interrupted_replacement(storage: Storage, uri: str, kind: OutputKind) -> InterruptedSwap | None:
    """Return what a driver has left that was killed while it replaced a folder."""
    directory, _, name = storage.resolve(uri).rpartition("/")
    if not name or storage.exists(uri):
        return None
    try:
        names = storage.list_names(directory)
    except PathNotFoundError:
        return None
    for each in names:
        if re.fullmatch(rf"_{re.escape(name)}\.[0-9a-f]{{32}}\.old", each):
            former = f"{directory}/{each}"
            new = f"{former.removesuffix(FORMER)}{NEW}"
            if storage.exists(f"{new}/{kind.marker}"):
                return InterruptedSwap(new, former)
    return None


class Output:
    """One folder to be written."""

    def __init__(
        self, storage: Storage, uri: str, kind: OutputKind, *, overwrite: bool = False
    ) -> None:
        self.uri = uri
        self._storage = storage
        self._kind = kind
        self._overwrite = overwrite

    def check(self, *inputs: str) -> None:
        """Refuse, before any work, an output that cannot be written or would destroy data.

        If a driver was killed while it replaced the folder, the new one gets its name first.
        """
        self.finish_replacement()
        self.check_existing(*inputs)
        probe = self._storage.hidden_beside(self.uri)
        try:
            self._storage.make_dirs(probe)
            self._storage.delete(probe)
        except StorageError as error:
            raise type(error)(f"{self.uri} cannot be written: {error}") from error

    @contextmanager
    def writing(self) -> Iterator[str]:
        """Yield a hidden folder to fill, and publish it at the end; delete it after an error.

        After an interrupt, the jobs that may still write to it are stopped first.
        """
        temporary = self._storage.hidden_beside(self.uri)
        try:
            yield temporary
        except BaseException as error:
            if is_interrupt(error):
                stop_work()
            self._storage.discard(temporary, error)
            raise
        self.publish(temporary)

    def publish(self, temporary: str) -> None:
        """Give a complete folder the output's name, and delete the folder that had the name."""
        aside = f"{temporary.removesuffix(NEW)}{FORMER}"
        replacing = False
        try:
            self.finish_replacement()
            # Only what has been checked: another one may appear meanwhile.
            replacing = self.check_existing() and self._set_aside(aside)
            self._give_name(temporary, replacing=replacing)
        except BaseException as error:
            error.add_note(f"the new {self._kind.name} is complete in {temporary}")
            if replacing:
                self._put_back(aside, error)
            raise
        if replacing and not self._storage.delete(aside) and self._storage.exists(aside):
            raise StorageError(
                f"{self.uri} is complete, but the former folder cannot be deleted. Delete {aside}."
            )

    def finish_replacement(self) -> None:
        """Give the new folder its name if a driver was killed while it replaced the former one."""
        swap = interrupted_replacement(self._storage, self.uri, self._kind)
        if swap is None:
            return
        try:
            self._storage.rename(swap.new, self.uri)
        except (OutputExistsError, PathNotFoundError):
            # The driver lives, or another one does the same, and was faster.
            return
        self._storage.delete(swap.former)

    def check_existing(self, *inputs: str) -> bool:
        """Refuse a folder that exists and must not be replaced."""
        for path in inputs:
            if (self._real(path) + "/").startswith(self._real(self.uri).rstrip("/") + "/"):
                raise ConfigurationError(
                    f"The output {self.uri} is or contains the input {path}. Choose another."
                )
        storage, kind = self._storage, self._kind
        names = self._names()
        if names is None:
            return False
        if not names or kind.is_unfinished(names):
            return True
        # Asked with its whole path: listing a file returns its own name, which may be the marker.
        if not storage.exists(f"{self.uri.rstrip('/')}/{kind.marker}"):
            raise OutputExistsError(
                f"{self.uri} exists and is not a {kind.name} (there is no {kind.marker} in it), so "
                "it is not replaced. Choose another output."
            )
        foreign = kind.foreign_files(names)
        if foreign:
            raise OutputExistsError(
                f"{self.uri} is a {kind.name}, but holds {foreign[0]}, too, so it is not "
                "replaced. Move that elsewhere, or choose another output."
            )
        if not self._overwrite:
            ways = ["Choose another output", *([kind.grows_by] if kind.grows_by else [])]
            raise OutputExistsError(
                f"{self.uri} holds a {kind.name} already. {', '.join(ways)}, or replace it "
                "(--overwrite, in Python overwrite=True)."
            )
        return True

    def _give_name(self, temporary: str, *, replacing: bool) -> None:
        """Rename the complete folder, unless another driver has just done so.

        That one has found the name missing, and took this driver for dead.
        """
        try:
            self._storage.rename(temporary, self.uri)
        except (OutputExistsError, PathNotFoundError):
            if not replacing or self._storage.exists(temporary):
                raise

    def _set_aside(self, aside: str) -> bool:
        """Rename the former folder; return False if another driver has just done so."""
        try:
            self._storage.rename(self.uri, aside)
        except PathNotFoundError:
            return False
        return True

    def _names(self) -> list[str] | None:
        """Return the names in the folder; None if it is missing, or has just been renamed."""
        try:
            return self._storage.list_names(self.uri)
        except PathNotFoundError:
            return None

    def _put_back(self, aside: str, error: BaseException) -> None:
        """Give the former folder its name again; if that fails, add a note to `error`."""
        # Asks first: an interrupt can come between the file system's action and its answer.
        try:
            if not self._storage.exists(aside):
                return
            self._storage.rename(aside, self.uri)
        except StorageError as second:
            error.add_note(f"the former folder is in {aside}; it cannot be put back: {second}")

    def _real(self, uri: str) -> str:
        """Return the whole path, of local files without symbolic links."""
        whole = self._storage.resolve(uri)
        local = whole.removeprefix("file:")
        return whole if local == whole else os.path.realpath(local)
