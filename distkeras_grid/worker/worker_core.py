"""The worker's core: decides when to compute, to exchange, to make steps of a round, and to end.

The core decides and does the rule's arithmetic. It has no engine, connection, clock or lock. Its
driver passes events to `handle` and carries out the actions that it returns. A real worker drives
it with an engine and a client (`distkeras_grid.worker.loop`), a simulated one from an event queue.

The last action that `handle` returns is a request, and its result is the next event. The actions
before it are orders for the engine and have no result. After `FinishWorker` no event follows,
unless another server takes the place of the worker's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from distkeras_grid.errors import GridError, NonFiniteLossError, RefusedError
from distkeras_grid.outliers import Validate, ask
from distkeras_grid.parameter_server.messages import CommitReply, GoOn, Start, Step, WindowCommit
from distkeras_grid.rows import aligned_empty
from distkeras_grid.rules import Accumulator, Rule, apply_reply, compute_commit
from distkeras_grid.rules.finite_checks import is_finite
from distkeras_grid.worker.worker_state import check_same, copy_checked

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from distkeras_grid.feeding.batches import BatchSampler, Window
    from distkeras_grid.records import LocalSet, WindowResult
    from distkeras_grid.weights import Vector, WeightLayout
    from distkeras_grid.worker.worker_state import WorkerState

# -- events: what has happened ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartAnswer:
    """The server lets the worker start from a center; this can happen again after `Reconnect`."""

    start: Start  # The server's answer
    # The weights that came with it, shape ``(layout.size,)``; they are copied
    center: Vector = field(repr=False)


@dataclass(frozen=True, slots=True)
class WindowAnswer:
    """The engine has trained a window; the resulting weights are in ``Compute.after``."""

    result: WindowResult  # What the engine tells of it
    # started and seconds: When the window began [Unix seconds], and how long it took [s]
    started: float
    seconds: float
    # With the last window of an iteration on a local set: what is told of it
    local: LocalSet | None = None


@dataclass(frozen=True, slots=True)
class StateAnswer:
    """Another worker's optimizer state has arrived, as `RequestState` asked."""

    # Shape ``(nbytes,)``, ``uint8``; the engine's ``step_section`` is its layout
    state: NDArray[np.uint8] = field(repr=False)


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The server has the weights and the optimizer state of this worker."""


@dataclass(frozen=True, slots=True)
class RestoreAnswer:
    """What an earlier attempt kept has arrived, as `RestoreWorkerState` asked."""

    sequence: int  # Number of the window that was due then
    version: int  # Version of the center that the attempt had
    own: WorkerState = field(repr=False)  # What it kept


@dataclass(frozen=True, slots=True)
class RejectionAnswer:
    """The server has refused the request, and nothing has changed."""

    error: RefusedError


Event: TypeAlias = (
    StartAnswer
    | WindowAnswer
    | CommitReply
    | Step
    | StateAnswer
    | HandedOver
    | GoOn
    | RestoreAnswer
    | RejectionAnswer
)

# -- actions: what is to be done ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetLearningRate:
    """Order: continue with this learning rate."""

    value: float


@dataclass(frozen=True, slots=True)
class SetScheduleOffset:
    """Order: let schedules go on after this number of batches; see `Engine.set_schedule_offset`."""

    steps: int


@dataclass(frozen=True, slots=True)
class ResetEngine:
    """Order: bring back the state before the first window; `SetScheduleOffset` follows."""


@dataclass(frozen=True, slots=True)
class LoadOptimizerState:
    """Order: continue with this optimizer state, which came with `StateAnswer`."""

    state: NDArray[np.uint8] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Restore:
    """Order: continue from an earlier attempt's state."""

    state: Mapping[str, NDArray[Any]] = field(repr=False)
    # Whether also from its part of the optimizer that all workers share. Otherwise that is left as
    # it is.
    shared: bool


@dataclass(frozen=True, slots=True)
class Apply:
    """Order: take a step from `weights` with a gradient; `weights` receives the result."""

    gradient: Vector = field(repr=False)
    weights: Vector = field(repr=False)


@dataclass(frozen=True, slots=True)
class Compute:
    """Request: train a window. Its result is `WindowAnswer`."""

    window: Window
    before: Vector = field(repr=False)
    after: Vector = field(repr=False)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Request: send a commit. Its result is `CommitReply` or `RejectionAnswer`.

    The rule's reply is then in `reply`, unless the rule has none.
    """

    commit: WindowCommit
    payload: Vector = field(repr=False)
    reply: Vector = field(repr=False)


@dataclass(frozen=True, slots=True)
class RequestStep:
    """Request: fetch the mean gradient of the round after a version into `out`.

    Its result is `Step` or `RejectionAnswer`.
    """

    version: int
    out: Vector = field(repr=False)


@dataclass(frozen=True, slots=True)
class RequestState:
    """Request: fetch the optimizer state. Its result is `StateAnswer` or `RejectionAnswer`."""


@dataclass(frozen=True, slots=True)
class StoreOptimizerState:
    """Request: send the weights of a version and the engine's optimizer state to the server."""

    version: int
    weights: Vector = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoreWorkerState:
    """Request: store the states of worker and engine. Its result is `GoOn`."""

    # sequence and version: Number of the window that is due, and version of the center that the
    # worker has
    sequence: int
    version: int
    # before and offset and residuals: As in `WorkerState`; not copied
    before: Vector = field(repr=False)
    offset: int
    residuals: dict[str, NDArray[Any]] | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class RestoreWorkerState:
    """Request: fetch what an earlier attempt kept. Its result is `RestoreAnswer`."""


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Request: take the seat again, as a late or a new worker does. Its result is `StartAnswer`."""


@dataclass(frozen=True, slots=True)
class FinishWorker:
    """Tell the server that there are no windows left."""


Action: TypeAlias = (
    SetLearningRate
    | SetScheduleOffset
    | ResetEngine
    | LoadOptimizerState
    | Restore
    | Apply
    | Compute
    | Exchange
    | RequestStep
    | RequestState
    | StoreOptimizerState
    | StoreWorkerState
    | RestoreWorkerState
    | Reconnect
    | FinishWorker
)

# -- the core -----------------------------------------------------------------------------------


class WorkerCore:
    """Decides what one worker does.

    `validate`: the user's function, which says of a window why it must not be folded.
    `send_buffer`: memory for what is sent, shape ``(layout.size,)``, at a multiple of 64 bytes; by
    default new memory.
    `before, after, payload`: weights before and after the window, and what is sent; shape
    ``(layout.size,)``.
    """

    def __init__(
        self,
        worker: int,
        rule: Rule,
        layout: WeightLayout,
        policy: BatchSampler,
        *,
        accumulator: Callable[[], Accumulator] | None = None,
        sends_nonfinite: bool = False,
        validate: Validate | None = None,
        dtype: Any = np.float32,
        send_buffer: Vector | None = None,
    ) -> None:
        self._sends_all, self._validate = sends_nonfinite, validate
        self._worker, self._rule, self._sections = worker, rule, layout.sections
        self._policy = policy
        self._new_accumulator = accumulator
        self._makes_steps = rule.traits.steps_on_workers
        self._accumulator: Accumulator | None = None
        self._windows: Iterator[Window] = iter(())
        self._window: Window | None = None
        self.before, self.after = (aligned_empty(layout.size, dtype) for _ in range(2))
        self.payload = aligned_empty(layout.size, dtype) if send_buffer is None else send_buffer
        self.phase = "starting"
        self.version = self.samples = 0
        # The newest version whose weights the server needs not from this worker, and the version of
        # the other workers.
        self.state_version = self.newest = 0
        self.stop = False
        # Sequence number of the next window.
        self.sequence = 0
        # While the seat is taken again: the server's version must be greater than this.
        self.rejoins_for: int | None = None
        # Whether the server has asked for weights and state, and for what the worker keeps.
        self.hands_over = False
        self.keeps = False
        # Batches of earlier attempts behind the schedules of the optimizer.
        self.offset = 0
        # Windows before this one are trained again, and not sent.
        self.repeats_until = 0
        # The rates of those windows, each with the epoch from which it counts.
        self.rates: tuple[tuple[int, float], ...] = ()
        self._start_message: Start | None = None

    def handle(self, event: Event) -> list[Action]:
        """Process an event, and return what is to be done."""
        expected, react = _REACTIONS[type(event)]
        if self.phase not in expected:
            raise GridError(
                f"{type(event).__name__} is not due while worker {self._worker} is {self.phase}."
            )
        return react(self, event)

    # -- the start ------------------------------------------------------------------------------

    def _start(self, event: StartAnswer) -> list[Action]:
        start = event.start
        if self.rejoins_for is not None and start.version <= self.rejoins_for:
            raise RefusedError(
                f"Worker {self._worker} asked for the step after version {self.rejoins_for}, which "
                f"the server does not keep. Received: the weights of version {start.version}."
            )
        np.copyto(self.before, event.center)
        self.version = self.state_version = start.version
        self.newest, self.stop = start.newest, start.stop
        self._plan_from(start.next_sequence)
        if self.phase == "rejoining":
            return self._begin(start, [])
        if self._new_accumulator is not None:
            self._accumulator = self._new_accumulator()
        if start.has_worker_state and not start.stop and self._has_windows(start.next_sequence):
            self._start_message, self.phase = start, "recalling"
            return [RestoreWorkerState()]
        if not self._makes_steps:
            self.offset = self._batches_done(start.next_sequence)
            return self._begin(start, [SetScheduleOffset(self.offset)])
        return self._begin(start, [])

    def _on_restore(self, event: RestoreAnswer) -> list[Action]:
        """Go on from what an earlier attempt kept, as far as the server has not gone on since."""
        start, own = self._start_message, event.own
        if start is None:
            raise GridError(f"Worker {self._worker} was not told to start.")
        self._start_message = None
        due, newest = start.next_sequence, start.newest
        residuals, former = residual_of(self._accumulator) or {}, own.residuals or {}
        check_same(residuals, former)
        if event.sequence == due:
            # Otherwise a part has been sent since, nobody knows which, and would be sent twice.
            copy_checked(residuals, former)
        if (event.sequence, event.version) == (due, newest):
            copy_checked({"before": self.before}, {"before": own.before})
            self.version, self.offset = newest, own.offset
            return self._begin(start, [Restore(own.engine, shared=True)], caught_up=True)
        if self._makes_steps:
            return self._begin(start, [Restore(own.engine, shared=False)])
        traits = self._rule.traits
        if traits.keeps_weights:
            copy_checked({"before": self.before}, {"before": own.before})
        orders: list[Action] = [Restore(own.engine, shared=True)]
        if not traits.answers:
            # What the windows since then made of the worker depends on nobody else.
            self.repeats_until, self.rates, self.offset = due, start.rates, own.offset
            self._plan_from(event.sequence)
            return self._begin(start, orders)
        gap = self._batches_done(due) - self._batches_done(event.sequence)
        self.offset = own.offset + gap
        orders.append(SetScheduleOffset(self.offset))
        return self._begin(start, orders)

    def _begin(
        self, start: Start, orders: list[Action], *, caught_up: bool = False
    ) -> list[Action]:
        """Begin with the window that is due, after the steps that the others have made."""
        if start.learning_rate is not None:
            orders.append(SetLearningRate(start.learning_rate))
        if not self._makes_steps:
            return orders + self._next_window()
        # An earlier request is repeated if it is still needed.
        self.hands_over = False
        if start.has_state and not caught_up:
            self.phase = "state"
            return [*orders, RequestState()]
        self.rejoins_for = None
        return orders + self._catch_up()

    def _batches_done(self, sequence: int) -> int:
        """Return the batches behind the optimizer's schedule."""
        return self._policy.steps_before(sequence)

    def _has_windows(self, sequence: int) -> bool:
        return next(self._policy.windows(sequence), None) is not None

    def _plan_from(self, sequence: int) -> None:
        self.sequence, self._windows = sequence, self._policy.windows(sequence)

    def _take_state(self, event: StateAnswer) -> list[Action]:
        self.rejoins_for = None
        return [LoadOptimizerState(event.state), *self._catch_up()]

    def _rejoin(self, beyond: int) -> list[Action]:
        self.phase, self.rejoins_for = "rejoining", beyond
        return [Reconnect()]

    # -- windows --------------------------------------------------------------------------------

    def _next_window(self) -> list[Action]:
        self._window = None if self.stop else next(self._windows, None)
        if self._window is None:
            return self._end()
        self.sequence = self._window.sequence + 1
        if not self.keeps:
            return self._compute()
        self.keeps, self.phase = False, "keeping"
        return [self._keeping()]

    def _keeping(self) -> StoreWorkerState:
        due = self.sequence - 1
        residuals = residual_of(self._accumulator)
        return StoreWorkerState(due, self.version, self.before, self.offset, residuals)

    def _on_store(self, message: GoOn) -> list[Action]:
        self.stop, rate = message.stop, message.learning_rate
        if self.stop:
            self._window = None
            return self._end()
        return [*([] if rate is None else [SetLearningRate(rate)]), *self._compute()]

    def _compute(self) -> list[Action]:
        if self._window is None:
            raise GridError(f"Worker {self._worker} has begun no window.")
        self.phase = "computing"
        orders: list[Action] = []
        if self.rates:
            then = [rate for epoch, rate in self.rates if epoch <= self._window.epoch]
            orders = [SetLearningRate(rate) for rate in then[-1:]]
            if self._window.sequence >= self.repeats_until:
                self.rates = ()
        return [*orders, Compute(self._window, self.before, self.after)]

    def _propose(self, event: WindowAnswer) -> list[Action]:
        window, self._window = self._window, None
        if window is None:
            raise GridError(f"Worker {self._worker} has begun no window.")
        result = event.result
        if not _is_finite(result.loss) and not self._sends_all:
            raise NonFiniteLossError(
                f"The loss became {result.loss} in epoch {window.epoch}, window {window.window} "
                f"of worker {self._worker}: lower the learning rate, or look for values in the "
                "data that are not finite or not scaled."
            )
        if window.sequence < self.repeats_until:
            np.copyto(self.before, self.after)
            return self._next_window()
        compute_commit(
            self._rule, self._sections, self.before, self.after, result.steps, self.payload
        )
        reason = ""
        if self._validate is not None:
            reason = ask(self._validate, result.loss, result.metrics, self.payload)
        if self._accumulator is not None:
            self._compress(result.loss, self._accumulator, window.epoch)
        commit = WindowCommit(
            sequence=window.sequence,
            version=self.version,
            epoch=window.epoch,
            window=window.window,
            steps=result.steps,
            samples=result.samples,
            loss=result.loss,
            metrics=result.metrics,
            state=result.state,
            sources=result.sources,
            learning_rate=result.learning_rate,
            started=event.started,
            seconds=event.seconds,
            local=event.local,
            reason=reason,
        )
        self.samples += result.samples
        self.phase = "exchanging"
        # The reply is received where the next window starts. For most rules it is just that.
        return [Exchange(commit, self.payload, self.before)]

    def _compress(self, loss: float | None, accumulator: Accumulator, epoch: int) -> None:
        """Hold back the smaller changes, unless nothing of the window will be folded."""
        if self._sends_all and not (_is_finite(loss) and is_finite(self.payload)):
            # One number says it. Which are the largest is not known with NaN among them.
            self.payload.fill(0)
            self.payload[0] = np.nan
            return
        accumulator.compress(self.payload, epoch)

    def _take_reply(self, message: CommitReply) -> list[Action]:
        self.stop, self.keeps = message.stop, message.keep
        if message.skipped and self._new_accumulator is not None:
            # What is held back of the window is as wrong as what was sent.
            self._accumulator = self._new_accumulator()
        if self._makes_steps:
            self.newest = message.version
            self.state_version = max(self.state_version, message.state_version)
            self.hands_over = message.state_wanted
            return self._catch_up()
        self.version = message.version
        orders: list[Action] = []
        if message.skipped:
            # The center is in place of the weights; the optimizer may hold what spoiled them.
            self.offset = self._batches_done(self.sequence)
            orders = [ResetEngine(), SetScheduleOffset(self.offset)]
        else:
            apply_reply(self._rule, self._sections, self.after, self.before, out=self.before)
        if message.learning_rate is not None:
            orders.append(SetLearningRate(message.learning_rate))
        return orders + self._next_window()

    def _end(self) -> list[Action]:
        if self._makes_steps and self.state_version < self.version:
            return self._hand_over()
        self.phase = "done"
        return [FinishWorker()]

    # -- the steps of the rounds, where workers make them ---------------------------------------

    def _catch_up(self) -> list[Action]:
        if self.version < self.newest:
            self.phase = "steps"
            # The result of the last window has been sent, so its memory is free.
            return [RequestStep(self.version, self.after)]
        return self._hand_over() if self.hands_over else self._next_window()

    def _step(self, step: Step) -> list[Action]:
        orders: list[Action] = []
        if step.learning_rate is not None:
            orders.append(SetLearningRate(step.learning_rate))
        orders.append(Apply(gradient=self.after, weights=self.before))
        self.version += 1
        return orders + self._catch_up()

    def _hand_over(self) -> list[Action]:
        if not is_finite(self.before):
            raise NonFiniteLossError(
                f"After step {self.version} the weights of worker {self._worker} contain NaN or "
                "infinity: lower the learning rate, or look for values in the data that are not "
                "scaled."
            )
        self.phase = "handing over"
        return [StoreOptimizerState(self.version, self.before)]

    def _handed_over(self, _: HandedOver) -> list[Action]:
        self.state_version, self.hands_over = self.version, False
        return self._next_window()

    def _refused(self, event: RejectionAnswer) -> list[Action]:
        if self.phase == "steps":
            # No steps are kept for a worker that was lost for a while; it rejoins as a late one.
            return self._rejoin(beyond=self.version)
        # The server checks each commit, so the worker checks only what was refused.
        if self.phase == "exchanging" and not is_finite(self.payload):
            raise NonFiniteLossError(str(event.error)) from event.error
        raise event.error


def _is_finite(loss: float | None) -> bool:
    return loss is None or math.isfinite(loss)


def residual_of(accumulator: Accumulator | None) -> dict[str, NDArray[Any]] | None:
    """Return what compression has not sent yet, by name; None if commits are sent whole."""
    if accumulator is None:
        return None
    return {"residual": accumulator.residual, "velocity": accumulator.velocity}


_REACTIONS: Mapping[type, tuple[frozenset[str], Callable[[WorkerCore, Any], list[Action]]]] = {
    StartAnswer: (frozenset({"starting", "rejoining"}), WorkerCore._start),
    WindowAnswer: (frozenset({"computing"}), WorkerCore._propose),
    CommitReply: (frozenset({"exchanging"}), WorkerCore._take_reply),
    Step: (frozenset({"steps"}), WorkerCore._step),
    StateAnswer: (frozenset({"state"}), WorkerCore._take_state),
    GoOn: (frozenset({"keeping"}), WorkerCore._on_store),
    RestoreAnswer: (frozenset({"recalling"}), WorkerCore._on_restore),
    HandedOver: (frozenset({"handing over"}), WorkerCore._handed_over),
    RejectionAnswer: (
        frozenset({"exchanging", "steps", "state", "handing over", "keeping", "recalling"}),
        WorkerCore._refused,
    ),
}
