"""A worker in simulated time: it trains windows, as the real one does, and is slow or lost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from distkeras_grid.engine.base import aligned_empty
from distkeras_grid.errors import NonFiniteLossError
from distkeras_grid.feeding.batches import Window
from distkeras_grid.parameter_server.frames import encoded_size
from distkeras_grid.parameter_server.messages import Exchanged, Start, WindowCommit
from distkeras_grid.parameter_server.state import Arrival, Session
from distkeras_grid.rules import (
    Accumulator,
    DeepGradientCompression,
    adopt_vector,
    propose_vector,
)
from distkeras_grid.simulation.cluster import Cluster
from distkeras_grid.simulation.plan import Plan, SeatRows

if TYPE_CHECKING:
    from distkeras_grid.simulation.learners import Learner
    from distkeras_grid.simulation.wire import SimulatedWire
    from distkeras_grid.weights import Vector

# What is saved as it is.
_NUMBERS = ("version", "attempt", "stop", "next_window", "steps", "started", "seconds", "computed")


class SimulatedWorker:
    """The worker of one seat.

    Parameters
    ----------
    number : int
        The seat.
    cluster : Cluster
        How fast it is.
    plan : Plan
        What it trains.
    learner : Learner
        What it trains with.
    rows : SeatRows
        What it trains on.

    Attributes
    ----------
    session : Session or None
        Its claim on the seat; None while it is not there, is lost or has finished.
    attempt : int
        Counts its lives, from 0.
    before : ndarray
        The weights that its window starts from.
    computed : float
        Simulated time for which it has computed [s].
    """

    def __init__(
        self, number: int, cluster: Cluster, plan: Plan, learner: Learner, rows: SeatRows
    ) -> None:
        self.session: Session | None = None
        self.attempt = -1
        weights = learner.weights()
        self.before: Vector = aligned_empty(weights.size, weights.dtype)
        np.copyto(self.before, weights)
        self.computed = 0.0
        self.rows = rows
        self._number, self._cluster, self._plan, self._learner = number, cluster, plan, learner
        self._sections = learner.layout.sections
        self._random = np.random.default_rng([cluster.seed, number])
        self._windows: Iterator[Window] = iter(())
        self._window: Window | None = None
        self._after: Vector | None = None
        self._sent: tuple[Arrival, Vector] | None = None
        self._accumulator: Accumulator | None = None
        self.stop = False
        self.next_window = self.steps = self.version = 0
        self.started = self.seconds = 0.0

    def join(self, session: Session) -> None:
        """Be there, as another attempt."""
        self.session, self.attempt = session, session.attempt

    def lose(self) -> None:
        """Be gone, with all that was not sent."""
        self.session = self._window = self._after = self._sent = None

    def start(self, message: Start, center: Vector) -> None:
        """Begin at the window that the server wants, from the center."""
        np.copyto(self.before, center)
        self._learner.renew(self.steps)
        self._accumulator = self._new_accumulator()
        self.stop, self.next_window = message.stop, message.next_sequence
        self.version = message.version
        self._windows = self._plan.windows(len(self.rows), self._number, self.next_window)

    def take(self, message: Exchanged, reply: Vector) -> None:
        """Take the rule's reply to a commit over."""
        rule = self._plan.rule
        if rule.steps_on_workers:
            # Here the reply is what the steps lead to, statistics included.
            np.copyto(self.before, reply)
        elif self._after is not None:
            adopt_vector(rule, self._sections, self._after, reply, self.before)
        self._after, self.stop, self.version = None, message.stop, message.version

    def begin(self, now: float) -> float | None:
        """Begin a window; return how long it will take, or None if there is none left."""
        self._window = None if self.stop else next(self._windows, None)
        if self._window is None:
            return None
        self.next_window = self._window.sequence + 1
        self.started, self.seconds = now, self._draw_seconds(self._window)
        return self.seconds

    def send(self, session: Session, wire: SimulatedWire) -> int:
        """Compute the window that was begun, and send its commit; return the vector's bytes.

        Raises
        ------
        NonFiniteLossError
            If its loss is NaN or infinite.
        """
        if self._window is None:
            raise ValueError(f"Worker {self._number} has begun no window.")
        window, self._window = self._window, None
        after, payload = (aligned_empty(self.before.size, self.before.dtype) for _ in range(2))
        result = self._learner.run(self.before, self.rows.gather(window), after)
        if not math.isfinite(result.loss):
            raise NonFiniteLossError(
                f"The loss became {result.loss} in epoch {window.epoch}, window {window.window} "
                f"of worker {self._number}: lower the learning rate, or choose another window."
            )
        propose_vector(self._plan.rule, self._sections, self.before, after, result.steps, payload)
        if self._accumulator is not None:
            self._accumulator.compress(payload, window.epoch)
        self._after = after
        commit = WindowCommit(
            sequence=window.sequence,
            version=self.version,
            epoch=window.epoch,
            window=window.window,
            steps=result.steps,
            samples=result.samples,
            loss=result.loss,
            metrics=result.metrics,
            started=self.started,
            seconds=self.seconds,
        )
        size = wire.send(payload)
        self._sent = Arrival(session, commit, encoded_size(commit, size)), payload
        return size

    def deliver(self) -> tuple[Arrival, Vector]:
        """Return the commit that was sent and its vector, which are on their way no longer."""
        if self._sent is None:
            raise ValueError(f"Worker {self._number} has sent nothing.")
        (arrival, payload), self._sent = self._sent, None
        self.steps += arrival.commit.steps
        return arrival, payload

    def to_tree(self) -> dict[str, Any]:
        """Return all that changes, for `distkeras_grid.simulation.saved_state.write`."""
        return {
            **{name: getattr(self, name) for name in _NUMBERS},
            "session": None if self.session is None else asdict(self.session),
            "begun": self._window is not None,
            "before": self.before,
            "after": self._after,
            "sent": None if self._sent is None else _saved(*self._sent),
            "held_back": None if self._accumulator is None else _vectors_of(self._accumulator),
            "random": self._random.bit_generator.state,
            "learner": self._learner.state(),
        }

    def restore(self, tree: Mapping[str, Any]) -> None:
        """Go on from what `to_tree` returned."""
        for name in _NUMBERS:
            setattr(self, name, tree[name])
        self.session = None if tree["session"] is None else Session(**tree["session"])
        np.copyto(self.before, tree["before"])
        self._after = tree["after"]
        self._sent = _restored(self.session, tree["sent"])
        self._accumulator = self._new_accumulator()
        if self._accumulator is not None and tree["held_back"] is not None:
            for name, vector in tree["held_back"].items():
                np.copyto(getattr(self._accumulator, name), vector)
        self._random.bit_generator.state = tree["random"]
        self._learner.restore(tree["learner"])
        first = self.next_window - int(tree["begun"])
        self._windows = self._plan.windows(len(self.rows), self._number, first)
        self._window = next(self._windows) if tree["begun"] else None

    def _new_accumulator(self) -> Accumulator | None:
        compression, workers = self._plan.compression, self._cluster.workers
        if not isinstance(compression, DeepGradientCompression):
            return None
        return Accumulator(compression, self._learner.layout, workers)

    def _draw_seconds(self, window: Window) -> float:
        cluster = self._cluster
        steps = sum(len(block) for block in window.blocks)
        seconds = cluster.window_seconds(self._number, steps)
        # Both are drawn always, so that one choice does not shift the numbers of the other.
        factor, lot = self._random.exponential(), self._random.random()
        if cluster.times == "exponential":
            seconds *= factor
        if lot < cluster.straggler_probability:
            seconds *= cluster.straggler_factor
        return seconds


def _vectors_of(accumulator: Accumulator) -> dict[str, Vector]:
    return {"residual": accumulator.residual, "velocity": accumulator.velocity}


def _saved(arrival: Arrival, payload: Vector) -> dict[str, Any]:
    return {"told": [arrival.commit.to_json(), arrival.bytes_up], "payload": payload}


def _restored(
    session: Session | None, saved: Mapping[str, Any] | None
) -> tuple[Arrival, Vector] | None:
    if session is None or saved is None:
        return None
    commit, bytes_up = saved["told"]
    return Arrival(session, WindowCommit.from_json(commit), bytes_up), saved["payload"]
