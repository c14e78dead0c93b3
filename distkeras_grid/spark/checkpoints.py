"""Checkpoints in a directory on any Hadoop path; `distkeras_grid.checkpoints` defines them.

A new checkpoint is written under a hidden name, its manifest last, and then renamed. If the driver
is killed meanwhile, the former checkpoints stay as they were. The newest two are kept. Other files
in the directory are never touched.

The directory contains a token of the driver that writes to it. A driver that finds another token
there has been replaced by an attempt that Spark or YARN has started, and writes nothing more.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from distkeras_grid.checkpoints import (
    MANIFEST,
    Content,
    Manifest,
    Piece,
    TornError,
    folder_name,
    numbers_of,
    unused,
)
from distkeras_grid.errors import (
    BusyError,
    DataError,
    OutputExistsError,
    PathNotFoundError,
    StorageError,
)

if TYPE_CHECKING:
    from distkeras_grid.spark.storage import Storage

SHARED, TOKEN = "shared", "writer.json"
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

    Examples
    --------
    >>> store = CheckpointStore(Storage(spark), "hdfs:///checkpoints/first")    # doctest: +SKIP
    >>> store.newest(print)                                                     # doctest: +SKIP
    """

    def __init__(self, files: Storage, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._files = files
        self._token: str | None = None

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
        BusyError
            If another driver has taken the directory over.
        """
        self._check_token()
        return self.newest(tell)

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
        """
        if anew:
            self.check_new()
        self._files.make_dirs(f"{self.uri}/{SHARED}")
        self._token = secrets.token_hex(16)
        token = json.dumps({"writer": self._token}) + "\n"
        self._files.write_bytes(f"{self.uri}/{TOKEN}", token.encode(), overwrite=True)
        for name in self._files.list_names(self.uri):
            if name.startswith("_checkpoint-") and name.endswith(".tmp"):
                self._files.delete(f"{self.uri}/{name}")

    def next_number(self) -> int:
        """Return the number of the next checkpoint."""
        return max(self._numbers(), default=0) + 1

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
        BusyError
            If another driver has taken the directory over. Nothing is written then.
        StorageError
            If the file system refuses. The former checkpoints stay as they were.
        """
        self._check_token()
        for name, content in shared.items():
            target = f"{self.uri}/{SHARED}/{name}"
            if not self._files.exists(target):
                self._files.write_bytes(target, bytes(content))
        temporary = f"{self.uri}/_{manifest.folder}.{secrets.token_hex(8)}.tmp"
        try:
            for name, content in contents.items():
                self._files.write_bytes(f"{temporary}/{name}", bytes(content))
            self._files.write_bytes(f"{temporary}/{MANIFEST}", manifest.to_bytes())
            self._check_token()
            self._files.rename(temporary, self._folder(manifest.number))
        except BaseException:
            self._files.delete(temporary)
            raise
        self._delete_old()

    def _delete_old(self) -> None:
        numbers = self._numbers()
        for number in numbers[KEPT:]:
            self._files.delete(self._folder(number))
        try:
            kept = [self._manifest(number) for number in numbers[:KEPT]]
        except TornError:
            # The pieces of a torn checkpoint are unknown. It is deleted when it is older.
            return
        names = self._files.list_names(f"{self.uri}/{SHARED}")
        for name in unused(names, kept):
            self._files.delete(f"{self.uri}/{SHARED}/{name}")

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

    def _check_token(self) -> None:
        found = self._files.read_bytes(f"{self.uri}/{TOKEN}")
        if self._token is None or self._token.encode() not in found:
            raise BusyError(
                f"Another driver writes checkpoints to {self.uri} by now, so this one writes none. "
                "Each run needs a checkpoint_dir of its own."
            )
