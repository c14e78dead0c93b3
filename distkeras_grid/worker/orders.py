"""Carries out the orders of a worker's mind for its engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distkeras_grid.engine.base import Engine
from distkeras_grid.errors import GridError, NonFiniteLossError
from distkeras_grid.worker import mind as minds

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def obey(order: minds.Action, engine: Engine) -> None:
    """Give an engine an order of the mind.

    Raises
    ------
    GridError
        If the action is not an order.
    """
    match order:
        case minds.SetLearningRate(value):
            engine.set_learning_rate(value)
        case minds.BeginAfter(steps):
            engine.begin_after(steps)
        case minds.TakeOver(state):
            engine.take_over(engine.step_section.unpack(state))
        case minds.Apply(gradient, weights):
            engine.apply(gradient, weights)
        case _:
            raise GridError(f"{type(order).__name__} is no order for an engine.")


def shared_state(engine: Engine, version: int) -> NDArray[np.uint8]:
    """Return an engine's optimizer state as the bytes that are sent to other workers.

    Parameters
    ----------
    engine : Engine
        The engine.
    version : int
        Version after its last step, for the error.

    Raises
    ------
    NonFiniteLossError
        If a number of the state is NaN or infinite.
    """
    section = engine.step_section
    state = section.pack(engine.step_state())
    if not section.is_finite(state):
        raise NonFiniteLossError(
            f"After step {version} the optimizer's state contains NaN or infinity: lower the "
            "learning rate, or look for values in the data that are not scaled."
        )
    return state
