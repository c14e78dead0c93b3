"""The driver's side of several server processes, each with a slice of the center."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Self, TypeAlias

from msgspec import structs

from distkeras_grid.array_tree import Packed
from distkeras_grid.errors import RefusedError, ServerUnreachableError
from distkeras_grid.parameter_server.checkpoint_state import SavedServer
from distkeras_grid.parameter_server.messages import EVENTS_PER_UPDATE, CenterUpdate
from distkeras_grid.parameter_server.process import ServerProcess
from distkeras_grid.parameter_server.settings import ServerAddress, ServerSettings
from distkeras_grid.parameter_server.shards import (
    EventMerger,
    Shard,
    cut,
    lag,
    shard_settings,
    split_parts,
)
from distkeras_grid.parameter_server.timeouts import ANSWER_SECONDS
from distkeras_grid.weights import Vector, empty_vector

# How long a checkpoint waits until all servers have the windows of the first one, and are in the
# same epoch [s]. A window is sent to all at the same time.
TAKING_SECONDS = 10.0


class ShardedProcess:
    """Several running parameter servers, as a context manager; used like a `ServerProcess`.

    The servers receive slices of the center as it is, and their centers are fetched into slices of
    one vector. So the driver holds no more vectors than with one server.

    A checkpoint has the states of all. That of the first server is taken first, with the states of
    the workers. When every window in it is in every slice, those of the others are taken. So they
    may have folded more windows than the first, but never fewer. A run that goes on trains these
    windows again: the first server folds them, and the others keep what they have. All are in the
    same epoch, because a checkpoint has no snapshots: a server that is ahead would never make that
    of the epoch again.

    `center`: the initial weights, shape ``(settings.spec.size,)``, ``float32``, contiguous.
    """

    def __init__(
        self,
        settings: ServerSettings,
        center: Vector,
        key: bytes,
        saved: Sequence[Packed] = (),
        serve: Callable[..., ServerProcess] = ServerProcess,
        give_up: Callable[[str], object] | None = None,
    ) -> None:
        spec = settings.spec
        self._size = spec.size
        self._shards = cut(spec.layout, spec.exchange.servers)
        each_saved = split_parts(saved, len(self._shards))
        self._servers = [
            serve(shard_settings(settings, shard), center[shard.span], key, own)
            for shard, own in zip(self._shards, each_saved, strict=True)
        ]
        ahead = []
        if saved:
            first, *others = (SavedServer.from_bytes(own[0]).ledger for own in each_saved)
            ahead = [lag(first, other) for other in others]
        self._joined = EventMerger(len(self._servers), ahead)
        self._running = ExitStack()
        self._give_up = give_up
        # Number of the last checkpoint of each server: after which its events continue, and whose
        # state was taken on all servers.
        self._captured, self._taken = [0] * len(self._servers), [0] * len(self._servers)
        # Whether the first server is asked again when all are in the same epoch.
        self._again = False
        # When the checkpoint is given up.
        self._until = math.inf

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            for shard, server in zip(self._shards, self._servers, strict=True):
                with self._naming(shard):
                    starting.enter_context(server)
            self._running = starting.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._running.close()

    @property
    def address(self) -> ServerAddress:
        """The first server's."""
        return self._servers[0].address

    @property
    def addresses(self) -> tuple[ServerAddress, ...]:
        """Those of all servers, in the order of their slices."""
        return tuple(server.address for server in self._servers)

    @property
    def pids(self) -> tuple[int, ...]:
        """Numbers of their processes."""
        return tuple(pid for server in self._servers for pid in server.pids)

    def poll(
        self,
        timeout: float = ANSWER_SECONDS,
        captured: int = 0,
        patience: float = 0.0,  # noqa: ARG002 - no worker of several servers waits for the driver
    ) -> CenterUpdate:
        """Return the present state of the run, and the events that are due; see `EventMerger`.

        `timeout`: seconds in which each answer of a server must arrive.
        """
        self._captured[0] = max(self._captured[0], captured)
        # Events are handed out at the end, so an interrupt of any request before loses none.
        updates = [self._receive(shard, timeout) for shard in self._shards]
        if self._again:
            self._ask_again()
        number = updates[0].captured
        taken = number if number and self._captures(updates[0], timeout) else 0
        whole = taken > 0 or not any(update.captured for update in updates)
        return structs.replace(self._joined.due(), captured=taken, whole=whole)

    def _captures(self, update: CenterUpdate, timeout: float) -> bool:
        """Take the states of the other servers for a checkpoint that the first one has taken.

        Meanwhile the first server tells nothing that has happened since, so nothing waits when all
        servers have folded what is in its checkpoint.
        """
        number = update.captured
        if number == self._taken[0]:
            return True
        self._until = min(self._until, time.monotonic() + TAKING_SECONDS)
        if self._joined.waits:
            failed = {seat.worker for seat in update.seats if seat.status == "failed"}
            if failed - self._joined.failed:
                # The first server does not tell the error before it goes on.
                self._end_taking(number, "a worker has failed meanwhile.")
            elif time.monotonic() > self._until:
                # The worker of a window may have died, and its next attempt takes its time.
                self._end_taking(number, "a server lacks a window that the first one has.")
            return False
        if self._joined.same_epoch:
            try:
                taken = [number, *(self._take(shard, timeout) for shard in self._shards[1:])]
            except RefusedError as error:
                # Its worker's failure is among the next events.
                self._end_taking(number, str(error))
                return False
            if self._joined.same_epoch:
                self._taken, self._until = taken, math.inf
                return True
        self._captured[0], self._again = number, True
        return False

    def _take(self, shard: Shard, timeout: float) -> int:
        """Take the state of a server; return the number of its checkpoint."""
        with self._naming(shard):
            self._servers[shard.number].begin_checkpoint(at_once=True)
        return self._receive(shard, timeout).captured

    def _ask_again(self) -> None:
        """Ask the first server again when all are in the same epoch, until it is too late."""
        if time.monotonic() > self._until:
            self._end_taking(self._captured[0], "the servers are in different epochs.")
        elif self._joined.same_epoch:
            # Workers have just sent what they keep.
            self.begin_checkpoint(at_once=True)

    def _end_taking(self, number: int, reason: str) -> None:
        """Let the events of the first server continue, without a checkpoint."""
        self._captured[0], self._again, self._until = number, False, math.inf
        if self._give_up is not None:
            self._give_up(reason)

    def command(
        self,
        stop: bool | None = None,
        learning_rate: float | None = None,
        *,
        begin: bool = False,
        epochs: int | None = None,
    ) -> None:
        """Set what the workers receive with their next replies; see `DriverClient.command`.

        Each server has to know, because workers may wait for others on each.
        """
        for shard, server in zip(self._shards, self._servers, strict=True):
            with self._naming(shard):
                server.command(stop, learning_rate, begin=begin, epochs=epochs)

    def reconnect(self) -> None:
        """Open new connections; see `ServerProcess.reconnect`."""
        for shard, server in zip(self._shards, self._servers, strict=True):
            with self._naming(shard):
                server.reconnect()
        self._again, self._until = False, math.inf

    def center(
        self, snapshot: int | None = None, seat: int = 0, out: Vector | None = None
    ) -> Vector:
        """Fetch the current center or a snapshot of it; see `DriverClient.center`.

        While workers train, the slices of the current center are of slightly different moments.
        """
        center = empty_vector(self._size) if out is None else out
        for shard, server in zip(self._shards, self._servers, strict=True):
            with self._naming(shard):
                server.center(snapshot, seat, center[shard.span])
        return center

    def begin_checkpoint(self, *, at_once: bool = False) -> None:
        """Ask for a checkpoint; see `DriverClient.begin_checkpoint`."""
        with self._naming(self._shards[0]):
            self._servers[0].begin_checkpoint(at_once=at_once)
        self._again = False

    def parts(self, number: int) -> Iterator[Packed]:
        """Fetch the parts of a checkpoint: those of the first server, then one of each other."""
        taken = self._taken
        for shard in self._shards:
            with self._naming(shard):
                yield from self._servers[shard.number].parts(
                    taken[shard.number] if shard.number else number
                )

    def _receive(self, shard: Shard, timeout: float) -> CenterUpdate:
        """Hear a server until it has no more events, or none before a checkpoint.

        Only the first one has to wait with later events until the driver has kept its own state.
        """
        server, number = self._servers[shard.number], shard.number
        while True:
            with self._naming(shard):
                update = server.poll(timeout, self._captured[number])
            self._joined.add(number, update)
            if number and update.captured:
                self._captured[number] = update.captured
            if update.captured or len(update.events) < EVENTS_PER_UPDATE:
                return update

    @contextmanager
    def _naming(self, shard: Shard) -> Iterator[None]:
        """Say which server is meant."""
        try:
            yield
        except ServerUnreachableError as error:
            raise ServerUnreachableError(
                f"Server {shard.number} of {len(self._shards)} (numbers {shard.start} to "
                f"{shard.stop - 1} of the center): {error}"
            ) from error


#: What runs the servers of a run, whatever their number.
AnyServer: TypeAlias = ServerProcess | ShardedProcess
