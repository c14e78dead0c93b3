"""A Keras optimizer's parts: what makes its steps, its learning rate, its count of steps."""

from __future__ import annotations

from typing import Any


def leaf_optimizers(optimizer: Any) -> list[Any]:
    """Return the optimizers that make the steps: those that a wrapper holds, or the optimizer.

    Wrappers are ``LossScaleOptimizer``, which holds one, and ``MultiOptimizer``, which holds one
    for each group of variables.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    parts = [inner] if inner is not None else getattr(optimizer, "optimizers", None)
    return (
        [optimizer] if parts is None else [part for each in parts for part in leaf_optimizers(each)]
    )


def has_own_rate(optimizer: Any) -> bool:
    """Return whether each learning rate is a number, and none follows a schedule."""
    import keras

    return all(
        isinstance(part.learning_rate, keras.Variable) for part in leaf_optimizers(optimizer)
    )


def averages_weights(optimizer: Any) -> bool:
    """Return whether an optimizer keeps averages of the weights (``use_ema=True``)."""
    return any(part.use_ema for part in leaf_optimizers(optimizer))


def rate_of(optimizer: Any) -> float | None:
    """Return the learning rate; None if it follows a schedule, or if there are several."""
    import keras

    rate = getattr(optimizer, "learning_rate", None)
    return float(rate) if isinstance(rate, keras.Variable) else None


def follow_schedules_from(optimizer: Any, offset: Any) -> None:
    """Start the schedules of an optimizer's learning rates later, without changing its count."""
    from distkeras_grid.engine.schedules import LaterSchedule, Schedule

    for part in leaf_optimizers(optimizer):
        # Keras has no public API for the schedule: `learning_rate` is its value.
        schedule = part._learning_rate
        if isinstance(schedule, Schedule):
            part.learning_rate = LaterSchedule(schedule, offset)
