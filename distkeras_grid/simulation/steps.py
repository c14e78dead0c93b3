"""The steps that all workers make with the mean gradients of the rounds, computed only once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distkeras_grid.parameter_server.messages import Exchanged, FetchStep, HandOver
from distkeras_grid.parameter_server.mind import Action, Received, Send, ServerMind

if TYPE_CHECKING:
    from distkeras_grid.simulation.learners import Stepper
    from distkeras_grid.simulation.wire import SimulatedWire


class RoundSteps:
    """Makes the step of each round, and gives the server the result at once.

    Real workers all make the same step, each with its own optimizer, and one of them sends the
    result to the server every 16 rounds. This takes no simulated time.

    Parameters
    ----------
    stepper : Stepper
        The workers' optimizer.
    wire : SimulatedWire
        Form in which gradients are sent.
    """

    def __init__(self, stepper: Stepper, wire: SimulatedWire) -> None:
        self._stepper = stepper
        self._wire = wire
        # Bytes of each step, from version 0 on.
        self._sizes: list[int] = []

    def make(self, actions: Sequence[Action], mind: ServerMind, now: float) -> None:
        """Make the step of the round that these answers complete, if they complete one."""
        version = mind.books.version
        closing = next(
            (a for a in actions if isinstance(a, Send) and isinstance(a.message, Exchanged)), None
        )
        if closing is None or version == len(self._sizes):
            return
        ask = Received(closing.to, FetchStep(version - 1))
        (step,) = (a for a in mind.handle(ask, now) if isinstance(a, Send))
        gradient, weights = np.array(step.vector), mind.center.vector.copy()
        self._sizes.append(self._wire.send(gradient))
        self._stepper.step(gradient, weights)
        mind.handle(Received(closing.to, HandOver(version), weights), now)

    def bytes_of(self, since: int, version: int) -> int:
        """Return the bytes of the steps after version `since`, up to `version`."""
        return sum(self._sizes[since:version])

    def to_state(self) -> dict[str, Any]:
        """Return what changes, as a plain tree."""
        return {"stepper": self._stepper.state(), "sizes": list(self._sizes)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `to_state` returned."""
        self._stepper.restore(state["stepper"])
        self._sizes = list(state["sizes"])
