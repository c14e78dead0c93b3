"""One engine of a real model for all simulated workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distkeras_grid.engine.keras_engine import KerasEngine


class SharedEngine:
    """An engine that is compiled once, and in turn is each worker's own.

    While a worker does not train, its optimizer's state and its random generators are kept outside.
    So the memory is that of the engine and, for each worker, of these variables.

    `seed`: seed of dropout and other random layers, which differ from worker to worker. None keeps
    the model's own generators.
    """

    def __init__(self, engine: KerasEngine, workers: int, seed: int | None = None) -> None:
        self._engine, self._initial = engine, engine.device_state()
        self._states = [self._first(worker, seed) for worker in range(workers)]
        # Whose state is in the engine; None before the first one.
        self._owner: int | None = None

    def of(self, worker: int) -> KerasEngine:
        """Return the engine in the state of a worker."""
        if self._owner != worker:
            before = self._engine.swap_state(self._states[worker])
            if self._owner is not None:
                self._states[self._owner] = before
            self._owner = worker
        return self._engine

    def _first(self, worker: int, seed: int | None) -> Sequence[Any]:
        """Return the state in which a worker starts."""
        if seed is None:
            return self._initial
        self._engine.set_seed((seed, worker))
        return self._engine.swap_state(self._initial)
