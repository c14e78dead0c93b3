"""The steps of a worker whose own optimizer makes them, by the mean gradients of the rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from distkeras_grid.errors import NonFiniteLossError, RefusedError
from distkeras_grid.parameter_server.center import is_finite

if TYPE_CHECKING:
    from distkeras_grid.engine.base import SteppingEngine
    from distkeras_grid.parameter_server.client import WorkerClient
    from distkeras_grid.parameter_server.messages import Exchanged, Start, Step
    from distkeras_grid.weights import Vector


class Steps:
    """Keeps a worker where the others are: at the same weights, with the same optimizer state.

    Parameters
    ----------
    engine : SteppingEngine
        Has the optimizer.
    client : WorkerClient
        Told to start.
    """

    def __init__(self, engine: SteppingEngine, client: WorkerClient) -> None:
        self._engine = engine
        self._client = client
        self._version = 0
        # The newest version whose weights the server has, as far as this worker knows.
        self._told = 0

    def begin(self, start: Start, weights: Vector) -> int:
        """Go on from what the server has, and make the steps since; return their last version.

        Parameters
        ----------
        start : Start
            What the server said; the client's vector holds the weights of `start.version`.
        weights : ndarray
            Becomes the weights of the version returned.
        """
        # Before anything is asked: a client that resumes may forget its vector.
        np.copyto(weights, self._client.vector)
        parts = self._client.fetch_state(start.state_parts)
        self._engine.take_over(weights, parts)
        self._version = self._told = start.version
        return self.catch_up(start.newest, weights)

    def catch_up(self, newest: int, weights: Vector) -> int:
        """Make the steps up to a version; `weights` becomes what they lead to."""
        while self._version < newest:
            try:
                step = self._client.fetch_step(self._version, weights)
            except RefusedError:
                return self._begin_again(weights)
            self._make(step, weights)
        return self._version

    def _begin_again(self, weights: Vector) -> int:
        """Go on as a late worker: for one that was lost for a while no steps are kept."""
        start = self._client.rejoin()
        if start.version <= self._version:
            raise RefusedError(
                f"Worker {self._client.seat} asked for the step after version {self._version}, "
                f"which the server does not keep; it has the weights of version {start.version}."
            )
        return self.begin(start, weights)

    def _make(self, step: Step, gradient: Vector) -> None:
        """Make a step by a gradient, which becomes the weights."""
        if step.learning_rate is not None:
            self._engine.set_learning_rate(step.learning_rate)
        self._engine.apply(gradient, out=gradient)
        self._version += 1

    def tell(self, exchanged: Exchanged, weights: Vector) -> None:
        """Hand over where this worker is, if the server asks for it."""
        self._told = max(self._told, exchanged.state_version)
        if exchanged.state_wanted:
            self.hand_over(weights)

    def end(self, weights: Vector) -> None:
        """Hand over where this worker is, unless the server knows."""
        if self._told < self._version:
            self.hand_over(weights)

    def hand_over(self, weights: Vector) -> None:
        """Tell the server weights and optimizer state of this worker's version.

        Raises
        ------
        NonFiniteLossError
            If a weight is NaN or infinite.
        """
        if not is_finite(weights):
            raise NonFiniteLossError(
                f"After step {self._version} the weights of worker {self._client.seat} contain NaN "
                "or infinity: lower the learning rate, or look for values in the data that are not "
                "scaled."
            )
        self._client.hand_over(self._version, self._engine.state_vectors(weights))
        self._told = self._version
