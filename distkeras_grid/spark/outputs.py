"""Folders that jobs write: each appears whole or not at all, and replaces only its like.

No file system can exchange two folders in one step, and on HDFS a rename replaces nothing. So the
new folder is written beside the old one under a hidden name; at the end the old one is renamed
aside, the new one gets the name, and only then the old one is deleted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase

from distkeras_grid.errors import ConfigurationError, OutputExistsError, StorageError
from distkeras_grid.spark.storage import Storage


@dataclass(frozen=True, slots=True)
class OutputKind:
    """By what a folder is known as one that we wrote.

    Parameters
    ----------
    name : str
        For messages, such as ``"saved run"``.
    marker : str
        The file in it that is written last.
    others : tuple of str
        Patterns of all other names directly in it. A folder that holds any further name holds
        something of the user's.
    """

    name: str
    marker: str
    others: tuple[str, ...]

    def strangers(self, names: list[str]) -> list[str]:
        """Return which names are not of such a folder."""
        known = (self.marker, *self.others)
        return [name for name in names if not any(fnmatchcase(name, each) for each in known)]


class Output:
    """One folder to be written.

    Parameters
    ----------
    storage : Storage
        Storage of the session.
    uri : str
        The folder; one that exists and is empty counts as missing.
    kind : OutputKind
        What it will be.
    overwrite : bool, default False
        Whether a complete folder of the same kind is replaced.

    Examples
    --------
    >>> output = Output(Storage(spark), "hdfs:///runs/7", SAVED_RUN)     # doctest: +SKIP
    >>> output.check()                                                   # doctest: +SKIP
    >>> with output.writing() as folder:                                 # doctest: +SKIP
    ...     storage.write_text(f"{folder}/run.json", "{}")
    """

    def __init__(
        self, storage: Storage, uri: str, kind: OutputKind, *, overwrite: bool = False
    ) -> None:
        self.uri = uri
        self._storage = storage
        self._kind = kind
        self._overwrite = overwrite

    def check(self, *inputs: str) -> None:
        """Refuse, before any work, what could not be written at the end or would lose data.

        Parameters
        ----------
        *inputs : str
            Paths that the job reads.

        Raises
        ------
        ConfigurationError
            If the output is or contains an input.
        OutputExistsError
            If it exists and must not be replaced.
        StorageError
            If the file system refuses.
        """
        self.check_existing(*inputs)
        probe = self._storage.hidden_beside(self.uri)
        try:
            self._storage.make_dirs(probe)
            self._storage.delete(probe)
        except StorageError as error:
            raise type(error)(f"{self.uri} cannot be written: {error}") from error

    @contextmanager
    def writing(self) -> Iterator[str]:
        """Yield a hidden folder to fill, and publish it; after an error it is deleted."""
        temporary = self._storage.hidden_beside(self.uri)
        try:
            yield temporary
        except BaseException as error:
            self._storage.discard(temporary, error)
            raise
        self.publish(temporary)

    def publish(self, temporary: str) -> None:
        """Give a complete folder the output's name, in place of the one that has it.

        Parameters
        ----------
        temporary : str
            The complete folder, in the same directory. It stays where it is after an error, whose
            notes name it; what it should have replaced is put back.

        Raises
        ------
        OutputExistsError
            If something has appeared there that must not be replaced.
        StorageError
            If the file system refuses.
        """
        aside = self._storage.hidden_beside(self.uri, "old")
        replacing = False
        try:
            self.check_existing()
            replacing = self._storage.exists(self.uri)
            if replacing:
                self._storage.rename(self.uri, aside)
            self._storage.rename(temporary, self.uri)
        except BaseException as error:
            error.add_note(f"the new {self._kind.name} is complete in {temporary}")
            if replacing:
                self._put_back(aside, error)
            raise
        if replacing and not self._storage.delete(aside):
            raise StorageError(
                f"{self.uri} is complete, but what it replaced cannot be deleted. Delete {aside}."
            )

    def check_existing(self, *inputs: str) -> None:
        """Refuse a folder that is there and must not be replaced.

        Parameters
        ----------
        *inputs : str
            Paths that the job reads.

        Raises
        ------
        ConfigurationError
            If the output is or contains an input.
        OutputExistsError
            Says why, and what to do.
        """
        for path in inputs:
            if (self._real(path) + "/").startswith(self._real(self.uri).rstrip("/") + "/"):
                raise ConfigurationError(
                    f"The output {self.uri} is or contains the input {path}. Choose another."
                )
        storage, kind = self._storage, self._kind
        names = storage.list_names(self.uri) if storage.exists(self.uri) else []
        if not names:
            return
        # Looked up below it: a file is listed under its own name, which may be that.
        if not storage.exists(f"{self.uri.rstrip('/')}/{kind.marker}"):
            raise OutputExistsError(
                f"{self.uri} exists and is not a {kind.name} (there is no {kind.marker} in it), so "
                "it is not replaced. Choose another output."
            )
        if strangers := kind.strangers(names):
            raise OutputExistsError(
                f"{self.uri} is a {kind.name}, but holds {strangers[0]}, too, so it is not "
                "replaced. Move that elsewhere, or choose another output."
            )
        if not self._overwrite:
            raise OutputExistsError(
                f"{self.uri} holds a {kind.name} already. Choose another output, or replace it "
                "(--overwrite, in Python overwrite=True)."
            )

    def _put_back(self, aside: str, error: BaseException) -> None:
        """Give the former folder its name again; where that fails, say in `error` where it is."""
        # Looked up: an interrupt can come between what the file system did and its answer.
        try:
            if not self._storage.exists(aside):
                return
            self._storage.rename(aside, self.uri)
        except StorageError as second:
            error.add_note(f"the former one is in {aside}, for it cannot be put back: {second}")

    def _real(self, uri: str) -> str:
        """Return the whole path, of local files without symbolic links."""
        whole = self._storage.resolve(uri)
        local = whole.removeprefix("file:")
        return whole if local == whole else os.path.realpath(local)
