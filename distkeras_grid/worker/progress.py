"""What a worker does, how far it has come, and the thread that reports it to the server."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from distkeras_grid.errors import GridError, ServerUnreachableError
from distkeras_grid.parameter_server.timeouts import BEAT_SECONDS, Activity

if TYPE_CHECKING:
    from distkeras_grid.parameter_server.client import WorkerClient
    from distkeras_grid.rows import RowBlock


class Progress:
    """What a worker does now, and how far it has come with that."""

    def __init__(self) -> None:
        self.activity: Activity = "reading"
        self.done = 0

    def begin(self, activity: Activity) -> None:
        """Set what the worker does from now on."""
        self.activity, self.done = activity, 0

    def advance(self, count: int) -> None:
        """Add a number of rows that are read, or of batches that are begun."""
        self.done += count

    def through(self, blocks: Iterator[RowBlock]) -> Iterator[RowBlock]:
        """Pass the blocks of a window on; until the first one arrives, the worker is reading."""
        self.activity = "reading"
        for block in blocks:
            self.activity = "training"
            self.done += block.steps
            yield block
        self.activity = "training"


class HeartbeatThread:
    """Sends signs of life every few seconds from a thread; a context manager.

    `seconds`: pause between two signs [s].
    """

    def __init__(
        self, client: WorkerClient, progress: Progress, seconds: float = BEAT_SECONDS
    ) -> None:
        self._client, self._progress, self._seconds = client, progress, seconds
        self._host, self._log = platform.node(), log_of(os.environ, Path.cwd())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._ended.is_set():
            activity = self._progress.activity, self._progress.done
            try:
                self._client.beat(*activity, self._host, self._log)
            except ServerUnreachableError:
                # The worker's next request meets it, too; the server may be there again by then.
                pass
            except GridError:
                # Nor is there a seat for that request.
                return
            self._ended.wait(self._seconds)


def log_of(environment: Mapping[str, str], folder: Path) -> str:
    """Return the path of the log of a Spark executor's Python processes, "" if unknown.

    Examples
    --------
    >>> log_of({"LOG_DIRS": "/logs/container_7,/more/container_7"}, Path("/nowhere"))
    '/logs/container_7/stderr'
    >>> log_of({}, Path("/nowhere"))
    ''
    """
    if folders := environment.get("LOG_DIRS"):
        return f"{folders.split(',')[0]}/stderr"
    log = folder / "stderr"
    return str(log) if log.is_file() else ""
