"""Checkpoints in a directory on any Hadoop path; `distkeras_grid.checkpoints` defines them.

A new checkpoint is written under a hidden name, its manifest last, and then renamed. If the driver
is killed meanwhile, the former checkpoints stay as they were. The newest two are kept. Rows that
were stored for a run stay as long as one of its checkpoints. Other files in the directory are never
touched.

The directory names the driver that writes to it (`DriverEpoch`). Each driver that takes it over
adds a file with the next number. Only one driver can add a number, so an earlier attempt never
replaces a later one. A driver that finds a newer file has been replaced, for example by an attempt
that YARN has started, and is fenced: it writes nothing more. This holds on HDFS whatever two
drivers do at once, because renaming a file replaces none there. Object stores cannot promise that.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from distkeras_grid.checkpoints import (
    MANIFEST,
    CheckpointManifest,
    Content,
    Driver,
    DriverEpoch,
    IncompleteCheckpointError,
    folder_name,
    generation_name,
    generations_of,
    numbers_of,
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

MAX_CHECKPOINTS = 2
# How often other drivers may be faster while this one takes a directory over, or may write while
# this one reads.
TRIES = 8
# Messages of file systems about a file whose bytes are corrupt. Any other error may be temporary,
# so it is not a reason to go back to an earlier checkpoint.
DAMAGED = ("ChecksumException", "BlockMissingException", "EOFException")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    manifest: CheckpointManifest  # What the checkpoint consists of
    contents: dict[str, bytes] = field(repr=False)  # The checkpoint's pieces by name, checked


class CheckpointStore:
    """The checkpoints of one directory.

    `uri`: the directory; it may be missing.
    """

    def __init__(self, files: Storage, uri: str, driver: Driver) -> None:
        self.uri = uri.rstrip("/")
        self._files, self._driver = files, driver
        self._generation: DriverEpoch | None = None

    def newest(self, tell: Callable[[str], object]) -> Checkpoint | None:
        """Return the newest complete checkpoint; None if there are no checkpoints."""
        numbers = self._numbers()
        for _ in range(TRIES):
            checkpoint, torn = self._newest_of(numbers)
            before, numbers = numbers, self._numbers() if torn else numbers
            # A driver that still writes deletes old checkpoints: they are replaced, not torn.
            if numbers == before:
                break
        else:
            raise StorageError(
                f"Another driver replaces the checkpoints in {self.uri} faster than they can be "
                "read. End it, and run this again."
            )
        for number, error in torn.items():
            tell(f"{self._folder(number)} is not whole and is not used: {error}")
        if torn and checkpoint is None:
            raise DataError(
                f"No checkpoint in {self.uri} is whole ({torn[numbers[0]]}). Restore one, or "
                "delete the directory to train from the beginning."
            )
        return checkpoint

    def _newest_of(
        self, numbers: Sequence[int]
    ) -> tuple[Checkpoint | None, dict[int, IncompleteCheckpointError]]:
        """Return the first whole checkpoint, and what is wrong with those before it."""
        torn = dict[int, IncompleteCheckpointError]()
        for number in numbers:
            try:
                return self._read(number), torn
            except IncompleteCheckpointError as error:
                torn[number] = error
        return None, torn

    def newest_number(self) -> int:
        """Return the number of the newest checkpoint, whole or torn; 0 if there is none."""
        return max(self._numbers(), default=0)

    def is_of_former_attempt(self) -> bool:
        """Whether an earlier attempt of this driver's application has written here last."""
        epoch = self._newest_generation()
        return epoch is not None and epoch.driver.precedes(self._driver)

    def check_new(self) -> None:
        """Refuse a directory that has checkpoints."""
        if self._numbers():
            raise OutputExistsError(
                f"{self.uri} has checkpoints of another run. Go on from them (resume='auto'), "
                "choose another checkpoint_dir, or delete it."
            )

    def look(self, *, resume: bool, tell: Callable[[str], object]) -> Checkpoint | None:
        """Return the checkpoint to go on from; None if the run begins anew.

        A later attempt of an application takes the directory over first, so that an earlier one
        that is still alive writes no checkpoint while the later one prepares its run.
        """
        # Asked in this order: a driver adds its generation before its first checkpoint.
        if self._numbers() and not (resume or self.is_of_former_attempt()):
            self.check_new()
        if self._driver.attempt > 1:
            self.begin(anew=False)
        return self.newest(tell)

    def settle(self, number: int, tell: Callable[[str], object]) -> Checkpoint | None:
        """Take the directory over; return a newer checkpoint than a number, None if there is none.

        A driver that is being replaced may have written one since this driver has looked. From
        here on it writes none.
        """
        if self._generation is None:
            self.begin(anew=number == 0)
        return None if self.newest_number() == number else self.newest(tell)

    def begin(self, *, anew: bool) -> None:
        """Take the directory over, and delete unfinished checkpoints of a killed driver.

        `anew`: whether the run begins anew; then the directory must have no checkpoint.
        """
        if anew:
            self.check_new()
        self._files.make_dirs(self.uri)
        self._generation = self._take_over()
        # Listed before the check, so nothing that a later driver writes is among them.
        names = self._files.list_names(self.uri)
        if generations_of(names)[:1] != [self._generation.number]:
            raise self._fenced(self._newest_generation())
        self.check_own()
        # The oldest first: where one is left, so is its successor.
        for number in reversed(generations_of(names)[1:]):
            self._files.delete(f"{self.uri}/{generation_name(number)}")
        for name in names:
            if name.startswith(("_checkpoint-", "_generation-")):
                self._discard(f"{self.uri}/{name}")

    def _take_over(self) -> DriverEpoch:
        """Add a generation to the directory; each number is given once."""
        for _ in range(TRIES):
            names = self._files.list_names(self.uri)
            former = self._generation_in(names)
            if former is not None and self._driver.precedes(former.driver):
                raise self._fenced(former)
            number = 1 + max(generations_of(names), default=0)
            taken = DriverEpoch(number, self._driver, secrets.token_hex(16))
            uri = f"{self.uri}/{generation_name(taken.number)}"
            try:
                self._files.write_bytes(uri, taken.to_bytes())
            except (OutputExistsError, PathNotFoundError):
                # Another driver was faster, and may have deleted the file with its hidden name.
                continue
            return taken
        raise self._fenced(self._newest_generation())

    def _discard(self, unfinished: str) -> None:
        """Delete what a driver has not finished, so that it cannot give it a name meanwhile.

        A local directory is deleted file by file, but renamed in one step.
        """
        aside = f"{unfinished}.{secrets.token_hex(8)}.old"
        try:
            self._files.rename(unfinished, aside)
        except PathNotFoundError:
            return
        self._files.delete(aside)

    def new_rows(self) -> str:
        """Return a new folder for the rows of a run, which its checkpoints will name."""
        return f"{self.uri}/rows-{secrets.token_hex(16)}"

    def rows_of(self, manifest: CheckpointManifest) -> str | None:
        """Return the folder with the rows of a checkpoint's run; None if they were not stored."""
        return None if manifest.rows is None else f"{self.uri}/{manifest.rows}"

    def drop_rows(self, folder: str) -> None:
        """Delete the rows of a run that has ended, unless it has left a checkpoint."""
        name = folder.rpartition("/")[2]
        manifests = [self._manifest(number) for number in self._numbers()]
        if unused_rows([name], manifests):
            self._files.delete(f"{self.uri}/{name}")

    def next_number(self) -> int:
        """Return the number of the next checkpoint."""
        return self.newest_number() + 1

    def write(self, manifest: CheckpointManifest, contents: Mapping[str, Content]) -> None:
        """Write a checkpoint, and delete all older ones except the one before it."""
        self.check_own()
        try:
            self._publish(manifest, contents)
        except StorageError:
            # Whoever takes the directory over deletes what this driver has not finished.
            self.check_own()
            raise
        self._delete_old()

    def _publish(self, manifest: CheckpointManifest, contents: Mapping[str, Content]) -> None:
        temporary = f"{self.uri}/_{manifest.folder}.{secrets.token_hex(8)}.tmp"
        try:
            for name, content in contents.items():
                self._files.write_bytes(f"{temporary}/{name}", bytes(content))
            self._files.write_bytes(f"{temporary}/{MANIFEST}", manifest.to_bytes())
            self.check_own()
            self._files.rename(temporary, self._folder(manifest.number))
        except BaseException:
            self._files.delete(temporary)
            raise

    def _delete_old(self) -> None:
        # Listed before the check, so nothing that a later driver has written is among them.
        numbers, folders = self._numbers(), self._files.list_names(self.uri)
        self.check_own()
        for number in numbers[MAX_CHECKPOINTS:]:
            self._files.delete(self._folder(number))
        try:
            manifests = [self._manifest(number) for number in numbers[:MAX_CHECKPOINTS]]
        except IncompleteCheckpointError:
            # The rows of a torn checkpoint are unknown. It is deleted when it is older.
            return
        for name in unused_rows(folders, manifests):
            self._files.delete(f"{self.uri}/{name}")

    def _read(self, number: int) -> Checkpoint:
        manifest, contents = self._manifest(number), {}
        for piece in manifest.pieces:
            contents[piece.name] = self._read_piece(f"{self._folder(number)}/{piece.name}")
            piece.check(contents[piece.name])
        return Checkpoint(manifest, contents)

    def _manifest(self, number: int) -> CheckpointManifest:
        try:
            manifest = CheckpointManifest.from_bytes(
                self._files.read_bytes(f"{self._folder(number)}/{MANIFEST}")
            )
        except PathNotFoundError as error:
            raise IncompleteCheckpointError(f"It has no {MANIFEST}.") from error
        if manifest.number != number:
            raise IncompleteCheckpointError(f"Its manifest is that of {manifest.folder}.")
        return manifest

    def _read_piece(self, uri: str) -> bytes:
        """Read a file of a checkpoint; one that is missing or corrupt is torn."""
        try:
            return self._files.read_bytes(uri)
        except PathNotFoundError as error:
            raise IncompleteCheckpointError(f"{uri} is missing.") from error
        except StorageError as error:
            if any(sign in str(error) for sign in DAMAGED):
                raise IncompleteCheckpointError(str(error)) from error
            raise

    def _numbers(self) -> list[int]:
        if not self._files.exists(self.uri):
            return []
        return numbers_of(self._files.list_names(self.uri))

    def _folder(self, number: int) -> str:
        return f"{self.uri}/{folder_name(number)}"

    def _newest_generation(self) -> DriverEpoch | None:
        """Return the newest generation; None if there is none."""
        try:
            return self._generation_in(self._files.list_names(self.uri))
        except PathNotFoundError:
            return None

    def _generation_in(self, names: Sequence[str]) -> DriverEpoch | None:
        """Return the newest generation of these names; None if it is not readable any more."""
        numbers = generations_of(names)
        if not numbers:
            return None
        try:
            content = self._files.read_bytes(f"{self.uri}/{generation_name(numbers[0])}")
        except PathNotFoundError:
            return None
        return DriverEpoch.from_bytes(content)

    def check_own(self) -> None:
        """Refuse to go on if another driver has taken the directory over.

        Its number is the next one. It is deleted after this driver's own one, and is looked up
        before it, so one of the two questions shows it.
        """
        own = self._generation
        if own is None or self._files.exists(f"{self.uri}/{generation_name(own.number + 1)}"):
            raise self._fenced(self._newest_generation())
        if self._generation_in([generation_name(own.number)]) != own:
            raise self._fenced(self._newest_generation())

    def _fenced(self, epoch: DriverEpoch | None) -> FencedError:
        other = (
            "Another driver"
            if epoch is None
            else (f"Another driver (attempt {epoch.driver.attempt} of {epoch.driver.application})")
        )
        return FencedError(
            f"{other} writes checkpoints to {self.uri} by now, so this driver (attempt "
            f"{self._driver.attempt} of {self._driver.application}) is replaced, and its run ends. "
            "Each run needs a checkpoint_dir of its own."
        )
