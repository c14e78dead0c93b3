"""A Keras optimizer's parts: what makes its steps, its learning rate, its count of steps."""

from __future__ import annotations

from typing import Any


def making_steps(optimizer: Any) -> list[Any]:
    """Return the optimizers that make the steps: those that a wrapper holds, or the optimizer.

    Wrappers are ``LossScaleOptimizer``, which holds one, and ``MultiOptimizer``, which holds one
    for each group of variables.

    Parameters
    ----------
    optimizer : keras.optimizers.Optimizer
        Built: before, a ``MultiOptimizer`` may not know all of its own.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    held = [inner] if inner is not None else getattr(optimizer, "optimizers", None)
    return [optimizer] if held is None else [part for each in held for part in making_steps(each)]


def has_own_rate(optimizer: Any) -> bool:
    """Return whether each learning rate is a number, and none follows a schedule."""
    import keras

    return all(isinstance(part.learning_rate, keras.Variable) for part in making_steps(optimizer))


def skip_steps(optimizer: Any, steps: int) -> None:
    """Let an optimizer's count, with which its state comes, be so many batches further.

    Its state must be as old: moments that are new, with a count that is not, make Adam's first
    steps several times too long. `follow_schedules_from` suits an optimizer that begins as new.

    Parameters
    ----------
    optimizer : keras.optimizers.Optimizer
        Built.
    steps : int
        Batches, at least 0.
    """
    for part in making_steps(optimizer):
        # Not `iterations`, which is a quotient where gradients are accumulated.
        part._iterations.assign_add(steps)


def follow_schedules_from(optimizer: Any, offset: Any) -> None:
    """Let the schedules of an optimizer's learning rates begin later; its count stays as it is.

    Parameters
    ----------
    optimizer : keras.optimizers.Optimizer
        Built. A rate that is a number stays so.
    offset : keras.Variable
        Batches that a schedule adds to the optimizer's count whenever it is asked.
    """
    from distkeras_grid.engine.schedules import LaterSchedule, Schedule

    for part in making_steps(optimizer):
        # Keras has no public way to the schedule: `learning_rate` is its value.
        schedule = part._learning_rate
        if isinstance(schedule, Schedule):
            part.learning_rate = LaterSchedule(schedule, offset)
