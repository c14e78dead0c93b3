"""What a worker's training leaves beside the weights in its vectors.

These are variables that are no floats (counters, flags, the states of random generators), and with
``use_ema=True`` the averages of the weights, which ``fit`` puts into the model at its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.engine.keras_model import counters, weight_layout
from distkeras_grid.engine.optimizers import averages_weights

AVERAGES = "averages"


@dataclass(frozen=True)
class TrainOutcome:
    """What one worker's training has left."""

    worker: int  # worker and rows: Number of the worker, and of its rows
    rows: int
    state: Mapping[str, NDArray[Any]] = field(repr=False)  # What `left_by` returned


def left_by(model: Any, optimizer: Any) -> dict[str, NDArray[Any]]:
    """Return what training has left; with ``use_ema`` the averages replace the model's weights."""
    state = {str(number): np.array(v.numpy()) for number, v in enumerate(counters(model))}
    if averages_weights(optimizer):
        optimizer.finalize_variable_values(model.trainable_variables)
        averages = [np.asarray(v, np.float32).ravel() for v in model.trainable_variables]
        state[AVERAGES] = np.concatenate(averages)
    return state


def take_outcomes(model: Any, outcomes: Sequence[TrainOutcome]) -> None:
    """Put what the workers' training has left into the driver's model.

    Variables that are no floats become those of the first worker: a sum or a mean of flags and
    numbers of classes would mean nothing. Averages become the mean of the workers' averages, each
    weighted by its rows.
    """
    reports = sorted((each for each in outcomes if each.state), key=lambda each: each.worker)
    if not reports:
        return
    for number, variable in enumerate(counters(model)):
        variable.assign(reports[0].state[str(number)])
    averaged = [each for each in reports if AVERAGES in each.state and each.rows]
    if averaged:
        rows = [each.rows for each in averaged]
        # The float64 mean of equal numbers is that number again.
        mean = np.average([each.state[AVERAGES] for each in averaged], axis=0, weights=rows)
        parts = np.split(mean, np.cumsum([v.size for v in weight_layout(model).trainable])[:-1])
        for variable, part in zip(model.trainable_variables, parts, strict=True):
            variable.assign(part.reshape(variable.shape).astype(np.float32))
