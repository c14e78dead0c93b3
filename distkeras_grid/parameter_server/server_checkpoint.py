"""The states that workers keep on the server, and the checkpoints that are made of them.

A worker that starts again goes on from its last state. A checkpoint of a run has the server's own
state and the state of each worker that trains, as these were at one moment for the driver.

The driver asks for a checkpoint. The server then asks each active worker for its state, and takes
its own state when the last answer has arrived. In rounds, all answers arrive between the same two
rounds, so the states of center and workers belong to the same moment. Without rounds, a worker's
windows may have been folded after its answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from distkeras_grid.errors import RefusedError
from distkeras_grid.parameter_server.center import Center
from distkeras_grid.parameter_server.commit_filter import CommitFilter
from distkeras_grid.parameter_server.ledger import Ledger
from distkeras_grid.parameter_server.messages import (
    CheckpointPart,
    FetchPart,
    GetWorkerState,
    GoOn,
    PutWorkerState,
    WorkerStateReply,
)
from distkeras_grid.parameter_server.server_events import (
    DRIVER,
    Action,
    ReceivedMessage,
    SendReply,
)
from distkeras_grid.parameter_server.worker_state_store import WorkerStateSnapshot, WorkerStateStore
from distkeras_grid.parameter_server.worker_steps import WorkerSteps
from distkeras_grid.spec import RunSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ServerCheckpoint:
    """The part of a server's core that keeps states.

    `closed`: whether no state is taken any more, because the run was stopped.
    `number`: of the last checkpoint whose state was taken.
    """

    def __init__(
        self,
        spec: RunSpec,
        ledger: Ledger,
        center: Center,
        steps: WorkerSteps | None,
        commit_filter: CommitFilter | None,
    ) -> None:
        self.closed, self.number = False, 0
        self.active = spec.layout.worker_state_limit > 0
        self.states = WorkerStateStore(spec.workers)
        # Whether a checkpoint is due, the seats whose answers it waits for, and those of them that
        # were asked after it was requested.
        self._pending = False
        self._awaited: set[int] = set()
        self._asked: set[int] = set()
        self._ledger, self._center = ledger, center
        self._steps, self._commit_filter = steps, commit_filter
        # The state of the last checkpoint: the server's own, and what workers keep.
        self._captured: tuple[Mapping[str, Any], list[NDArray[np.uint8]]] | None = None

    # States of workers

    def asks(self, seat: int) -> bool:
        """Whether the reply asks for what the worker keeps; one without windows goes on nowhere."""
        if not self.active or self._ledger.has_finished(seat):
            return False
        if wanted := seat in self._awaited:
            self._asked.add(seat)
        return self.states.asks(seat, self._ledger.members.now, wanted=wanted)

    def keep(self, event: ReceivedMessage[PutWorkerState]) -> list[Action]:
        """Keep the state that a worker has sent, and let it go on."""
        session, message = event.sender, event.message
        self._ledger.members.current(session)
        due = self._ledger.next_sequence(session.seat)
        if message.sequence != due or message.version > self._ledger.version:
            raise RefusedError(
                f"Worker {session.seat} keeps its state before commit {due}, with a center of "
                f"version {self._ledger.version} at most. Received: one before commit "
                f"{message.sequence} with version {message.version}."
            )
        if event.state is None or not self.states.expects(session.seat, due):
            raise RefusedError(
                f"Worker {session.seat} is not asked for what it keeps. Received: such a state."
            )
        snapshot = WorkerStateSnapshot(message.sequence, message.version, event.state)
        self.states.receive(session.seat, snapshot, self._ledger.members.now)
        # An answer to an earlier question does not count. But at the end of an epoch, whoever asked
        # for it, this is the state between the two epochs.
        if session.seat in self._asked or self._ledger.waits_for_driver(session.seat):
            self._awaited.discard(session.seat)
        self._capture()
        # Steps bring their own rates.
        rate = None if self._steps is not None else self._ledger.learning_rate
        return [SendReply(session, GoOn(self._ledger.stop, rate))]

    def fetch(self, event: ReceivedMessage[GetWorkerState]) -> list[Action]:
        """Return the last state that a worker, or an earlier attempt of it, has sent."""
        self._ledger.members.current(event.sender)
        snapshot = self.states.of(event.sender.seat)
        if snapshot is None:
            raise RefusedError(
                f"Nothing is kept for worker {event.sender.seat}. Received: a request for it."
            )
        message = WorkerStateReply(snapshot.sequence, snapshot.version)
        size = snapshot.state.nbytes
        return [SendReply(event.sender, message, size=size, state=snapshot.state)]

    # Checkpoints

    def begin(self, seats: Iterable[int]) -> None:
        """Take a checkpoint as soon as these seats have sent their states."""
        self._pending, self._awaited, self._asked = True, set(seats), set()
        self._capture()

    def stop_waiting(self, seat: int) -> None:
        """Do not wait for a seat that will not answer."""
        self._awaited.discard(seat)
        self._capture()

    def part(self, event: ReceivedMessage[FetchPart]) -> list[Action]:
        """Return a part of the last checkpoint."""
        asked = event.message
        tree, states = self._captured or ({}, [])
        if not tree or asked.number != self.number or asked.part > len(states):
            raise RefusedError(f"There is no such part of a checkpoint. Received: {asked}.")
        message = CheckpointPart(1 + len(states))
        if asked.part == 0:
            return [SendReply(DRIVER, message, tree=tree)]
        return [SendReply(DRIVER, message, state=states[asked.part - 1])]

    @property
    def _complete(self) -> bool:
        """Whether the state is to be taken now."""
        return self._pending and not self._awaited

    def _capture(self) -> None:
        if self.closed or not self._complete:
            return
        self._pending, self.number = False, self.number + 1
        snapshots = self.states.all
        tree = {
            "ledger": self._ledger.to_saved(),
            "center": self._center.to_state(),
            "replay": None if self._steps is None else self._steps.log.to_saved(),
            "worker_states": {
                str(seat): {"sequence": each.sequence, "version": each.version}
                for seat, each in snapshots.items()
            },
            "outliers": None if self._commit_filter is None else self._commit_filter.to_saved(),
        }
        self._captured = tree, [each.state for each in snapshots.values()]
        # The driver's own state must be that of the same moment.
        self._ledger.events.pause()
