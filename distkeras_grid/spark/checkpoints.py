"""Checkpoints in a directory on any Hadoop path; `distkeras_grid.checkpoints` defines them.

A new checkpoint is written under a hidden name, its manifest last, and then renamed. If the driver
is killed meanwhile, the former checkpoints stay as they were. The newest two are kept. Rows that
were stored for a run stay as long as one of its checkpoints. Other files in the directory are never
touched.

The directory names the driver that writes to it (`Generation`). A driver that finds another one
named there has been replaced, for example by an attempt that YARN has started, and is fenced: it
writes nothing more.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from distkeras_grid.checkpoints import (
    MANIFEST,
    Content,
    Driver,
    Generation,
    Manifest,
    Piece,
    TornError,
    folder_name,
    numbers_of,
    unused,
    unused_rows,
)
from distkeras_grid.errors import (
    DataError,
    FencedError,
    OutputExistsError,
    PathNotFoundError,
    StorageError,
)

if TYPE_CHECKING:
    from distkeras_grid.spark.storage import Storage

SHARED, GENERATION = "shared", "generation.json"
KEPT = 2
# Messages of file systems about a file whose bytes are corrupt. Any other error may be temporary,
# so it is no reason to go back to an earlier checkpoint.
DAMAGED = ("ChecksumException", "BlockMissingException", "EOFException")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint.

    Parameters
    ----------
    manifest : Manifest
        What the checkpoint consists of.
    contents : dict of str to bytes
        The checkpoint's pieces by name, checked.
    """

    manifest: Manifest
    contents: dict[str, bytes] = field(repr=False)


class CheckpointStore:
    """The checkpoints of one directory.

    Parameters
    ----------
    files : Storage
        Storage of the session.
    uri : str
        The directory; it may be missing.
    driver : Driver
        This driver.

    Examples
    --------
    >>> driver = Driver("application_17_0001")
    >>> store = CheckpointStore(Storage(spark), "hdfs:///first", driver)    # doctest: +SKIP
    >>> store.newest(print)                                                 # doctest: +SKIP
    """

    def __init__(self, files: Storage, uri: str, driver: Driver) -> None:
        self.uri = uri.rstrip("/")
        self._files, self._driver = files, driver
        self._generation: Generation | None = None

    def newest(self, tell: Callable[[str], object]) -> Checkpoint | None:
        """Return the newest complete checkpoint; None if there are no checkpoints.

        Parameters
        ----------
        tell : callable
            Called with a line for each torn checkpoint.

        Raises
        ------
        DataError
            If there are checkpoints, and all of them are torn.
        ConfigurationError
            If the newest one was written by another release.
        """
        numbers, torn = self._numbers(), []
        for number in numbers:
            try:
                return self._read(number)
            except TornError as error:
                torn.append(str(error))
                tell(f"{self._folder(number)} is not whole and is not used: {error}")
        if torn:
            raise DataError(
                f"No checkpoint in {self.uri} is whole ({torn[0]}). Restore one, or delete the "
                "directory to train from the beginning."
            )
        return None

    def newest_of_own(self, tell: Callable[[str], object]) -> Checkpoint | None:
        """Return the newest checkpoint of the run that this driver executes; see `newest`.

        Raises
        ------
        FencedError
            If another driver has taken the directory over.
        """
        self._check_generation()
        return self.newest(tell)

    def newest_number(self) -> int:
        """Return the number of the newest checkpoint, whole or torn; 0 if there is none."""
        return max(self._numbers(), default=0)

    def is_of_former_attempt(self) -> bool:
        """Whether an earlier attempt of this driver's application has written here last."""
        found = self._found_generation()
        return found is not None and found.precedes(self._driver)

    def check_new(self) -> None:
        """Refuse a directory that has checkpoints.

        Raises
        ------
        OutputExistsError
            If it has some.
        """
        if self._numbers():
            raise OutputExistsError(
                f"{self.uri} has checkpoints of another run. Go on from them (resume='auto'), "
                "choose another checkpoint_dir, or delete it."
            )

    def begin(self, *, anew: bool) -> None:
        """Take the directory over, and delete unfinished checkpoints of a killed driver.

        Parameters
        ----------
        anew : bool
            Whether the run begins anew; then the directory must have no checkpoint.

        Raises
        ------
        OutputExistsError
            If the run begins anew and there is a checkpoint.
        FencedError
            If a later attempt of this driver's application has taken the directory over.
        """
        if anew:
            self.check_new()
        former = self._found_generation()
        if former is not None and former.follows(self._driver):
            raise self._fenced(former)
        self._files.make_dirs(f"{self.uri}/{SHARED}")
        number = 1 if former is None else former.number + 1
        self._generation = Generation(number, self._driver, secrets.token_hex(16))
        self._files.write_bytes(self._generation_file, self._generation.to_bytes(), overwrite=True)
        for name in self._files.list_names(self.uri):
            if name.startswith("_checkpoint-") and name.endswith(".tmp"):
                self._files.delete(f"{self.uri}/{name}")

    def new_rows(self) -> str:
        """Return a new folder for the rows of a run, which its checkpoints will name."""
        return f"{self.uri}/rows-{secrets.token_hex(16)}"

    def rows_of(self, manifest: Manifest) -> str | None:
        """Return the folder with the rows of a checkpoint's run; None if they were not stored."""
        return None if manifest.rows is None else f"{self.uri}/{manifest.rows}"

    def drop_rows(self, folder: str) -> None:
        """Delete the rows of a run that has ended, unless it has left a checkpoint."""
        name = folder.rpartition("/")[2]
        kept = [self._manifest(number) for number in self._numbers()]
        if unused_rows([name], kept):
            self._files.delete(f"{self.uri}/{name}")

    def next_number(self) -> int:
        """Return the number of the next checkpoint."""
        return self.newest_number() + 1

    def write(
        self, manifest: Manifest, contents: Mapping[str, Content], shared: Mapping[str, Content]
    ) -> None:
        """Write a checkpoint, and delete all older ones except the one before it.

        Parameters
        ----------
        manifest : Manifest
            What the checkpoint consists of.
        contents : mapping of str to bytes
            Contents of the checkpoint's own pieces, by name.
        shared : mapping of str to bytes
            Contents of the new shared pieces, by name.

        Raises
        ------
        FencedError
            If another driver has taken the directory over. Nothing is written then.
        StorageError
            If the file system refuses. The former checkpoints stay as they were.
        """
        self._check_generation()
        for name, content in shared.items():
            target = f"{self.uri}/{SHARED}/{name}"
            if not self._files.exists(target):
                self._files.write_bytes(target, bytes(content))
        temporary = f"{self.uri}/_{manifest.folder}.{secrets.token_hex(8)}.tmp"
        try:
            for name, content in contents.items():
                self._files.write_bytes(f"{temporary}/{name}", bytes(content))
            self._files.write_bytes(f"{temporary}/{MANIFEST}", manifest.to_bytes())
            self._check_generation()
            self._files.rename(temporary, self._folder(manifest.number))
        except BaseException:
            self._files.delete(temporary)
            raise
        self._delete_old()

    def _delete_old(self) -> None:
        # Listed before the check, so nothing that a later driver has written is among them.
        numbers, names = self._numbers(), self._files.list_names(f"{self.uri}/{SHARED}")
        folders = self._files.list_names(self.uri)
        self._check_generation()
        for number in numbers[KEPT:]:
            self._files.delete(self._folder(number))
        try:
            kept = [self._manifest(number) for number in numbers[:KEPT]]
        except TornError:
            # The pieces of a torn checkpoint are unknown. It is deleted when it is older.
            return
        for name in unused(names, kept):
            self._files.delete(f"{self.uri}/{SHARED}/{name}")
        for name in unused_rows(folders, kept):
            self._files.delete(f"{self.uri}/{name}")

    def _read(self, number: int) -> Checkpoint:
        manifest = self._manifest(number)
        return Checkpoint(manifest, self._contents(manifest, manifest.pieces))

    def _manifest(self, number: int) -> Manifest:
        try:
            manifest = Manifest.from_bytes(
                self._files.read_bytes(f"{self._folder(number)}/{MANIFEST}")
            )
        except PathNotFoundError as error:
            raise TornError(f"It has no {MANIFEST}.") from error
        if manifest.number != number:
            raise TornError(f"Its manifest is that of {manifest.folder}.")
        return manifest

    def _contents(self, manifest: Manifest, pieces: Sequence[Piece]) -> dict[str, bytes]:
        contents = {}
        for piece in pieces:
            folder = f"{self.uri}/{SHARED}" if piece.shared else self._folder(manifest.number)
            contents[piece.name] = self._read_file(f"{folder}/{piece.name}")
            piece.check(contents[piece.name])
        return contents

    def _read_file(self, uri: str) -> bytes:
        try:
            return self._files.read_bytes(uri)
        except PathNotFoundError as error:
            raise TornError(f"{uri} is missing.") from error
        except StorageError as error:
            if any(sign in str(error) for sign in DAMAGED):
                raise TornError(str(error)) from error
            raise

    def _numbers(self) -> list[int]:
        if not self._files.exists(self.uri):
            return []
        return numbers_of(self._files.list_names(self.uri))

    def _folder(self, number: int) -> str:
        return f"{self.uri}/{folder_name(number)}"

    @property
    def _generation_file(self) -> str:
        return f"{self.uri}/{GENERATION}"

    def _found_generation(self) -> Generation | None:
        try:
            return Generation.from_bytes(self._files.read_bytes(self._generation_file))
        except PathNotFoundError:
            return None

    def _check_generation(self) -> None:
        found = self._found_generation()
        if found is None or found != self._generation:
            raise self._fenced(found)

    def _fenced(self, found: Generation | None) -> FencedError:
        other = (
            "Another driver"
            if found is None
            else (f"Another driver (attempt {found.driver.attempt} of {found.driver.application})")
        )
        return FencedError(
            f"{other} writes checkpoints to {self.uri} by now, so this driver (attempt "
            f"{self._driver.attempt} of {self._driver.application}) is replaced, and its run ends. "
            "Each run needs a checkpoint_dir of its own."
        )
