"""The driver's side of several server processes, each with a slice of the center."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Self, TypeAlias

from distkeras_grid.errors import ParameterServerError, ServerUnreachableError
from distkeras_grid.parameter_server.client import ANSWER_SECONDS
from distkeras_grid.parameter_server.messages import EVENTS_PER_UPDATE, Update
from distkeras_grid.parameter_server.process import ServerProcess
from distkeras_grid.parameter_server.settings import ServerAddress, ServerSettings
from distkeras_grid.parameter_server.shards import Joined, Shard, cut, shard_settings
from distkeras_grid.trees import Packed
from distkeras_grid.weights import Vector, empty_vector


class ShardedProcess:
    """Several running parameter servers, as a context manager; used like a `ServerProcess`.

    The servers receive slices of the center as it is, and their centers are fetched into slices of
    one vector. So the driver holds no more vectors than with one server.

    None of them can be replaced: a checkpoint would need the states of all at one moment.

    Parameters
    ----------
    settings : ServerSettings
        The whole run; ``settings.spec.exchange.servers`` is the number of servers.
    center : ndarray
        The initial weights, shape ``(settings.spec.size,)``, ``float32``, contiguous.
    key : bytes
        The run's key, the same for all.
    serve : callable, default ServerProcess
        Builds each process.

    Raises
    ------
    ConfigurationError
        If the model cannot be cut, and as for `ServerProcess`.
    """

    def __init__(
        self,
        settings: ServerSettings,
        center: Vector,
        key: bytes,
        serve: Callable[..., ServerProcess] = ServerProcess,
    ) -> None:
        self._size = settings.spec.size
        self._shards = cut(settings.spec.layout, settings.spec.exchange.servers)
        self._servers = [
            serve(shard_settings(settings, shard), center[shard.span], key)
            for shard in self._shards
        ]
        self._joined = Joined(len(self._servers))
        self._running = ExitStack()

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
        """Numbers of the processes."""
        return tuple(server.pid for server in self._servers)

    def poll(self, timeout: float = ANSWER_SECONDS, captured: int = 0) -> Update:  # noqa: ARG002
        """Return the present state of the run, and the events that are due; see `Joined`.

        Parameters
        ----------
        timeout : float, default `ANSWER_SECONDS`
            Seconds in which each answer of a server must arrive.
        captured : int, default 0
            Not used: there are no checkpoints.

        Raises
        ------
        ServerUnreachableError
            If a server has died or does not answer. The message says which.
        """
        return self._joined.join(
            [
                self._news(shard, server, timeout)
                for shard, server in zip(self._shards, self._servers, strict=True)
            ]
        )

    def command(
        self,
        stop: bool | None = None,
        learning_rate: float | None = None,
        *,
        begin: bool = False,
        release: bool = False,
    ) -> None:
        """Set what the workers receive with their next replies; see `DriverClient.command`.

        Each server has to know, because workers may wait for others on each.
        """
        for shard, server in zip(self._shards, self._servers, strict=True):
            with self._naming(shard):
                server.command(stop, learning_rate, begin=begin, release=release)

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
            with self._naming(shard):
                server.center(snapshot, seat, center[shard.span])
        return center

    def gather(self, *, at_once: bool = False) -> None:  # noqa: ARG002
        """Refuse to take a checkpoint."""
        raise self._without_checkpoints()

    def parts(self, number: int) -> Iterator[Packed]:  # noqa: ARG002
        """Refuse to fetch a checkpoint."""
        raise self._without_checkpoints()

    def _without_checkpoints(self) -> ParameterServerError:
        return ParameterServerError(
            f"A run with {len(self._servers)} servers has no checkpoints. Use one server."
        )

    def _news(self, shard: Shard, server: ServerProcess, timeout: float) -> list[Update]:
        """Return updates of a server until it has no more events."""
        updates: list[Update] = []
        with self._naming(shard):
            while not updates or len(updates[-1].events) >= EVENTS_PER_UPDATE:
                updates.append(server.poll(timeout))
        return updates

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
