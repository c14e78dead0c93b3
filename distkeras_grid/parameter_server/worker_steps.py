"""Rounds in which workers make the steps: who catches up, and who sends the weights.

The server has the mean gradients and no weights. Now and then, and when a snapshot is due, one
worker sends its weights and its optimizer's state; `gradient_log` keeps these and the steps since.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from distkeras_grid.errors import RefusedError
from distkeras_grid.parameter_server.center import Center
from distkeras_grid.parameter_server.center_snapshots import Snapshots
from distkeras_grid.parameter_server.compression import DeltaEncoder
from distkeras_grid.parameter_server.gradient_log import (
    STEPS_BETWEEN_STATES,
    GradientLog,
    LoggedStep,
)
from distkeras_grid.parameter_server.ledger import Ledger
from distkeras_grid.parameter_server.messages import (
    CommitReply,
    Done,
    FetchStep,
    OptimizerState,
    PutOptimizerState,
    Step,
)
from distkeras_grid.parameter_server.server_events import (
    ReceivedMessage,
    SendReply,
)
from distkeras_grid.rules.finite_checks import is_finite
from distkeras_grid.spec import RunSpec
from distkeras_grid.weights import Vector


class WorkerSteps:
    """The part of a server's core that only such rounds need."""

    def __init__(
        self,
        spec: RunSpec,
        ledger: Ledger,
        center: Center,
        snapshots: Snapshots,
        encoder: DeltaEncoder,
        log: GradientLog,
    ) -> None:
        self.log = log
        self._spec, self._ledger, self._center = spec, ledger, center
        self._snapshots, self._encoder = snapshots, encoder
        # Seats that were asked for weights and state, and have not sent them.
        self._asked: set[int] = set()

    def begin(self, seat: int) -> tuple[int, bool]:
        """Let a seat start; return its version, and whether there is a state to fetch."""
        self.log.leave(seat)
        self._asked.discard(seat)
        return self.log.begin(seat)

    def add(self, gradient: Vector) -> None:
        """Keep the step that a round has made of its commits."""
        step = LoggedStep(gradient.copy(), self._ledger.learning_rate)
        self.log.add(self._ledger.version, step)

    def reply(self, seat: int, reply: CommitReply, *, first: bool) -> CommitReply:
        """Complete the reply to a commit of a round; the first worker may be asked for its state.

        A worker that has no windows left need not send its own if another one does, in this round
        or in a later one. If that one is lost, its next attempt sends it, and the run waits for it.
        """
        wanted = first and self._needs_state()
        if wanted:
            self._asked.add(seat)
        others = not wanted and self._waits_for_all and self._ledger.has_finished(seat)
        version = self._ledger.version if others else self.log.version
        return replace(reply, state_version=version, state_wanted=wanted)

    def ask_again(self, seat: int, reply: CommitReply) -> CommitReply:
        """Complete the reply to a commit that is not folded; ask whoever has not answered."""
        return replace(reply, state_version=self.log.version, state_wanted=seat in self._asked)

    def answer(self, event: ReceivedMessage[Any]) -> SendReply:
        """Answer a request for a step or for the optimizer's state, or weights and state."""
        match event.message:
            case FetchStep(version):
                step = self.log.step(event.sender.seat, version)
                size = self._encoder.bytes_of(step.gradient)
                reply = Step(step.learning_rate)
                return SendReply(event.sender, reply, step.gradient, size)
            case PutOptimizerState(version):
                return self._take_over(event, version)
            case _:
                state = self.log.promised(event.sender.seat)
                return SendReply(event.sender, OptimizerState(), size=state.nbytes, state=state)

    def _needs_state(self) -> bool:
        """Whether one worker of the round is to send its weights and its optimizer's state."""
        self.log.forget(self._ledger.version)
        behind = self._ledger.version - self.log.version
        ends = self._waits_for_all and self._ledger.all_finished
        return behind >= STEPS_BETWEEN_STATES or self._snapshots.is_waiting or ends

    @property
    def _waits_for_all(self) -> bool:
        """Whether the run cannot end without one of its workers."""
        workers = self._spec.workers
        return self._spec.quorum_of(workers) == workers and not self._ledger.stop

    def _take_over(self, event: ReceivedMessage[Any], version: int) -> SendReply:
        """Take the weights of a worker, and the state of its optimizer."""
        seat, weights, state = event.sender.seat, event.vector, event.state
        section = self._spec.layout.state_section
        if state is None or (weights.size, state.size) != (self._spec.size, section.nbytes):
            raise RefusedError(
                f"{self._spec.size} weights and {section.nbytes} bytes of the optimizer's state "
                f"are expected. Received: {weights.size} weights and "
                f"{'none' if state is None else state.size}."
            )
        finite = is_finite(weights) and section.is_finite(state)
        if version > self._ledger.version or not finite:
            raise RefusedError(
                f"Worker {seat} hands over weights and optimizer state that must be finite and of "
                f"version {self._ledger.version} at most. Received: version {version}, "
                f"{'finite' if finite else 'not finite'}."
            )
        # What the server has already may come again: the answer may have been lost.
        asked = seat in self._asked or self._ledger.has_finished(seat)
        if version > self.log.version and not asked:
            raise RefusedError(
                f"Worker {seat} is not asked for weights and optimizer state, and has windows left."
                f" Received: those of version {version}."
            )
        if self.log.receive(version, state):
            self._asked.discard(seat)
            self._center.replace(weights)
            self._snapshots.on_weights(version, self._center.vector)
            self.log.forget(self._ledger.version)
        return SendReply(event.sender, Done())
