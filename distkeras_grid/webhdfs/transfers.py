"""A transfer in either direction: plan it, copy each file, verify it, give it its name.

Both directions are one code path between two `Files`. A file is written under a hidden name,
compared by the checksum that HDFS keeps, and renamed.
"""

from __future__ import annotations

import posixpath
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from distkeras_grid.errors import OutputExistsError, PathNotFoundError, StorageError
from distkeras_grid.webhdfs.checksums import ChecksumLayout, FileChecksum, FileDigest
from distkeras_grid.webhdfs.files import Files, digest_of
from distkeras_grid.webhdfs.hidden_names import hidden_name, leftovers
from distkeras_grid.webhdfs.transfer_plan import (
    ExistingEntry,
    TransferItem,
    check,
    missing_directories,
)
from distkeras_grid.webhdfs.transfer_status import Meter

THREADS = 4


@dataclass(frozen=True, slots=True)
class TransferEndpoints:
    """The two ends of a transfer, for one thread."""

    source: Files
    target: Files


@dataclass(frozen=True, slots=True)
class CopyResult:
    """The bytes and checksum of a copied file."""

    size: int  # Bytes
    checksum: FileChecksum  # Computed from them
    is_proven: bool  # Whether the source keeps the same checksum


def find_existing(target: Files, items: Sequence[TransferItem]) -> dict[str, ExistingEntry]:
    """Return what exists in the directories of the targets, by path."""
    return target.find_existing(
        {item.target if item.is_directory else posixpath.dirname(item.target) for item in items}
    )


def prepare(
    target: Files, items: Sequence[TransferItem], present: Mapping[str, ExistingEntry]
) -> list[TransferItem]:
    """Make the directories, and delete what interrupted runs have left.

    A run that lives and writes the same file starts that one again.
    """
    check(items, present)
    files = [item for item in items if not item.is_directory]
    for path in leftovers((item.target for item in files), present):
        target.delete(path)
    for path in missing_directories(items, present):
        target.make_directory(path)
    return files


class Transfer:
    """Transfers one file after the other, in many threads."""

    def __init__(
        self, present: Mapping[str, ExistingEntry], *, overwrite: bool, stopped: threading.Event
    ) -> None:
        self._present = present
        self._overwrite = overwrite
        self._stopped = stopped
        self._run = uuid.uuid4().hex[:8]
        # How this HDFS computes checksums; a better guess once it has told one.
        self._layout = ChecksumLayout()

    def run(self, sides: TransferEndpoints, item: TransferItem, meter: Meter) -> bool:
        """Transfer a file; return False if it is there already.

        `sides`: used by this thread only.
        `meter`: counts the bytes.
        """
        there = self._present.get(item.target)
        if there is not None:
            if there.size == item.size and self._is_same(sides, item, there, meter):
                return False
            meter.reset()
            if not self._overwrite:
                raise OutputExistsError(
                    f"{item.target} exists {sides.target.where} and differs from {item.source}. "
                    "Replace it with --overwrite, or overwrite=True."
                )
        hidden = hidden_name(item.target, self._run)
        try:
            copied = self._copy(sides, item, hidden, meter)
            self._verify(sides, item, hidden, copied)
            self._publish(sides, item, hidden, copied)
        except BaseException as error:
            _discard(sides.target, hidden, error)
            raise
        return True

    def _is_same(
        self, sides: TransferEndpoints, item: TransferItem, there: ExistingEntry, meter: Meter
    ) -> bool:
        """Compare the content of both ends."""
        source, target = sides.source, sides.target
        counted = self._through(meter)
        if stored := _checksum_of(source, item.source, item.opaque):
            return stored.digest == digest_of(target, item.target, stored.layout, counted)
        stored = _checksum_of(target, item.target, there.opaque)
        layout = stored.layout if stored else self._layout
        digest = digest_of(source, item.source, layout, counted)
        if stored is None:
            return digest == digest_of(target, item.target, layout, self._through(None))
        return digest == stored.digest

    def _copy(
        self, sides: TransferEndpoints, item: TransferItem, hidden: str, meter: Meter
    ) -> CopyResult:
        source, target = sides.source, sides.target
        stored = _checksum_of(source, item.source, item.opaque)
        layout = stored.layout if stored else self._layout

        def attempt() -> CopyResult:
            meter.reset()
            digest = FileDigest(layout)
            counted = self._through(meter)
            with source.pieces(item.source) as pieces:
                target.write(hidden, _digested(counted(pieces), digest), item.target)
            copied = FileChecksum(layout, digest.digest())
            if stored is not None and stored != copied:
                raise StorageError(_differs(item, sides))
            return CopyResult(digest.size, copied, is_proven=stored is not None)

        # One of the two tries again, that on HDFS.
        return source.again(
            "read", item.source, lambda: target.again("write", item.target, attempt)
        )

    def _verify(
        self, sides: TransferEndpoints, item: TransferItem, path: str, copied: CopyResult
    ) -> None:
        """Compare what is at a path of the target with what was read."""
        there = sides.target.present(path)
        size = there.size if there else 0
        if there is None or not size == copied.size == item.size:
            raise StorageError(
                f"{item.source} changed while it was read: {item.size:,} bytes were found, "
                f"{copied.size:,} read and {size:,} have arrived. If nobody writes to it, try "
                "again."
            )
        if not copied.is_proven and not self._holds(sides, item, path, there, copied):
            raise StorageError(_differs(item, sides))

    def _holds(
        self,
        sides: TransferEndpoints,
        item: TransferItem,
        path: str,
        there: ExistingEntry,
        copied: CopyResult,
    ) -> bool:
        """Tell whether a file at the target has the bytes that were read."""
        ours = copied.checksum
        stored = _checksum_of(sides.target, path, there.opaque)
        if stored is None:
            return ours.digest == digest_of(sides.target, path, ours.layout, self._through(None))
        if stored.layout.fits(ours.layout, copied.size):
            return stored.digest == ours.digest
        blocks = stored.layout.block_bytes or self._layout.block_bytes
        self._layout = replace(stored.layout, block_bytes=blocks)
        return stored.digest == digest_of(
            sides.source, item.source, stored.layout, self._through(None)
        )

    def _publish(
        self, sides: TransferEndpoints, item: TransferItem, hidden: str, copied: CopyResult
    ) -> None:
        """Give a file its name.

        A rename whose answer is lost is asked for again, and refused then: the hidden file is
        gone, the target is there. So what is at the target counts.
        """
        try:
            sides.target.rename(hidden, item.target, overwrite=self._overwrite)
        except (PathNotFoundError, OutputExistsError) as error:
            if self._is_published(sides, item, copied):
                sides.target.delete(hidden)
            elif isinstance(error, OutputExistsError):
                raise
            else:
                raise PathNotFoundError(
                    f"{item.target} was not written {sides.target.where}: its temporary file "
                    f"{hidden} is gone. Another run may write the same file: try again when it "
                    "has ended."
                ) from error

    def _is_published(
        self, sides: TransferEndpoints, item: TransferItem, copied: CopyResult
    ) -> bool:
        """Tell whether the target has the bytes that were read under its own name."""
        there = sides.target.present(item.target)
        if there is None or there.is_directory or there.size != copied.size:
            return False
        return self._holds(sides, item, item.target, there, copied)

    def _through(self, meter: Meter | None) -> Callable[[Iterator[bytes]], Iterator[bytes]]:
        """Yield pieces and count them; raise when the transfer is stopped."""

        def counted(pieces: Iterable[bytes]) -> Iterator[bytes]:
            for piece in pieces:
                if self._stopped.is_set():
                    raise StorageError("The transfer was stopped. Start it again to go on.")
                if meter is not None:
                    meter.add(len(piece))
                yield piece

        return counted


def _checksum_of(files: Files, path: str, opaque: bool) -> FileChecksum | None:
    """Return the checksum that a file system keeps of a file's bytes, None where it does not."""
    return None if opaque else files.checksum(path)


def _digested(pieces: Iterable[bytes], digest: FileDigest) -> Iterator[bytes]:
    for piece in pieces:
        digest.update(piece)
        yield piece


def _discard(target: Files, hidden: str, error: BaseException) -> None:
    """Delete the partial file that `error` left; if that fails, add a note to `error`."""
    try:
        target.delete(hidden)
    except StorageError as second:
        error.add_note(f"{hidden} may stay behind until the same is sent again ({second}).")


def _differs(item: TransferItem, sides: TransferEndpoints) -> str:
    return (
        f"{item.source} has another checksum {sides.target.where} than {sides.source.where}. If "
        "nobody writes to it, try again."
    )
