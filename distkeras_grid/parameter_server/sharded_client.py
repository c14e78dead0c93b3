"""A worker's end where the center is cut over several servers: it talks to all of them at once.

Each server has a `WorkerClient` of its own, with its own connection, repetitions and deadlines. A
request goes to all in threads, which spend their time in the kernel. The first server's answers
are the worker's orders.

**What counts once.** Each server folds each window of a seat once, whatever is lost and repeated
between. If a worker is lost when some servers have folded its window and others have not, the next
attempt begins with that window: it trains it again, those that have it only answer, and the
others fold it. So the window is once in each slice of the center, in some of them as the first
attempt has trained it, in the others as the next one has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_EXCEPTION, Future, wait
from contextlib import ExitStack
from threading import Thread
from typing import TYPE_CHECKING, Self, TypeAlias, TypeVar

from msgspec.structs import replace

from distkeras_grid.errors import ConfigurationError, RefusedError
from distkeras_grid.parameter_server.client import WorkerClient
from distkeras_grid.parameter_server.messages import (
    CommitReply,
    Start,
    WindowCommit,
    WorkerStateReply,
)
from distkeras_grid.parameter_server.settings import ServerAddress
from distkeras_grid.parameter_server.shards import Shard, cut, shard_run, shard_spec
from distkeras_grid.rules.finite_checks import is_finite
from distkeras_grid.spec import RunSpec
from distkeras_grid.weights import Vector, empty_vector

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_Result = TypeVar("_Result")


class ShardedClient:
    """A worker's conversations with all servers of a run; `connect` makes it.

    It has the methods of `WorkerClient` that concern the slices; what a run has once goes through
    the client `first`.

    `vector`: shape ``(size,)``, ``float32``.
    """

    def __init__(
        self, clients: Sequence[WorkerClient], shards: Sequence[Shard], vector: Vector
    ) -> None:
        self._clients, self._shards = tuple(clients), tuple(shards)
        self.first = self._clients[0]
        self.vector, self.seat = vector, self.first.seat
        # Version of each slice of the center that the worker has.
        self._versions = [0] * len(self._shards)

    @classmethod
    def connect(
        cls,
        addresses: Sequence[ServerAddress],
        key: bytes,
        run: str,
        seat: int,
        attempt: int,
        spec: RunSpec,
        deadline: float,
    ) -> Self:
        """Connect to all servers, and take the seat on each; see `WorkerClient.connect`.

        `addresses`: where the servers are, in the order of their slices.
        `deadline`: total time [s].
        """
        shards, vector = cut(spec.layout, len(addresses)), empty_vector(spec.size)
        until = time.monotonic() + deadline
        with ExitStack() as connected:
            clients = []
            for address, shard in zip(addresses, shards, strict=True):
                own = shard_spec(spec, shard)
                client = WorkerClient.connect(
                    *(address, key, shard_run(run, shard.number), seat, attempt, own.size),
                    max(0.001, until - time.monotonic()),
                    worker_state_limit=own.layout.worker_state_limit,
                    compression=own.compression,
                )
                client.use(vector[shard.span])
                clients.append(connected.enter_context(client))
            connected.pop_all()
        return cls(clients, shards, vector)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def send_buffer(self) -> Vector | None:
        """None: the servers read from memory of their own, and slices of a payload are copied."""
        return None

    def ready(
        self,
        rows: int,
        window_seconds: float = 0.0,
        digest: str = "",
    ) -> Start:
        """Wait until every seat is ready on every server, and receive the center into `vector`."""
        # Where one refuses, another may wait for seats that never come.
        starts = self._ask_all(
            lambda client, _: client.ready(rows, window_seconds, digest),
            until=FIRST_EXCEPTION,
        )
        self._versions = [start.version for start in starts]
        return replace(starts[0], next_sequence=min(start.next_sequence for start in starts))

    def exchange(self, commit: WindowCommit, payload: Vector, reply: Vector) -> CommitReply:
        """Send each server its slice of a window's commit, and receive its slice of the reply.

        `payload, reply`: as in `WorkerClient.exchange`; slices of them are sent and received
        without a copy.
        """
        for vector in (payload, reply):
            if vector.shape != self.vector.shape:
                raise ConfigurationError(
                    f"Vectors here have the shape {self.vector.shape}. Received: {vector.shape}."
                )
        # A server sees only its own slice, and the others would fold theirs.
        if not is_finite(payload):
            raise RefusedError(
                f"Worker {self.seat}, epoch {commit.epoch}, window {commit.window}: the weights "
                "contain NaN or infinity. Nothing was folded; lower the learning rate or check "
                "the data."
            )

        def ask(client: WorkerClient, shard: Shard) -> CommitReply:
            own = replace(commit, version=self._versions[shard.number])
            if shard.number:
                # The history is on the first server.
                own = replace(own, metrics={}, local=None, state=b"", sources={})
            answer = client.exchange(own, payload[shard.span], reply[shard.span])
            self._versions[shard.number] = answer.version
            return answer

        return self._ask_all(ask)[0]

    def get_worker_state(self) -> tuple[WorkerStateReply, NDArray[np.uint8]]:
        """Fetch what an earlier attempt kept; see `WorkerClient.get_worker_state`.

        Its version is told as 0, that of a center before any commit: it is only the first server's,
        and the other slices of the center may have changed since.
        """
        answer, state = self.first.get_worker_state()
        return replace(answer, version=0), state

    def finish(self) -> None:
        """Tell all servers that this worker has no windows left.

        The first one is told last: then the run may end.
        """
        self._ask_all(lambda client, shard: client.finish() if shard.number else None)
        self.first.finish()

    def close(self) -> None:
        """Close all connections; see `WorkerClient.close`."""
        for client in self._clients:
            client.close()

    def _ask_all(
        self, ask: Callable[[WorkerClient, Shard], _Result], until: str = ALL_COMPLETED
    ) -> list[_Result]:
        """Ask each server in a thread of its own; return the answers in the order of the shards.

        The first server's error is raised before those of others. With `FIRST_EXCEPTION` an error
        ends the other requests. None goes on after this method.
        """
        futures: list[Future[_Result]] = [Future() for _ in self._shards]

        def run(client: WorkerClient, shard: Shard) -> None:
            try:
                futures[shard.number].set_result(ask(client, shard))
            except BaseException as error:  # noqa: BLE001 - raised by the worker's own thread
                futures[shard.number].set_exception(error)

        for pair in zip(self._clients, self._shards, strict=True):
            Thread(target=run, args=pair, daemon=True).start()
        try:
            done, _ = wait(futures, return_when=until)
        finally:
            for client, future in zip(self._clients, futures, strict=True):
                if not future.done():
                    client.interrupt()
            wait(futures)
        for future in futures:
            if future in done and (error := future.exception()) is not None:
                raise error
        return [future.result() for future in futures]


#: A worker's client, whatever the number of servers.
AnyClient: TypeAlias = WorkerClient | ShardedClient
