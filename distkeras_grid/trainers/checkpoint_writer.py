"""Decides when a run's checkpoints are written, writes them, and defines the driver's part.

The driver asks the server for a checkpoint. When the server reports that it has taken its state,
the driver keeps its own. A thread then fetches the server's parts and writes the files. Training
goes on meanwhile. If a checkpoint cannot be written, the run goes on with the former ones; if
another driver writes them by now, it ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np

from distkeras_grid.array_tree import Packed, pack, unpack
from distkeras_grid.checkpoints import (
    FORMAT,
    CheckpointManifest,
    Content,
    piece_of,
)
from distkeras_grid.errors import (
    DataError,
    FencedError,
    RefusedError,
    StorageError,
)
from distkeras_grid.parameter_server.checkpoint_state import SavedServer, repartition
from distkeras_grid.parameter_server.timeouts import WRITE_SECONDS
from distkeras_grid.spec import RunSpec

if TYPE_CHECKING:
    from distkeras_grid.history import History
    from distkeras_grid.parameter_server.messages import CenterUpdate
    from distkeras_grid.parameter_server.sharded_process import AnyServer
    from distkeras_grid.spark.checkpoints import Checkpoint, CheckpointStore

SERVER, DRIVER, SEAT, SHARD = "server.tree", "driver.tree", "seat-", "shard-"
MODEL, HISTORY = "model.keras", "history.jsonl"
#: Seconds between two checkpoints, unless the user sets `checkpoint_every`.
CHECKPOINT_SECONDS = 600.0
#: What the user is told.
NOT_WRITTEN = "A checkpoint could not be written; the former ones stay: {}"


class SavedCallback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a callback remembers."""

    kind: str
    attributes: dict[str, Any]


class SavedObserver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the driver's observer of epochs remembers."""

    rate: float | None
    callbacks: list[SavedCallback]


class SavedDriver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the driver remembers."""

    observer: SavedObserver  # Validation and callbacks
    # The points from which the run has gone on before, as in ``history.params["resumed"]``
    resumed: list[dict[str, float | str]]
    # Where the model is cut into stages, as in ``history.params["cuts"]``
    cuts: list[str] | None = None
    # For how many tasks Spark cut the files, as in ``history.params["read_parallelism"]``
    read_parallelism: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] | None = None

    @classmethod
    def from_bytes(cls, content: bytes) -> SavedDriver:
        """Read the packed tree of a driver's state."""
        try:
            return msgspec.convert(unpack(np.frombuffer(content, np.uint8)), cls)
        except msgspec.ValidationError as error:
            raise DataError(f"This is not the state of a driver: {error}.") from error


@dataclass(frozen=True)
class ResumedRun:
    """A checkpoint from which a run goes on."""

    manifest: CheckpointManifest  # What the checkpoint consists of
    # The server's state, the states of workers, and those of further servers, as `ServerProcess`
    # and `ShardedProcess` take them
    parts: list[Packed] = field(repr=False)
    driver: SavedDriver = field(repr=False)  # What the driver remembered
    model: bytes = field(repr=False)  # The compiled model, as the workers load it
    _history: bytes = field(repr=False)

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> ResumedRun:
        """Read a complete checkpoint."""
        manifest, contents = checkpoint.manifest, checkpoint.contents
        seats, shards = (
            sorted(piece.name for piece in manifest.starting_with(stem)) for stem in (SEAT, SHARD)
        )
        return cls(
            manifest,
            [
                np.frombuffer(contents[manifest.piece(name).name], np.uint8)
                for name in (SERVER, *seats, *shards)
            ],
            SavedDriver.from_bytes(contents[manifest.piece(DRIVER).name]),
            contents[manifest.piece(MODEL).name],
            contents[manifest.piece(HISTORY).name],
        )

    @property
    def spec(self) -> RunSpec:
        """The run, as it was when the checkpoint was written."""
        return RunSpec.from_json(self.manifest.spec)

    def parts_for(self, spec: RunSpec) -> list[Packed]:
        """Return the parts for a run, whose number of workers may be another one."""
        if spec.workers == self.spec.workers:
            return self.parts
        return [repartition(self.parts[0], spec.workers)]

    def fill(self, history: History) -> None:
        """Add the records of the run so far."""
        history.add_record_lines(self._history.decode().splitlines())

    def point(self) -> dict[str, float | str]:
        """Return the point from which the run goes on, for its history."""
        return {
            "checkpoint": self.manifest.number,
            "version": self.manifest.version,
            "samples": self.manifest.samples,
            "saved_at": self.manifest.saved_at,
        }


@dataclass(frozen=True)
class RunFingerprint:
    """What all checkpoints of a run contain about it."""

    run: str  # Name of the run
    spec: RunSpec  # The run
    xla: bool  # Whether XLA compiles the workers' windows
    model: bytes = field(repr=False)  # The compiled model, as the workers load it
    rows: str | None = None  # Name of the folder with the run's rows, where these were stored


class Checkpointer:
    """Writes the checkpoints of one run."""

    def __init__(
        self,
        store: CheckpointStore,
        identity: RunFingerprint,
        every: float | Literal["epoch"] | None,
        history: History,
        observer: Callable[[], Mapping[str, Any]],
        note: Callable[[str], object],
    ) -> None:
        self._store, self._identity, self._every = store, identity, every
        self._history, self._observer, self._note = history, observer, note
        # When the wait for the next checkpoint began, by the clock and in epochs.
        self._since, self._epochs = time.monotonic(), len(history.epoch_records)
        self._asked = False
        # Version of the center when the first worker was missed; None while all are there.
        self._missed_at: int | None = None
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        #: Number of the last checkpoint for which the driver has kept its own state.
        self.captured = 0
        #: Number of checkpoints written.
        self.written = 0

    def look(self, server: AnyServer, update: CenterUpdate, *, writes: bool = True) -> None:
        """Ask for a checkpoint when one is due, and write one whose state has been taken."""
        self._tell_error()
        stands = self._stands_still(update)
        if update.captured > self.captured:
            self.captured = update.captured
            self._asked = False
            if writes:
                self._begin_writing(server, update)
        elif writes and not stands and not self._writes and self._is_due():
            self._since, self._epochs = time.monotonic(), len(self._history.epoch_records)
            # Asked again while it waits for workers, the server waits no longer.
            at_once, self._asked = self._asked, True
            try:
                server.begin_checkpoint(at_once=at_once)
            except RefusedError as error:
                # An outlier has stopped the run since the last events; the next ones tell it.
                self.give_up(str(error))

    def give_up(self, reason: str) -> None:
        """Say that the checkpoint that was asked for is not taken; the next one is another one."""
        self._asked = False
        self._note(NOT_WRITTEN.format(reason))

    def finish(self) -> None:
        """Wait until the checkpoint that is being written is complete."""
        if self._thread is not None:
            self._thread.join(WRITE_SECONDS)
            if self._thread.is_alive():
                raise StorageError(
                    f"a checkpoint has not been written to {self._store.uri} for "
                    f"{WRITE_SECONDS:g} s. Check that the file system answers."
                )
        self._tell_error()

    def check_own(self) -> None:
        """Wait as `finish` does, and refuse to go on if another driver has the directory by now."""
        self.finish()
        self._store.check_own()

    @property
    def _writes(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _stands_still(self, update: CenterUpdate) -> bool:
        """Whether nothing was folded since a worker is missing.

        A checkpoint of that time would have nothing new but an older state of this worker.
        """
        if all(seat.status in ("running", "finished") for seat in update.seats):
            self._missed_at = None
            return False
        if self._missed_at is None or update.version < self._missed_at:
            # States are asked for anew when all are there.
            self._missed_at, self._asked = update.version, False
        return update.version == self._missed_at

    def _is_due(self) -> bool:
        if self._every == "epoch":
            return len(self._history.epoch_records) > self._epochs
        return time.monotonic() - self._since >= (self._every or CHECKPOINT_SECONDS)

    def _tell_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            if isinstance(error, FencedError):
                raise error
            self._note(NOT_WRITTEN.format(error))

    def _begin_writing(self, server: AnyServer, update: CenterUpdate) -> None:
        """Keep the driver's state of this moment; the rest is done by a thread."""
        self.finish()
        history, params = self._history, self._history.params
        tree = {"observer": self._observer(), "resumed": params.get("resumed", [])}
        tree |= {name: params.get(name) for name in ("cuts", "read_parallelism")}
        facts = {
            "format": FORMAT,
            "run": self._identity.run,
            "saved_at": time.time(),
            "version": update.version,
            "samples": history.samples,
            "epochs": len(history.epoch_records),
            "spec": self._identity.spec.to_json(),
            "xla": self._identity.xla,
            "rows": self._identity.rows,
        }
        arguments = (server, update.captured, facts, pack(tree), history.counts())
        self._thread = threading.Thread(target=self._write, args=arguments, daemon=True)
        self._thread.start()

    def _write(
        self,
        server: AnyServer,
        captured: int,
        facts: Mapping[str, Any],
        driver: Packed,
        counts: Sequence[int],
    ) -> None:
        try:
            first, *others = server.parts(captured)
            # A state with which no run could go on replaces none that can.
            folded = SavedServer.from_bytes(first).ledger.samples_folded
            if folded != facts["samples"]:
                # An interrupt may come while the driver records events.
                raise DataError(
                    f"the server has folded {folded} samples, and the history has "
                    f"{facts['samples']}."
                )
            # Records are only added, and those of the moment come first.
            history = b"".join(map(str.encode, self._history.record_lines(counts)))
            contents: dict[str, Content] = {SERVER: first.data, DRIVER: driver.data}
            contents |= {MODEL: self._identity.model, HISTORY: history}
            seats = len(others) - (self._identity.spec.exchange.servers - 1)
            contents |= {f"{SEAT}{n:05}.tree": each.data for n, each in enumerate(others[:seats])}
            contents |= {
                f"{SHARD}{n:05}.tree": each.data for n, each in enumerate(others[seats:], start=1)
            }
            pieces = [piece_of(name, content) for name, content in contents.items()]
            number = self._store.next_number()
            manifest = CheckpointManifest(number=number, pieces=tuple(pieces), **facts)
            self._store.write(manifest, contents)
            self.written += 1
        except Exception as error:  # noqa: BLE001 - kept, and told by the driver's own thread
            self._error = error
