"""How a worker catches up with the others if workers make the steps of the rounds.

All workers have the same weights and the same optimizer state, because they apply the same
optimizer to the same mean gradients. The server keeps both, as one of the workers sent them last,
and the steps since then. A worker that starts, or comes late, repeats these steps and then has the
state of the others, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import RefusedError
from distkeras_grid.parameter_server.checkpoint_state import SavedReplay
from distkeras_grid.weights import Vector

#: Steps after which the server asks for newer weights. A worker that starts makes at most as many.
STEPS_BETWEEN_STATES = 16
#: Most steps that are kept. A worker that is further behind, such as one that hangs while a quorum
#: continues without it, starts again from the newest weights.
MOST_STEPS = 2 * STEPS_BETWEEN_STATES


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One step."""

    # The whole vector: mean gradient and statistics, shape ``(size,)``, ``float32``
    gradient: Vector
    learning_rate: float | None  # The rate that the driver had set when the round closed


class GradientLog:
    """Weights and optimizer state of one version, and the steps since.

    `state`: the optimizer's state, shape ``(bytes,)``, ``uint8``; None for the initial state, or if
    it has none. A newer state is a new array, so the old one can still be read.
    """

    def __init__(self) -> None:
        self.version = 0
        self.state: NDArray[np.uint8] | None = None
        self.at: dict[int, int] = {}
        self._steps: dict[int, LoggedStep] = {}
        # The optimizer's state that each seat was promised at its start.
        self._promised: dict[int, NDArray[np.uint8]] = {}

    def add(self, version: int, step: LoggedStep) -> None:
        """Keep the step that leads from a version to the next."""
        self._steps[version] = step

    def begin(self, seat: int) -> tuple[int, bool]:
        """Let a seat start; return the version, and whether there is a state to fetch."""
        self.at[seat] = self.version
        if self.state is None:
            return self.version, False
        self._promised[seat] = self.state
        return self.version, True

    def step(self, seat: int, version: int) -> LoggedStep:
        """Return the step that follows the version of a seat."""
        if version not in self._steps:
            known = f"{min(self._steps)} to {max(self._steps)}" if self._steps else "none"
            raise RefusedError(
                f"Steps after versions {known} are kept. Received: version {version} of worker "
                f"{seat}. Join again to begin from version {self.version}."
            )
        self._promised.pop(seat, None)
        self.at[seat] = version
        return self._steps[version]

    def promised(self, seat: int) -> NDArray[np.uint8]:
        """Return the optimizer's state that a seat started with."""
        if seat not in self._promised:
            raise RefusedError(
                f"Worker {seat} was promised no optimizer state at its start, or has gone on since."
                " Received: a request for it."
            )
        return self._promised[seat]

    def receive(self, version: int, state: NDArray[np.uint8]) -> bool:
        """Take the optimizer's state of a version; return whether it is newer.

        It is not copied, so the weights that lie before it stay, too.
        """
        if version <= self.version:
            return False
        self.version, self.state = version, state if state.size else None
        return True

    def lose(self, seat: int) -> None:
        """Stop waiting for a seat whose connection broke; its promised state is kept."""
        self.at.pop(seat, None)

    def leave(self, seat: int) -> None:
        """Drop what is kept only for a seat whose worker has finished or was replaced."""
        self.lose(seat)
        self._promised.pop(seat, None)

    def forget(self, newest: int) -> None:
        """Drop the steps that no worker needs, and those beyond `MOST_STEPS`."""
        oldest = max(min([self.version, *self.at.values()]), newest - MOST_STEPS)
        for version in [version for version in self._steps if version < oldest]:
            del self._steps[version]

    def to_saved(self) -> dict[str, Any]:
        """Return what another execution of the run begins with. Its arrays do not change."""
        return {
            "version": self.version,
            "state": self.state,
            "steps": {
                str(version): {"gradient": step.gradient, "rate": step.learning_rate}
                for version, step in self._steps.items()
            },
        }

    @classmethod
    def from_saved(cls, saved: SavedReplay) -> Self:
        """Build the replay that `to_saved` described."""
        replay = cls()
        replay.version, replay.state = saved.version, saved.state
        replay._steps = {
            int(version): LoggedStep(step.gradient, step.rate)
            for version, step in saved.steps.items()
        }
        return replay
