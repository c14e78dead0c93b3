"""A training run in simulated time: the server's own mind, driven by a queue of events.

Each window is really computed, when its commit is sent, because the size of a compressed commit
depends on the result. Only the clock is simulated.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distkeras_grid.errors import ClusterError, ConfigurationError, RefusedError
from distkeras_grid.history import History
from distkeras_grid.parameter_server.messages import (
    Exchanged,
    Finish,
    Message,
    Ready,
    Start,
    WindowCommit,
)
from distkeras_grid.parameter_server.mind import (
    Action,
    Dismiss,
    Join,
    Lost,
    Received,
    Seat,
    Send,
    ServerMind,
    Tick,
)
from distkeras_grid.parameter_server.state import Session
from distkeras_grid.records import EpochEnded
from distkeras_grid.rules import compression_of, rule_of
from distkeras_grid.rules.magnitudes import size_of
from distkeras_grid.simulation.cluster import Cluster
from distkeras_grid.simulation.events import Event, EventQueue, Link
from distkeras_grid.simulation.saved_state import read, write
from distkeras_grid.simulation.steps import RoundSteps
from distkeras_grid.simulation.wire import SimulatedWire
from distkeras_grid.simulation.worker import SimulatedWorker
from distkeras_grid.spec import LayoutSpec, RunSpec

if TYPE_CHECKING:
    from distkeras_grid.feeding.source import Source
    from distkeras_grid.simulation.learners import Learner, Stepper
    from distkeras_grid.weights import Vector

#: Returns the metrics of a center on validation data, each with the prefix ``val_``.
Evaluation = Callable[["Vector"], Mapping[str, float]]


class Simulation:
    """One run on a simulated cluster; the same arguments give the same run, bit for bit.

    Parameters
    ----------
    cluster : Cluster
        The workers and the network, with its ``batch_seconds``.
    spec : RunSpec
        The run.
    learners : sequence of Learner
        One for each worker; the weights of the first are the initial center.
    seats : sequence of Source
        The rows of each worker.
    evaluate : callable, optional
        Validates the center at the end of each epoch, in no simulated time.
    params : mapping, optional
        Added to ``history.params``, which has the run under ``spec``.
    stepper : Stepper, optional
        The workers' optimizer, for a rule with which workers make the steps of the rounds.

    Attributes
    ----------
    now : float
        Simulated seconds since the run began.
    history : History
        Windows, epochs and workers; all its times are simulated, ``params["time"]`` says so.
    lost : int
        Attempts that were lost.
    needed : int
        Number of workers that a synchronous round, and the end of the run, wait for.

    Raises
    ------
    ConfigurationError
        If there is not one learner and one seat for each worker, if their rows and weights are not
        those of the run, or if a stepper is missing or not needed.

    Examples
    --------
    Two workers descend the same parabola:

    >>> import numpy as np
    >>> from distkeras_grid.feeding.source import ArraySource
    >>> from distkeras_grid.simulation.learners import QuadraticLearner
    >>> from distkeras_grid.spec import AlgorithmSpec, RuleSpec, ScheduleSpec
    >>> learners = [QuadraticLearner(np.array([4.0]), 1.0, learning_rate=0.5) for _ in range(2)]
    >>> seats = [ArraySource([np.zeros((3, 1))], [np.zeros(3)]) for _ in range(2)]
    >>> spec = RunSpec(
    ...     algorithm=AlgorithmSpec(rule=RuleSpec(name="averaging")),
    ...     layout=LayoutSpec(trainable_size=1),
    ...     schedule=ScheduleSpec(rows=6, workers=2, batch_size=1, window=1),
    ... )
    >>> simulation = Simulation(Cluster(2, batch_seconds=0.25), spec, learners, seats)
    >>> simulation.run()
    >>> simulation.center.tolist(), simulation.history.training_seconds()
    ([0.5], 0.75)
    """

    def __init__(
        self,
        cluster: Cluster,
        spec: RunSpec,
        learners: Sequence[Learner],
        seats: Sequence[Source],
        evaluate: Evaluation | None = None,
        params: Mapping[str, Any] | None = None,
        stepper: Stepper | None = None,
    ) -> None:
        _check_parts(cluster, spec, learners, seats)
        rule = rule_of(spec.rule)
        if rule.traits.steps_on_workers != (stepper is not None):
            raise ConfigurationError(
                f"The rule {rule.name!r} takes "
                f"{'no' if stepper else 'a'} stepper. Received: {stepper!r}."
            )
        self._cluster, self._spec, self._evaluate = cluster, spec, evaluate
        self.needed = spec.quorum_of(cluster.workers)
        self._wire = SimulatedWire(compression_of(spec.exchange.compression), spec.size, rule)
        self._mind = ServerMind(spec, learners[0].weights())
        self._steps = RoundSteps(stepper, self._wire) if stepper else None
        self._workers = [
            SimulatedWorker(number, cluster, spec, learner, rows)
            for number, (learner, rows) in enumerate(zip(learners, seats, strict=True))
        ]
        self._up, self._down = (
            Link(cluster.server_bandwidth, cluster.bandwidth, cluster.latency) for _ in range(2)
        )
        self._queue = EventQueue()
        self._seen = self.lost = 0
        self._finished: set[int] = set()
        self.now = 0.0
        self.history = History({"time": "simulated", **self._identity(), **(params or {})})
        for number in range(cluster.workers):
            self._queue.add(cluster.late.get(number, 0.0), "join", number, 0)
        for number, outage in enumerate(cluster.outages):
            # The event names the outage, because the attempt that is lost is not known yet.
            self._queue.add(outage.at, "lose", outage.worker, number)

    @property
    def center(self) -> Vector:
        """A copy of the current center."""
        return self._mind.center.vector.copy()

    @property
    def version(self) -> int:
        """Folds so far: one for each asynchronous commit, one for each synchronous round."""
        return self._mind.books.version

    @property
    def samples(self) -> int:
        """Rows folded into the center so far."""
        return self._mind.books.samples_folded

    @property
    def workers(self) -> Sequence[SimulatedWorker]:
        """The workers, in the order of their seats."""
        return self._workers

    def run(self) -> None:
        """Run to the end.

        Raises
        ------
        NonFiniteLossError
            If a loss or a weight becomes NaN or infinite.
        RefusedError
            If a synchronous round takes longer than the run allows.
        ClusterError
            If the run waits for workers that never come back.
        """
        while self.advance():
            pass

    def advance(self) -> bool:
        """Process the next event; return False if the run has ended."""
        if len(self._finished) >= self.needed:
            return False
        if not self._queue:
            gone = sorted({*range(len(self._workers))} - self._finished)
            raise ClusterError(
                f"Worker {', '.join(map(str, gone))} is lost for ever and the run waits for it: "
                "let it come back (Outage.seconds), or ask for fewer with quorum."
            )
        event = self._queue.pop()
        self.now = event.at
        self._happen(event)
        self._record()
        return True

    def save(self, path: str | Path) -> None:
        """Write the state of the whole run to a local file, from which `load` continues.

        Parameters
        ----------
        path : str or pathlib.Path
            The file, which is replaced if it exists.
        """
        write(
            path,
            {
                "identity": self._identity_text(),
                "server": self._mind.to_state(),
                "wire": self._wire.to_tree(),
                "steps": None if self._steps is None else self._steps.to_state(),
                "workers": [worker.to_tree() for worker in self._workers],
                "links": [self._up.free_at, self._down.free_at],
                "queue": self._queue.to_json(),
                "counts": [self._seen, self.lost],
                "finished": sorted(self._finished),
                "now": self.now,
                "history": self.history.to_jsonl_text(),
            },
        )

    def load(self, path: str | Path) -> None:
        """Continue where `save` was called, in a run with the same arguments.

        Raises
        ------
        PathNotFoundError
            If there is no such file.
        DataError
            If it is not a saved simulation.
        ConfigurationError
            If it belongs to another run.
        """
        tree = read(path)
        if tree["identity"] != self._identity_text():
            raise ConfigurationError(
                f"{str(path)!r} holds another run: {tree['identity']}. "
                f"This one is {self._identity_text()}."
            )
        self._mind = ServerMind.from_state(self._spec, tree["server"])
        self._wire.restore(tree["wire"])
        if self._steps is not None:
            self._steps.restore(tree["steps"])
        for worker, saved in zip(self._workers, tree["workers"], strict=True):
            worker.restore(saved)
        self._up.free_at, self._down.free_at = tree["links"]
        self._queue = EventQueue(**tree["queue"])
        self._seen, self.lost = tree["counts"]
        self._finished = set(tree["finished"])
        self.now = tree["now"]
        self.history = History.from_jsonl_text(tree["history"])

    def _happen(self, event: Event) -> None:
        worker = self._workers[event.worker]
        if event.kind == "join":
            self._join(event, worker)
        elif event.kind == "lose":
            self._lose(event, worker)
        elif event.kind == "overdue":
            self._check_round()
        elif worker.session is not None and worker.session.attempt == event.attempt:
            # All other events are ignored after the attempt has been lost.
            act = {"computed": self._send, "arrival": self._arrive, "finish": self._finish}
            act.get(event.kind, self._begin)(worker, worker.session)

    def _join(self, event: Event, worker: SimulatedWorker) -> None:
        first, *rest = self._mind.handle(Join(event.worker, event.attempt), self.now)
        if isinstance(first, Seat):
            worker.join(first.session)
            self._do(rest)
            ready = Ready(len(worker.rows), 0.0)
            self._hear(first.session, ready, np.empty_like(worker.before))

    def _lose(self, event: Event, worker: SimulatedWorker) -> None:
        session = worker.session
        if session is None:
            return
        back = self.now + self._cluster.outages[event.attempt].seconds
        self._queue.add(back, "join", event.worker, session.attempt + 1)
        worker.lose()
        self.lost += 1
        self._do(self._mind.handle(Lost(session), self.now))

    def _check_round(self) -> None:
        self._do(self._mind.handle(Tick(), self.now))

    def _hear(
        self, session: Session, message: Message, vector: Vector | None = None, bytes_up: int = 0
    ) -> None:
        """Pass a message to the server, and carry out its actions."""
        before = self._mind.deadline
        size = size_of(vector) if vector is not None and isinstance(message, WindowCommit) else None
        event = Received(session, message, vector, bytes_up, size)
        self._do(self._mind.handle(event, self.now))
        if self._mind.deadline not in (before, math.inf):
            self._later(self._mind.deadline, "overdue", session)

    def _begin(self, worker: SimulatedWorker, session: Session) -> None:
        seconds = worker.begin(self.now)
        if seconds is None:
            self._later(self.now + self._cluster.latency, "finish", session)
        else:
            self._later(self.now + seconds, "computed", session)

    def _send(self, worker: SimulatedWorker, session: Session) -> None:
        worker.computed += worker.seconds
        size = worker.send(session, self._wire)
        self._later(self._up.pass_through(size, self.now), "arrival", session)

    def _arrive(self, worker: SimulatedWorker, session: Session) -> None:
        arrival, payload = worker.deliver()
        try:
            self._hear(session, arrival.commit, payload, arrival.bytes_up)
        except RefusedError as refusal:
            worker.refuse(refusal)

    def _finish(self, worker: SimulatedWorker, session: Session) -> None:
        worker.session = None
        self._finished.add(session.seat)
        self._hear(session, Finish())

    def _later(self, at: float, kind: str, session: Session) -> None:
        self._queue.add(at, kind, session.seat, session.attempt)

    def _do(self, actions: Sequence[Action]) -> None:
        """Deliver answers to workers, which continue when these have arrived."""
        if self._steps is not None:
            self._steps.make(actions, self._mind, self.now)
        for action in actions:
            worker = self._workers[action.to.seat] if isinstance(action, Send | Dismiss) else None
            if worker is None or worker.session is None or isinstance(action, Seat):
                continue
            if isinstance(action, Dismiss):
                raise action.error
            if isinstance(action.message, Start) and action.vector is not None:
                center = self._wire.greet(worker.session.seat, action.vector)
                worker.start(action.message, center)
                at = self._down.pass_through(action.size, self.now)
            elif isinstance(action.message, Exchanged):
                at = self._reply(worker, action.message, action)
            else:
                continue
            self._later(at, "reply", action.to)

    def _reply(self, worker: SimulatedWorker, message: Exchanged, sent: Send) -> float:
        """Give a worker its reply; return when it has arrived."""
        before = worker.version
        if self._steps is not None:
            worker.take(message, self._mind.center.vector)
            return self._fetch(
                self._steps.bytes_of(before, message.version), message.version - before
            )
        reply = worker.before if sent.vector is None else sent.vector
        worker.take(message, self._wire.receive(sent.to.seat, reply, sent.size))
        return self._down.pass_through(sent.size, self.now)

    def _fetch(self, size: int, steps: int) -> float:
        """Return when a worker has this number of steps, requested one after the other."""
        asking = 2 * self._cluster.latency
        return self._down.pass_through(size, self.now + asking) + (steps - 1) * asking

    def _record(self) -> None:
        """Add the server's new events to the history."""
        for event in self._mind.books.events.after(self._seen, sys.maxsize):
            self._seen += 1
            if isinstance(event, EpochEnded):
                found = self._evaluate(self.center) if self._evaluate else None
                self.history.add_epoch(event, validation=found)
            else:
                self.history.add(event)
        # Events that have been recorded are dropped now, and not saved.
        self._mind.books.events.after(self._seen, 0)

    def _identity(self) -> dict[str, Any]:
        """Return what a run must share with a saved one to continue it."""
        return {"spec": self._spec.to_json(), "cluster": self._cluster.to_json()}

    def _identity_text(self) -> str:
        return json.dumps(self._identity(), sort_keys=True)


def _check_parts(
    cluster: Cluster, spec: RunSpec, learners: Sequence[Learner], seats: Sequence[Source]
) -> None:
    """Refuse parts that do not belong to the same run."""
    if not len(learners) == len(seats) == cluster.workers == spec.workers:
        raise ConfigurationError(
            f"The cluster has {cluster.workers} workers. Received: {len(learners)} "
            f"learners, {len(seats)} seats and a run of {spec.workers} workers."
        )
    rows, layout = sum(map(len, seats)), LayoutSpec.of(learners[0].layout)
    if (rows, layout) != (spec.rows, spec.layout):
        raise ConfigurationError(
            f"The run has {spec.rows} rows and {spec.layout}. Received: seats of {rows} rows in "
            f"all and learners of {layout}."
        )
