"""A training run in simulated time: the cores of a real run under a queue of events.

The server's core (`distkeras_grid.parameter_server.server_core`), each worker's
(`distkeras_grid.worker.worker_core`) and the driver's
(`distkeras_grid.parameter_server.run_monitor`) decide here what they decide in a real run. Each
window is computed for real, when its commit is sent: how many bytes that has may depend on what was
trained. Only the clock is simulated.

A core is told of an answer when the server sends it; what it wants then happens when the answer
has arrived. Where workers make the steps of the rounds, each makes its own, so an optimizer works
as often as there are workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from distkeras_grid.errors import (
    ClusterError,
    ParameterServerError,
    RefusedError,
)
from distkeras_grid.history import History
from distkeras_grid.parameter_server import run_monitor as watches
from distkeras_grid.parameter_server.membership import ConnectionId
from distkeras_grid.parameter_server.messages import (
    EVENTS_PER_UPDATE,
    CenterUpdate,
    Command,
    CommitReply,
    FetchCenter,
    FetchState,
    FetchStep,
    Message,
    OptimizerState,
    Poll,
    PutOptimizerState,
    Ready,
    Start,
    Step,
    WorkerEnd,
)
from distkeras_grid.parameter_server.run_monitor import RunMonitor
from distkeras_grid.parameter_server.server_core import ServerCore
from distkeras_grid.parameter_server.server_events import (
    DRIVER,
    Action,
    Disconnect,
    JoinRequest,
    ReceivedMessage,
    RejectWaiter,
    SeatGrant,
    SendReply,
)
from distkeras_grid.records import EpochEnded, WorkerRecord
from distkeras_grid.simulation.cluster import Cluster
from distkeras_grid.simulation.events import Event, EventQueue, SimulatedLink
from distkeras_grid.simulation.worker import SimulatedWire, SimulatedWorker
from distkeras_grid.spec import RunSpec
from distkeras_grid.worker import worker_core as cores

if TYPE_CHECKING:
    from distkeras_grid.engine.base import Engine
    from distkeras_grid.feeding.source import RowSource
    from distkeras_grid.outliers import Validate
    from distkeras_grid.weights import Vector

#: So often the driver looks at the server, as in a real run [s].
LOOK_SECONDS = 0.1
#: Returns the metrics of a center on validation data, each with the prefix ``val_``.
Evaluation = Callable[["Vector"], Mapping[str, float]]
#: Returns what metrics say of a state, as `distkeras_grid.engine.metric_state.results_of` does.
Results = Callable[[bytes], Mapping[str, float] | None]


class Simulation:
    """One run on a simulated cluster; the same arguments give the same run, bit for bit.

    `engine_of`: returns the engine of a worker; where workers share one, in this worker's state.
    `now`: simulated seconds since the run began.
    """

    def __init__(
        self,
        cluster: Cluster,
        spec: RunSpec,
        engine_of: Callable[[int], Engine],
        rows: Sequence[RowSource],
        evaluate: Evaluation | None = None,
        results: Results | None = None,
        validate: Validate | None = None,
    ) -> None:
        self._cluster, self._spec = cluster, spec
        self._evaluate, self._results = evaluate, results
        # Who looks at the center at each epoch's end is given it as it was then. Simulated workers
        # keep nothing on the server, and simulated time does not count what that would take.
        self._served = spec.change(worker_state_limit=0, snapshots_per_epoch=1 if evaluate else 0)
        self._wire = SimulatedWire(spec.compression, spec.size)
        self._core = ServerCore(self._served, engine_of(0).weights())
        self._watch = RunMonitor(spec)
        self._workers = [
            SimulatedWorker(number, cluster, spec, partial(engine_of, number), own, validate)
            for number, own in enumerate(rows)
        ]
        self._up, self._down = (
            SimulatedLink(cluster.server_bandwidth, cluster.bandwidth, cluster.latency)
            for _ in range(2)
        )
        self._queue = EventQueue()
        self._event_count = self.lost = 0
        self._ended = False
        self._looks_at = math.inf
        self.now = 0.0
        run = {"spec": spec.to_json(), "cluster": cluster.to_json()}
        self.history = History({"time": "simulated", **run})
        for number in range(cluster.workers):
            self._queue.add(cluster.late.get(number, 0.0), "join", number, 0)
        for number, outage in enumerate(cluster.outages):
            # The event names the outage, because the attempt that is lost is not known yet.
            self._queue.add(outage.at, "lose", outage.worker, number)

    @property
    def center(self) -> Vector:
        """A copy of the current center."""
        return self._core.center.vector.copy()

    @property
    def version(self) -> int:
        """Folds so far: one for each asynchronous commit, one for each synchronous round."""
        return self._core.ledger.version

    @property
    def samples(self) -> int:
        """Rows folded into the center so far."""
        return self._core.ledger.samples_folded

    @property
    def workers(self) -> Sequence[SimulatedWorker]:
        """The workers, in the order of their numbers."""
        return self._workers

    def run(self) -> None:
        """Run to the end."""
        while self.advance():
            pass

    def advance(self) -> bool:
        """Let the next thing happen; return False if the run has ended, and nothing happens."""
        if self._ended:
            return False
        if not self._queue:
            raise ClusterError(
                "Nothing is left to happen in simulated time, and the run has not ended: "
                f"{self._news().seats}."
            )
        event = self._queue.pop()
        self.now = event.at
        self._happen(event)
        if event.kind == "look" or self._core.ledger.events.events:
            self._look()
        return True

    def _happen(self, event: Event) -> None:
        worker = self._workers[event.worker]
        if event.kind == "join":
            self._take_seat(worker, event.worker, event.attempt)
        elif event.kind == "lose":
            self._lose(event, worker)
        elif event.kind == "look":
            self._looks_at = math.inf
        elif worker.session is not None and worker.attempt == event.attempt:
            # All else concerns nobody once the attempt is lost.
            act = {
                "reply": self._go_on,
                "computed": self._send,
                "arrival": self._arrive,
                "ask": self._ask,
                "rejoin": self._rejoin,
                "finish": self._finish,
            }
            act[event.kind](worker, worker.session)

    def _take_seat(self, worker: SimulatedWorker, number: int, attempt: int) -> None:
        """Let another attempt come, or the same one take its seat anew."""
        first, *rest = self._core.handle(JoinRequest(number, attempt), self.now)
        if not isinstance(first, SeatGrant):
            raise ParameterServerError(f"Attempt {attempt} expects a seat. Received: {first!r}.")
        if attempt == worker.attempt:
            worker.session = first.session
        else:
            worker.join(first.session)
        self._do(rest)
        # Rows are there when a worker joins.
        self._get_ready(worker, first.session)

    def _rejoin(self, worker: SimulatedWorker, session: ConnectionId) -> None:
        self._take_seat(worker, session.seat, session.attempt)

    def _get_ready(self, worker: SimulatedWorker, session: ConnectionId) -> None:
        steps = self._spec.steps_per_window() if worker.holds else 0
        ready = Ready(worker.holds, self._cluster.window_seconds(session.seat, steps))
        self._hear(session, ready, vector=np.empty_like(worker.before))

    def _lose(self, event: Event, worker: SimulatedWorker) -> None:
        if worker.session is not None:
            self._end(worker, worker.session, self._cluster.outages[event.attempt].seconds)

    def _end(self, worker: SimulatedWorker, session: ConnectionId, seconds: float) -> None:
        """Let an attempt be lost, and another one come after so many seconds."""
        if seconds < math.inf:
            self._queue.add(self.now + seconds, "join", session.seat, session.attempt + 1)
        worker.lose()
        self.lost += 1
        self._do(self._core.handle(Disconnect(session), self.now))

    def _hear(self, session: ConnectionId, message: Message, **parts: Any) -> None:
        """Let the server receive a message with what came with it, and do what it answers."""
        event = ReceivedMessage[Any](session, message, **parts)
        self._do(self._core.handle(event, self.now))

    def _go_on(self, worker: SimulatedWorker, session: ConnectionId) -> None:
        """Let a worker begin what its core wants, now that it has its answer."""
        match worker.wanted:
            case cores.Compute(window):
                self._later(self.now + worker.begin(window, self.now), "computed", session)
            case cores.RequestStep() | cores.RequestState():
                self._later(self._up.pass_through(0, self.now), "ask", session)
            case cores.StoreOptimizerState():
                layout = self._spec.layout
                size = 4 * layout.size + layout.state_section.nbytes
                self._later(self._up.pass_through(size, self.now), "ask", session)
            case cores.Reconnect():
                self._later(self.now + self._cluster.latency, "rejoin", session)
            case _:
                self._later(self.now + self._cluster.latency, "finish", session)

    def _send(self, worker: SimulatedWorker, session: ConnectionId) -> None:
        worker.computed += worker.seconds
        size = worker.send(session, self._wire)
        self._later(self._up.pass_through(size, self.now), "arrival", session)

    def _arrive(self, worker: SimulatedWorker, session: ConnectionId) -> None:  # noqa: ARG002
        try:
            self._do(self._core.handle(worker.deliver(), self.now))
        except RefusedError as refusal:
            worker.refuse(refusal)

    def _ask(self, worker: SimulatedWorker, session: ConnectionId) -> None:
        """Let the server hear what a worker asks for or hands over."""
        try:
            match worker.wanted:
                case cores.RequestStep(version):
                    self._hear(session, FetchStep(version))
                case cores.RequestState():
                    self._hear(session, FetchState())
                case cores.StoreOptimizerState(version, weights):
                    state = worker.shared_state(version)
                    self._hear(session, PutOptimizerState(version), vector=weights, state=state)
                    worker.confirm_hand_over()
                    self._later(self._down.pass_through(0, self.now), "reply", session)
        except RefusedError as refusal:
            worker.refuse(refusal)
            self._later(self._down.pass_through(0, self.now), "reply", session)

    def _finish(self, worker: SimulatedWorker, session: ConnectionId) -> None:
        worker.session = None
        self._hear(session, WorkerEnd())

    def _later(self, at: float, kind: str, session: ConnectionId) -> None:
        self._queue.add(at, kind, session.seat, session.attempt)

    def _do(self, actions: Sequence[Action]) -> None:
        """Give answers to their workers, who go on once these have reached them."""
        for action in actions:
            worker = (
                self._workers[action.to.seat]
                if isinstance(action, SendReply | RejectWaiter)
                else None
            )
            if worker is None or worker.session is None or isinstance(action, SeatGrant):
                continue
            if isinstance(action, RejectWaiter):
                raise action.error
            if self._give(worker, action):
                self._later(self._down.pass_through(action.size, self.now), "reply", action.to)

    def _give(self, worker: SimulatedWorker, sent: SendReply) -> bool:
        """Tell a worker's core an answer; return whether there was something to tell."""
        match sent.message:
            case Start() as message if sent.vector is not None:
                worker.start(message, sent.vector)
            case CommitReply() as message:
                worker.take(message, sent.vector, self._wire)
            case Step() as message if sent.vector is not None:
                worker.take_step(message, sent.vector, self._wire)
            case OptimizerState() if sent.state is not None:
                worker.take_state(sent.state)
            case _:
                return False
        return True

    # The driver

    def _look(self) -> None:
        """Take the server's news into the history, and do what the driver's core says."""
        update = self._news()
        looked = watches.StatusUpdate(
            update.seats,
            update.version,
            update.samples_folded,
            self.history.samples,
            skipped=self.history.samples_skipped,
        )
        self._tell(looked)
        self._look_at(self._watch.deadline + LOOK_SECONDS)

    def _look_at(self, at: float) -> None:
        """Let the driver look at a time, unless it looks before."""
        if not self._ended and at < self._looks_at:
            self._looks_at = at
            self._queue.add(at, "look", 0, 0)

    def _news(self) -> CenterUpdate:
        """Take in all events so far; return the state of the run with the last of them."""
        while True:
            update = self._driver_asks(Poll(self._event_count)).message
            if not isinstance(update, CenterUpdate):
                raise ParameterServerError(f"An update is expected. Received: {update!r}.")
            for event in update.events:
                self._event_count += 1
                if isinstance(event, EpochEnded):
                    self.history.add_epoch(
                        event,
                        results=self._results(event.state) if self._results else None,
                        validation=self._validated(event.epoch),
                    )
                    self._driver_asks(Command(None, None, epochs=event.epoch))
                    continue
                self.history.add(event)
                if isinstance(event, WorkerRecord) and event.window_seconds:
                    self._tell(watches.WindowTime(event.worker, event.window_seconds))
            if len(update.events) < EVENTS_PER_UPDATE:
                return update

    def _validated(self, epoch: int) -> Mapping[str, float] | None:
        if self._evaluate is None:
            return None
        snapshot = epoch * self._served.snapshots_per_epoch
        center = self._driver_asks(FetchCenter(snapshot, 0)).vector
        return None if center is None else self._evaluate(center.copy())

    def _driver_asks(self, message: Message) -> SendReply:
        first, *rest = self._core.handle(ReceivedMessage(DRIVER, message), self.now)
        self._do(rest)
        if not isinstance(first, SendReply):
            raise ParameterServerError(f"The driver expects an answer. Received: {first!r}.")
        return first

    def _tell(self, event: watches.MonitorEvent) -> None:
        for action in self._watch.handle(event, self.now):
            if isinstance(action, watches.FinishRun):
                self._ended = True
            elif isinstance(action, watches.FailRun):
                raise action.error
            elif isinstance(action, watches.Restart):
                self._restart(self._workers[action.worker], action.attempt)
            elif isinstance(action, watches.StartRun):
                self._driver_asks(Command(None, None, begin=True))
                # A worker that starts now, and is slow, would tell nothing that makes it look.
                self._look_at(self.now + LOOK_SECONDS)

    def _restart(self, worker: SimulatedWorker, attempt: int) -> None:
        if worker.session is not None and worker.session.attempt == attempt:
            self._end(worker, worker.session, 0.0)
