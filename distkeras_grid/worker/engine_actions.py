"""Carries out the orders of a worker's core for its engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from distkeras_grid.engine.base import Engine, State
from distkeras_grid.errors import GridError, NonFiniteLossError
from distkeras_grid.worker import worker_core as cores
from distkeras_grid.worker.worker_state import check_same

if TYPE_CHECKING:
    from numpy.typing import NDArray


def apply_action(order: cores.Action, engine: Engine, first: State | None = None) -> None:
    """Give an engine an order of the core.

    `first`: what `first_state` returned; None in a run whose core never asks for it.
    """
    match order:
        case cores.SetLearningRate(value):
            engine.set_learning_rate(value)
        case cores.SetScheduleOffset(steps):
            engine.set_schedule_offset(steps)
        case cores.ResetEngine():
            if first is None:
                raise GridError("Renew brings back an engine's first state. Received: none.")
            engine.restore(first)
        case cores.LoadOptimizerState(state):
            engine.load_step_state(engine.step_section.unpack(state))
        case cores.Restore(state, shared):
            _restore(engine, state, shared=shared)
        case cores.Apply(gradient, weights):
            engine.apply(gradient, weights)
        case _:
            raise GridError(f"{type(order).__name__} is not an order for an engine.")


def first_state(engine: Engine) -> State:
    """Return the state of an engine that has trained nothing.

    Arrays of equal numbers, as an optimizer's are before its first step, take no memory.
    """
    return {name: _thin(array) for name, array in engine.state().items()}


def _thin(array: NDArray[Any]) -> NDArray[Any]:
    if array.size < 2:
        return array
    flat = np.ascontiguousarray(array).reshape(-1)
    numbers = flat.view(np.uint8).reshape(flat.size, flat.itemsize)
    same = bool((numbers == numbers[0]).all())
    return np.broadcast_to(flat[:1].copy().reshape(()), array.shape) if same else array


def _restore(engine: Engine, state: State, *, shared: bool) -> None:
    """Let an engine go on from another attempt's state."""
    now = engine.state()
    check_same(now, state)
    same_steps = None if shared else engine.step_state()
    engine.restore(state)
    if same_steps is not None:
        engine.load_step_state(same_steps)


def shared_state(engine: Engine, version: int) -> NDArray[np.uint8]:
    """Return an engine's optimizer state as the bytes that are sent to other workers."""
    section = engine.step_section
    state = section.pack(engine.step_state())
    if not section.is_finite(state):
        raise NonFiniteLossError(
            f"After step {version} the optimizer's state contains NaN or infinity: lower the "
            "learning rate, or look for values in the data that are not scaled."
        )
    return state
