"""What a checkpoint consists of, and whether one is whole.

A checkpoint is a folder. Its manifest, which is written last, names every piece of it with its
length and its SHA-256. A checkpoint of which anything is missing, longer, shorter or different is
torn, and is never used.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec

from distkeras_grid.errors import UNREADABLE, ConfigurationError, DataError
from distkeras_grid.field_types import Count

FORMAT = 4
MANIFEST = "manifest.json"
_FOLDER = re.compile(r"checkpoint-(\d{8})")
_ROWS = re.compile("rows-[0-9a-f]{32}")
_GENERATION = re.compile(r"generation-(\d{8})\.json")

Content: TypeAlias = bytes | memoryview
Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9-]{0,80}\.[a-z]{1,8}$")]
RowsName: TypeAlias = Annotated[str, msgspec.Meta(pattern=f"^{_ROWS.pattern}$")]
Digest: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class IncompleteCheckpointError(DataError):
    """A checkpoint is not whole; an earlier one may be."""


class CheckpointFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a checkpoint."""

    name: Name  # Its name, without folder
    bytes: Count  # Its length
    sha256: Digest  # Its SHA-256 in hexadecimal

    def check(self, content: Content) -> None:
        """Refuse another content."""
        length = len(content)
        if length != self.bytes or hashlib.sha256(content).hexdigest() != self.sha256:
            raise IncompleteCheckpointError(
                f"{self.name} is not as it was written: {self.bytes} bytes of another content are "
                f"due. Received: {length} bytes."
            )


class CheckpointManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a checkpoint consists of."""

    format: int
    number: Count  # Counts the checkpoints of a directory
    run: Annotated[str, msgspec.Meta(max_length=200)]  # Name of the run that wrote it
    saved_at: float  # When [s since 1970]
    version: Count  # version and samples and epochs: Folds, rows and whole epochs behind the center
    samples: Count
    epochs: Count
    spec: dict[str, Any]  # The run, as `RunSpec.to_json` describes it
    xla: bool  # Whether XLA compiles the workers' windows
    pieces: tuple[CheckpointFile, ...]  # All its files but this one
    # Name of the folder beside it with the rows of the run, where these were stored
    rows: RowsName | None = None

    @property
    def folder(self) -> str:
        """Name of the checkpoint's folder."""
        return folder_name(self.number)

    def piece(self, name: str) -> CheckpointFile:
        """Return the piece of this name."""
        match = next((piece for piece in self.pieces if piece.name == name), None)
        if match is None:
            raise IncompleteCheckpointError(f"The checkpoint {self.folder} has no {name}.")
        return match

    def starting_with(self, prefix: str) -> list[CheckpointFile]:
        """Return the pieces whose names start with a prefix, in their order."""
        return [piece for piece in self.pieces if piece.name.startswith(prefix)]

    def to_bytes(self) -> bytes:
        """Return the manifest as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @classmethod
    def from_bytes(cls, content: bytes) -> CheckpointManifest:
        """Read what `to_bytes` returned."""
        try:
            head = msgspec.json.decode(content, type=_Head)
            manifest = msgspec.json.decode(content, type=cls) if head.format == FORMAT else None
        except UNREADABLE as error:
            raise IncompleteCheckpointError(
                f"The manifest of a checkpoint cannot be read: {error}."
            ) from error
        if manifest is None:
            raise ConfigurationError(
                f"This release reads checkpoints of format {FORMAT}. Received: format "
                f"{head.format}. Go on with the release that wrote it, or train anew in another "
                "checkpoint_dir."
            )
        if len({piece.name for piece in manifest.pieces}) != len(manifest.pieces):
            raise IncompleteCheckpointError("The manifest of a checkpoint names a piece twice.")
        return manifest


class _Head(msgspec.Struct):
    format: int


class Driver(msgspec.Struct, frozen=True):
    """A driver, as Spark names it."""

    application: str  # Id of its application
    # Which attempt of the application it is. In cluster mode, YARN starts another one after a
    # driver that died.
    attempt: Annotated[int, msgspec.Meta(ge=1)] = 1

    def precedes(self, other: Driver) -> bool:
        """Whether `other` is a later attempt of this one's application."""
        return self.application == other.application and self.attempt < other.attempt


class DriverEpoch(msgspec.Struct, frozen=True):
    """Which driver writes the checkpoints of a directory."""

    number: Count  # Counts the drivers that have taken the directory over
    driver: Driver  # The last one of them
    token: str  # Random text, so that no two drivers have the same generation

    def to_bytes(self) -> bytes:
        """Return the generation as JSON."""
        return msgspec.json.encode(self) + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> DriverEpoch | None:
        """Read what `to_bytes` returned; None if it is something else."""
        try:
            return msgspec.json.decode(content, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


def piece_of(name: str, content: Content) -> CheckpointFile:
    """Return the description of a piece."""
    return CheckpointFile(name, len(content), hashlib.sha256(content).hexdigest())


def folder_name(number: int) -> str:
    """Return the name of a checkpoint's folder."""
    return f"checkpoint-{number:08}"


def numbers_of(names: Iterable[str]) -> list[int]:
    """Return the numbers of the checkpoints among these names, the newest first."""
    return _numbers(_FOLDER, names)


def generation_name(number: int) -> str:
    """Return the name of the file that names a directory's driver."""
    return f"generation-{number:08}.json"


def generations_of(names: Iterable[str]) -> list[int]:
    """Return the numbers of the generations among these names, the newest first."""
    return _numbers(_GENERATION, names)


def _numbers(pattern: re.Pattern[str], names: Iterable[str]) -> list[int]:
    matches = [match for match in map(pattern.fullmatch, names) if match]
    return sorted((int(match[1]) for match in matches), reverse=True)


def unused_rows(names: Iterable[str], manifests: Sequence[CheckpointManifest]) -> list[str]:
    """Return the names of folders with rows that belong to no checkpoint."""
    used = {manifest.rows for manifest in manifests}
    return sorted(name for name in names if _ROWS.fullmatch(name) and name not in used)
