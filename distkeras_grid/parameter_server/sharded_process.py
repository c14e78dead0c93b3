"""The driver's side of several server processes, each with a slice of the center."""

from __future__ import annotations

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


class ShardedProcess:
    """Several running parameter servers, as a context manager; used like a `ServerProcess`.

    The servers receive slices of the center as it is, and their centers are fetched into slices of
    one vector. So the driver holds no more vectors than with one server.

    A checkpoint has the states of all: that of the first server, with the states of the workers,
    and then those of the others as they are, a few windows more or less. A run that goes on trains
    a window again that one of them lacks: each folds what it has not folded yet.

    `center`: the initial weights, shape ``(settings.spec.size,)``, ``float32``, contiguous.
    """

    def __init__(
        self,
        settings: ServerSettings,
        center: Vector,
        key: bytes,
        saved: Sequence[Packed] = (),
        serve: Callable[..., ServerProcess] = ServerProcess,
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
        # Number of the last checkpoint of each server: after which its events continue, and whose
        # state was taken on all servers.
        self._captured, self._taken = [0] * len(self._servers), [0] * len(self._servers)

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
        wait_seconds: float = 0.0,  # noqa: ARG002 - no worker of several servers waits for the driver
    ) -> CenterUpdate:
        """Return the present state of the run, and the events that are due; see `EventMerger`.

        `timeout`: seconds in which each answer of a server must arrive.
        """
        self._captured[0] = max(self._captured[0], captured)
        # Events are handed out at the end, so an interrupt of any request before loses none.
        updates = [self._receive(shard, timeout) for shard in self._shards]
        number = updates[0].captured
        if number and number != self._taken[0]:
            self._taken = [number, *(self._take(each, timeout) for each in self._shards[1:])]
        if number:
            self._joined.flush()
        return structs.replace(self._joined.merged_update(), captured=number)

    def _take(self, shard: Shard, timeout: float) -> int:
        """Take the state of a server; return the number of its checkpoint."""
        with self._naming(shard):
            self._servers[shard.number].begin_checkpoint(at_once=True)
        return self._receive(shard, timeout).captured

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

    def center(
        self, snapshot: int | None = None, seat: int = 0, out: Vector | None = None
    ) -> Vector:
        """Fetch the current center or a snapshot of it; see `DriverClient.center`.

        While workers train, the slices of the current center are of slightly different moments.
        """
        center = empty_vector(self._size) if out is None else out
        for shard, server in zip(self._shards, self._servers, strict=True):
            part = center[shard.span]
            with self._naming(shard):
                try:
                    server.center(snapshot, seat, part)
                except RefusedError:
                    if snapshot is None or not shard.number:
                        raise
                    # It was in another epoch than the first server when a checkpoint was taken.
                    server.center(None, seat, part)
        return center

    def begin_checkpoint(self, *, at_once: bool = False) -> None:
        """Ask for a checkpoint; see `DriverClient.begin_checkpoint`."""
        with self._naming(self._shards[0]):
            self._servers[0].begin_checkpoint(at_once=at_once)

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
