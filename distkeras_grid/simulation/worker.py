"""A worker in simulated time. It trains windows as a real one does, and can be slow or lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from distkeras_grid.errors import GridError, RefusedError
from distkeras_grid.feeding.batches import policy_of
from distkeras_grid.parameter_server.compression import DeltaDecoder, build_wire
from distkeras_grid.parameter_server.frames import encoded_size
from distkeras_grid.parameter_server.membership import ConnectionId
from distkeras_grid.parameter_server.messages import CommitReply, Start, Step
from distkeras_grid.parameter_server.server_events import ReceivedCommit, ReceivedMessage
from distkeras_grid.rules import rule_of
from distkeras_grid.simulation.cluster import Cluster
from distkeras_grid.spec import RunSpec
from distkeras_grid.worker import worker_core as cores
from distkeras_grid.worker.engine_actions import apply_action, first_state, shared_state
from distkeras_grid.worker.seat import new_worker_core
from distkeras_grid.worker.worker_core import WorkerCore

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from distkeras_grid.engine.base import Engine
    from distkeras_grid.feeding.batches import Window
    from distkeras_grid.feeding.source import RowSource
    from distkeras_grid.outliers import Validate
    from distkeras_grid.spec import CompressionName
    from distkeras_grid.weights import Vector


class SimulatedWire:
    """Carries vectors through the codec of a run, without a connection."""

    def __init__(self, compression: CompressionName | None, size: int) -> None:
        self._wire = build_wire(compression, size) if compression else None

    def carry(self, vector: Vector) -> int:
        """Make of a vector what arrives of it; return the bytes by which it travels."""
        if self._wire is None:
            return 4 * vector.size
        sent = self._wire.pack(vector).tobytes()
        self._wire.place(len(sent), vector)[:] = sent
        self._wire.unpack(vector)
        return len(sent)


class SimulatedWorker:
    """One worker.

    `engine`: returns its engine, which other workers may share, in the worker's own state.
    `session`: its claim on the seat, None if it has not arrived, is lost or has finished.
    `computed`: simulated time for which it has computed windows [s].
    """

    def __init__(
        self,
        number: int,
        cluster: Cluster,
        spec: RunSpec,
        engine: Callable[[], Engine],
        rows: RowSource,
        validate: Validate | None = None,
    ) -> None:
        self.session: ConnectionId | None = None
        self.attempt = -1
        self.computed = 0.0
        self.rows = rows
        self._number, self._cluster, self._spec, self._engine = number, cluster, spec, engine
        self._first, self._validate = first_state(engine()), validate
        self._rule = rule_of(spec.rule)
        self._policy = policy_of(spec.schedule, len(rows), number)
        self.holds = self._policy.rows
        self._dtype = engine().weights().dtype
        self._random = np.random.default_rng([cluster.seed, number])
        self._core = self._new_core()
        self.wanted: cores.Action | None = None
        # What it knows of the center, where replies tell changes; and the commit on its way.
        self._known = np.empty(0, self._dtype)
        self._sent: ReceivedCommit | None = None
        self.steps = 0
        self.started = self.seconds = 0.0

    @property
    def version(self) -> int:
        """Version of the center that its window starts from."""
        return self._core.version

    @property
    def before(self) -> Vector:
        """The weights that its window starts from."""
        return self._core.before

    def join(self, session: ConnectionId) -> None:
        """Arrive as a new attempt."""
        self.session, self.attempt = session, session.attempt
        self._core = self._new_core()
        # Another process has an engine that has trained nothing.
        self._engine().restore(self._first)

    def lose(self) -> None:
        """Be gone, with all that was not sent."""
        self.session = self.wanted = self._sent = None

    def start(self, message: Start, center: Vector) -> None:
        """Begin at the window that the server wants, from the center."""
        self._known = center.copy()
        self._tell(cores.StartAnswer(message, center))

    def take(self, message: CommitReply, reply: Vector | None, wire: SimulatedWire) -> None:
        """Take the rule's reply to a commit over, if the rule has one."""
        if reply is not None:
            wire.carry(reply)
            DeltaDecoder(self._spec.compression, self._known).decode(reply)
            np.copyto(self._core.before, reply)
        self._tell(message)

    def take_step(self, message: Step, gradient: Vector, wire: SimulatedWire) -> None:
        """Make the step of a round that was asked for."""
        if not isinstance(self.wanted, cores.RequestStep):
            raise GridError(f"Worker {self._number} has asked for no step.")
        np.copyto(self.wanted.out, gradient)
        wire.carry(self.wanted.out)
        self._tell(message)

    def take_state(self, state: NDArray[np.uint8]) -> None:
        """Take over the optimizer's state that was asked for."""
        self._tell(cores.StateAnswer(state))

    def shared_state(self, version: int) -> NDArray[np.uint8]:
        """Return the optimizer's state that is handed over."""
        return shared_state(self._engine(), version)

    def confirm_hand_over(self) -> None:
        """Hear that the server has what was handed over."""
        self._tell(cores.HandedOver())

    def begin(self, window: Window, now: float) -> float:
        """Begin a window; return how long it will take [s]."""
        self.started, self.seconds = now, self._draw_seconds(window)
        return self.seconds

    def send(self, session: ConnectionId, wire: SimulatedWire) -> int:
        """Compute the current window, and send its commit; return the vector's bytes."""
        if not isinstance(self.wanted, cores.Compute):
            raise GridError(f"Worker {self._number} has begun no window.")
        action = self.wanted
        blocks = self.rows.blocks(action.window.blocks)
        result = self._engine().run(action.before, blocks, action.after)
        wanted = self._tell(cores.WindowAnswer(result, self.started, self.seconds))
        if not isinstance(wanted, cores.Exchange):
            raise GridError(f"Worker {self._number} has a window and does not send it.")
        # A copy, so that the core can use its memory for the next commit.
        commit, payload = wanted.commit, wanted.payload.copy()
        size = wire.carry(payload)
        bytes_up = encoded_size(commit, size)
        self._sent = ReceivedMessage(session, commit, payload, bytes_up)
        return size

    def deliver(self) -> ReceivedCommit:
        """Return the commit in transit, which has now arrived."""
        if self._sent is None:
            raise GridError(f"Worker {self._number} has sent nothing.")
        sent, self._sent = self._sent, None
        self.steps += sent.message.steps
        return sent

    def refuse(self, error: RefusedError) -> None:
        """Hear that the server refuses what was sent or asked for; raises what ends the worker."""
        self._tell(cores.RejectionAnswer(error))

    def _tell(self, event: cores.Event) -> cores.Action:
        *orders, wanted = self._core.handle(event)
        for order in orders:
            apply_action(order, self._engine(), self._first)
        self.wanted = wanted
        return wanted

    def _new_core(self) -> WorkerCore:
        return new_worker_core(
            self._spec,
            self._rule,
            self._engine().layout,
            self._policy,
            self._number,
            validate=self._validate,
            dtype=self._dtype,
        )

    def _draw_seconds(self, window: Window) -> float:
        cluster = self._cluster
        seconds = cluster.window_seconds(self._number, window.steps)
        # Both are always drawn, so that one option does not change the numbers of the other.
        factor, lot = self._random.exponential(), self._random.random()
        if cluster.times == "exponential":
            seconds *= factor
        if lot < cluster.straggler_probability:
            seconds *= cluster.straggler_factor
        return seconds
