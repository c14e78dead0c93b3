"""What a worker's mind orders an engine to do, done."""

from __future__ import annotations

from distkeras_grid.engine.base import Engine
from distkeras_grid.errors import GridError
from distkeras_grid.worker import mind as minds
from distkeras_grid.worker.state_parts import unpack


def obey(order: minds.Action, engine: Engine) -> None:
    """Give an engine an order of the mind.

    Raises
    ------
    GridError
        If the action is no order.
    """
    match order:
        case minds.SetLearningRate(value):
            engine.set_learning_rate(value)
        case minds.BeginAfter(steps):
            engine.begin_after(steps)
        case minds.TakeOver(state):
            engine.take_over(unpack(state, engine.step_state()))
        case minds.Apply(gradient, weights):
            engine.apply(gradient, weights)
        case _:
            raise GridError(f"{type(order).__name__} is no order for an engine.")
