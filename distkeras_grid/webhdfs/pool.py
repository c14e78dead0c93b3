"""Transfer many files in a few threads; failures are collected, an interrupt ends all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from distkeras_grid.errors import ConfigurationError, StorageError
from distkeras_grid.webhdfs.addresses import Address
from distkeras_grid.webhdfs.connection import WebHdfsConnection
from distkeras_grid.webhdfs.transfer_plan import SHOWN, TransferItem
from distkeras_grid.webhdfs.transfer_status import Meter, TransferProgress

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
    seconds: float  # All in all [s]


def check_threads(threads: int) -> None:
    """Raise `ConfigurationError` for a number of threads that makes no sense."""
    if not 1 <= threads <= 64:
        raise ConfigurationError(f"threads must be from 1 to 64. Received: {threads}.")


class ConnectionPool:
    """Threads, each with a connection of its own, that transfer files."""

    def __init__(
        self, address: Address, threads: int, progress: TransferProgress, stopped: threading.Event
    ) -> None:
        self._address = address
        self._threads = threads
        self._progress = progress
        self._stopped = stopped
        self._local = threading.local()
        self._connections: list[WebHdfsConnection] = []
        self._lock = threading.Lock()
        self._failed: list[tuple[TransferItem, StorageError]] = []
        self._failed_in_a_row = 0
        self._files = 0
        self._same: list[int] = []
        self._sent: list[int] = []

    def run(
        self,
        items: Sequence[TransferItem],
        transfer: Callable[[WebHdfsConnection, TransferItem, Meter], bool],
    ) -> TransferResult:
        """Transfer files."""
        self._files = len(items)
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="webhdfs")
        try:
            futures = [pool.submit(self._one, item, transfer) for item in items]
            for future in as_completed(futures):
                future.result()
        finally:
            # After an interrupt or a defect: no further file, and no further piece of any.
            self._stopped.set()
            pool.shutdown(cancel_futures=True)
            for connection in self._connections:
                connection.close()
        if self._failed:
            done = len(self._failed) + len(self._same) + len(self._sent)
            raise failure(self._failed, files=len(items), not_tried=len(items) - done)
        return TransferResult(
            len(self._sent),
            sum(self._sent),
            len(self._same),
            sum(self._same),
            self._progress.seconds,
        )

    def _one(
        self, item: TransferItem, transfer: Callable[[WebHdfsConnection, TransferItem, Meter], bool]
    ) -> None:
        if self._stopped.is_set() or self._failed_in_a_row >= GIVE_UP:
            return
        meter = Meter(self._progress)
        try:
            sent = transfer(self._connection(), item, meter)
        except StorageError as error:
            meter.reset()
            with self._lock:
                self._failed.append((item, error))
                self._failed_in_a_row += 1
            self._progress.add(failed=1)
            # The end says the same of a single file, and of a transfer that was interrupted.
            if self._files > 1 and not self._stopped.is_set():
                self._progress.note(describe(error))
        else:
            with self._lock:
                (self._sent if sent else self._same).append(item.size)
                self._failed_in_a_row = 0
            self._progress.add(files=1)

    def _connection(self) -> WebHdfsConnection:
        if not hasattr(self._local, "connection"):
            self._local.connection = WebHdfsConnection(
                self._address, stopped=self._stopped, patient=True
            )
            with self._lock:
                self._connections.append(self._local.connection)
        connection: WebHdfsConnection = self._local.connection
        return connection


def failure(
    failed: Sequence[tuple[TransferItem, StorageError]], *, files: int, not_tried: int
) -> StorageError:
    """Return one error for all files that failed.

    It is of their own class where all are of one, and tells each reason once.

    `failed`: each file and its error, at least one.
    """
    kinds = {type(error) for _, error in failed}
    kind = kinds.pop() if len(kinds) == 1 else StorageError
    reasons: dict[str, list[str]] = {}
    for item, error in failed:
        reason = str(error).replace(item.source, "").replace(item.target, "")
        reasons.setdefault(reason, []).append(describe(error))
    lines = [
        first + (f" (so did {len(others)} more)" if others else "")
        for first, *others in reasons.values()
    ]
    if files == 1:
        return kind(lines[0])
    rest = f", {not_tried:,} were not tried any more" if not_tried else ""
    more = [f"and {len(lines) - SHOWN} other reasons"] if len(lines) > SHOWN else []
    return kind(
        f"{len(failed):,} of {files:,} files failed{rest}. The same command again leaves out what "
        f"is complete. {' | '.join([*lines[:SHOWN], *more])}"
    )


def describe(error: StorageError) -> str:
    """Return message and notes in one line."""
    notes: list[str] = getattr(error, "__notes__", [])
    return " ".join([str(error), *notes])
