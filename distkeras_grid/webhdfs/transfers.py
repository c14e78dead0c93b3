"""A transfer in either direction: copy each file, verify it, give it its name, in many threads.

A file is written under a hidden name, compared by the checksum that HDFS keeps, and renamed.
"""

from __future__ import annotations

import posixpath
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from distkeras_grid import fsync
from distkeras_grid.errors import OutputExistsError, PathNotFoundError, StorageError
from distkeras_grid.progress import Bytes, Reporter
from distkeras_grid.webhdfs import local_files
from distkeras_grid.webhdfs.addresses import Address
from distkeras_grid.webhdfs.checksums import ChecksumLayout, FileDigest
from distkeras_grid.webhdfs.connection import FileStatus, WebHdfsConnection
from distkeras_grid.webhdfs.transfer_plan import SHOWN, TransferItem, hidden_name, is_hidden

# Failures with no success between them, after which the rest is not tried.
GIVE_UP = 20


@dataclass(frozen=True, slots=True)
class TransferResult:
    """The result of a transfer."""

    files: int  # files and size: Transferred, and their bytes
    size: int
    # same_files and same_size: There already with the same content, and their bytes
    same_files: int
    same_size: int
    seconds: float  # [s]


@dataclass(frozen=True)
class TransferStatus(Bytes):
    """The state of a transfer as its line shows it; those that were there already are done, too.

    Examples
    --------
    >>> from distkeras_grid.progress import one_line
    >>> one_line(TransferStatus("looking at what is there").parts(rate=0.0, seconds=7.2))
    'looking at what is there  7 s'
    >>> sending = TransferStatus("sending", 45_000_000_000, 1_200_000_000, 12, 3000)
    >>> one_line(sending.parts(rate=110e6, seconds=11))
    'sending  12 of 3,000 files  1.2 GB of 45 GB  110 MB/s  6:38 left'
    """

    files: int = 0
    total_files: int = 0  # 0: not known yet
    failed: int = 0

    def parts(self, rate: float, seconds: float) -> Sequence[str]:
        """Return what is known, at a recent speed [bytes/s], so far into this phase [s]."""
        if not self.total_files:
            files = [f"{self.files:,} files"] if self.files else []
            return [self.phase, *files, f"{seconds:.0f} s"]
        phase, *of_bytes = super().parts(rate, seconds)
        failed = [f"{self.failed:,} failed"] if self.failed else []
        return [phase, *failed, f"{self.files:,} of {self.total_files:,} files", *of_bytes]


TransferProgress = Reporter[TransferStatus]


class Meter:
    """Counts the bytes of one file, so that they can be taken back."""

    def __init__(self, progress: TransferProgress) -> None:
        self._progress = progress
        self._size = 0

    def add(self, size: int) -> None:
        """Count bytes."""
        self._size += size
        self._progress.add(done=size)

    def reset(self) -> None:
        """Take back all counted bytes."""
        self.add(-self._size)


@dataclass
class Transfer:
    """Copies files, one after the other in each of many threads.

    `present`: what exists in the directories of the targets, by path.
    """

    present: Mapping[str, FileStatus]
    overwrite: bool
    stopped: threading.Event
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    # How this HDFS computes checksums; a better guess once it has told one.
    layout: ChecksumLayout = field(default_factory=ChecksumLayout)

    def upload(self, connection: WebHdfsConnection, item: TransferItem, meter: Meter) -> bool:
        """Copy a file to HDFS; return False if it is there already."""

        def attempt() -> FileDigest:
            meter.reset()
            digest = FileDigest(self.layout)
            with local_files.pieces(item.source) as pieces:
                connection.write(hidden, self._counted(pieces, digest, meter))
            return digest

        def has_arrived(path: str) -> bool:
            there = connection.status(path)
            if there is None or there.is_directory or there.size != sent.size:
                return False
            return self._is_same(connection, item.source, there, sent)

        def is_same(there: FileStatus) -> bool:
            return self._is_same(connection, item.source, there, meter=meter)

        if self._is_there(item, is_same, meter):
            return False
        with self._hidden(item, connection.delete) as hidden:
            sent = connection.again("write", item.target, attempt)
            _check_size(item, sent.size)
            if not has_arrived(hidden):
                raise _differs(item)
            try:
                connection.rename(hidden, item.target, overwrite=self.overwrite)
            except (PathNotFoundError, OutputExistsError) as error:
                # A rename whose answer is lost is asked for again, and refused then: the hidden
                # file is gone, the target is there. So what is at the target counts.
                if has_arrived(item.target):
                    connection.delete(hidden)
                elif isinstance(error, OutputExistsError):
                    raise
                else:
                    raise PathNotFoundError(
                        f"{item.target} was not written on HDFS: its temporary file {hidden} is "
                        "gone. Another run may write the same file: try again when it has ended."
                    ) from error
        return True

    def download(self, connection: WebHdfsConnection, item: TransferItem, meter: Meter) -> bool:
        """Copy a file from HDFS; return False if it is here already."""
        remote = FileStatus(item.source, size=item.size, opaque=item.opaque)

        def is_same(_: FileStatus) -> bool:
            return self._is_same(connection, item.target, remote, meter=meter)

        def attempt() -> FileDigest:
            meter.reset()
            digest = FileDigest(stored.layout if stored else self.layout)
            with (
                connection.pieces(item.source) as pieces,
                local_files.translated("write", item.target),
                open(hidden, "wb") as file,
            ):
                for piece in self._counted(pieces, digest, meter):
                    file.write(piece)
            return digest

        if self._is_there(item, is_same, meter):
            return False
        stored = None if item.opaque else connection.checksum(item.source)
        with self._hidden(item, local_files.delete) as hidden:
            arrived = connection.again("read", item.source, attempt)
            _check_size(item, arrived.size)
            if stored and stored.digest != arrived.digest():
                raise _differs(item)
            with local_files.translated("rename to", item.target):
                fsync.replace(hidden, item.target)
        return True

    def _is_there(
        self, item: TransferItem, is_same: Callable[[FileStatus], bool], meter: Meter
    ) -> bool:
        """Tell whether the target has the same content; refuse to replace another one unasked."""
        there = self.present.get(item.target)
        if there is not None and there.size == item.size and is_same(there):
            return True
        meter.reset()
        if there is not None and not self.overwrite:
            raise OutputExistsError(
                f"{item.target} exists and differs from {item.source}. Replace it with "
                "--overwrite, or overwrite=True."
            )
        return False

    @contextmanager
    def _hidden(self, item: TransferItem, delete: Callable[[str], None]) -> Iterator[str]:
        """Name the file that is written; after an error nothing of it is left."""
        hidden = hidden_name(item.target, self.run)
        try:
            yield hidden
        except BaseException as error:
            try:
                delete(hidden)
            except StorageError as second:
                error.add_note(f"{hidden} may stay behind until the same is sent again ({second}).")
            raise

    def _is_same(
        self,
        connection: WebHdfsConnection,
        local: str,
        remote: FileStatus,
        sent: FileDigest | None = None,
        meter: Meter | None = None,
    ) -> bool:
        """Tell whether a file here and one on HDFS have the same bytes.

        `sent`: what has just been read of the file here, which need not be read again.
        """
        stored = None if remote.opaque else connection.checksum(remote.path)
        if sent and stored:
            if stored.layout == sent.layout.of(sent.size):
                return stored.digest == sent.digest()
            if stored.layout.bytes_per_crc:
                blocks = stored.layout.block_bytes or self.layout.block_bytes
                self.layout = replace(stored.layout, block_bytes=blocks)

        def digest(file: AbstractContextManager[Iterator[bytes]], meter: Meter | None) -> bytes:
            digest = FileDigest(stored.layout if stored else self.layout)
            with file as pieces:
                for _ in self._counted(pieces, digest, meter):
                    pass
            return digest.digest()

        here = digest(local_files.pieces(local), meter)
        if stored:
            return here == stored.digest
        return here == connection.again(
            "read", remote.path, lambda: digest(connection.pieces(remote.path), None)
        )

    def _counted(
        self, pieces: Iterable[bytes], digest: FileDigest, meter: Meter | None
    ) -> Iterator[bytes]:
        """Yield pieces, count and digest them; raise when the transfer is stopped."""
        for piece in pieces:
            if self.stopped.is_set():
                raise StorageError("The transfer was stopped. Start it again to go on.")
            digest.update(piece)
            if meter is not None:
                meter.add(len(piece))
            yield piece


def _check_size(item: TransferItem, read: int) -> None:
    if item.size != read:
        raise StorageError(
            f"{item.source} changed while it was read: {item.size:,} bytes were found and {read:,} "
            "read. If nobody writes to it, try again."
        )


def _differs(item: TransferItem) -> StorageError:
    return StorageError(
        f"{item.source} has another checksum on HDFS than here. If nobody writes to it, try again."
    )


def walk(connection: WebHdfsConnection, source: str, target: str) -> Iterator[TransferItem]:
    """Yield a file on HDFS, or all that lies below a directory, each with its place."""
    for each in connection.list_directory(source):
        below = target if each.path == source else posixpath.join(target, each.name)
        if not is_hidden(each.name):
            yield TransferItem(each.path, below, each.size, each.is_directory, each.opaque)
            if each.is_directory:
                yield from walk(connection, each.path, below)


def find_existing(
    connection: WebHdfsConnection, directories: Iterable[str]
) -> dict[str, FileStatus]:
    """Return the directories on HDFS that exist and their entries, by path."""
    present = {}
    for directory in sorted(directories):
        try:
            entries = connection.list_directory(directory)
        except PathNotFoundError:
            continue
        # The listing of a file is the file itself.
        present[directory] = FileStatus(directory, is_directory=True)
        present |= {each.path: each for each in entries}
    return present


def transfer_all(
    address: Address,
    threads: int,
    files: Sequence[TransferItem],
    transfer: Callable[[WebHdfsConnection, TransferItem, Meter], bool],
    progress: TransferProgress,
    stopped: threading.Event,
) -> TransferResult:
    """Transfer files in threads, each with a connection of its own.

    Failures are collected: the other files go on. An interrupt or a defect ends all.
    """
    began = time.monotonic()
    failed: list[StorageError] = []
    same: list[int] = []
    sent: list[int] = []
    in_a_row = 0
    lock, local = threading.Lock(), threading.local()

    def one(item: TransferItem) -> None:
        nonlocal in_a_row
        if stopped.is_set() or in_a_row >= GIVE_UP:
            return
        meter = Meter(progress)
        try:
            if not hasattr(local, "connection"):
                connection = WebHdfsConnection(address, stopped=stopped, patient=True)
                with lock:
                    local.connection = opened.enter_context(connection)
            done = sent if transfer(local.connection, item, meter) else same
        except StorageError as error:
            meter.reset()
            with lock:
                failed.append(error)
                in_a_row += 1
            progress.add(failed=1)
            # The end says the same of a single file, and of a transfer that was interrupted.
            if len(files) > 1 and not stopped.is_set():
                progress.note(describe(error))
        else:
            with lock:
                done.append(item.size)
                in_a_row = 0
            progress.add(files=1)

    with ExitStack() as opened:
        pool = ThreadPoolExecutor(threads, thread_name_prefix="webhdfs")
        try:
            for future in as_completed([pool.submit(one, item) for item in files]):
                future.result()
        finally:
            # After an interrupt or a defect: no further file, and no further piece of any.
            stopped.set()
            pool.shutdown(cancel_futures=True)
    if failed:
        not_tried = len(files) - len(failed) - len(same) - len(sent)
        raise failure(failed, files=len(files), not_tried=not_tried)
    return TransferResult(len(sent), sum(sent), len(same), sum(same), time.monotonic() - began)


def failure(failed: Sequence[StorageError], *, files: int, not_tried: int) -> StorageError:
    """Return one error for all files that failed; of their own class where all are of one."""
    kinds = {type(error) for error in failed}
    kind = kinds.pop() if len(kinds) == 1 else StorageError
    lines = [describe(error) for error in failed[:SHOWN]]
    if files == 1:
        return kind(lines[0])
    rest = f", {not_tried:,} were not tried any more" if not_tried else ""
    more = [f"and {len(failed) - SHOWN:,} more"] if len(failed) > SHOWN else []
    return kind(
        f"{len(failed):,} of {files:,} files failed{rest}. The same command again leaves out what "
        f"is complete. {' | '.join([*lines, *more])}"
    )


def describe(error: StorageError) -> str:
    """Return message and notes in one line."""
    notes: list[str] = getattr(error, "__notes__", [])
    return " ".join([str(error), *notes])
