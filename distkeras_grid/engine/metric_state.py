"""A model's metrics as a state that adds: sums and counts, from which Keras computes results.

Two windows, of one worker or of two, have together the sum of their states. A mean of their results
would be right for means only, and wrong for counts, recall or AUC.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from distkeras_grid.engine.compile_settings import has_own_train_step
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.field_types import STATE_LIMIT

#: As the state travels.
STATE_TYPE = np.dtype("<f8")


def as_numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return logs as numbers: nested ones without their outer names, as in the history of ``fit``.

    A vector, such as F1 by class, becomes one number for each entry, ``f1_score_0`` and so on.
    """
    import keras

    numbers: dict[str, float] = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            numbers.update(as_numbers(value))
            continue
        array = np.asarray(keras.ops.convert_to_numpy(value))
        entries = array.ravel().tolist()
        numbers.update(
            {name: float(entries[0])}
            if array.ndim == 0
            else {f"{name}_{place}": float(entry) for place, entry in enumerate(entries)}
        )
    return numbers


def metric_variables(model: Any) -> list[Any]:
    """Return the variables of a model's metrics, the trackers of its losses among them."""
    return [variable for metric in model.metrics for variable in metric.variables]


def metric_state(model: Any) -> bytes:
    """Return the state of a model's metrics as float64, which can be added."""
    values = [np.asarray(v.numpy(), STATE_TYPE).ravel() for v in metric_variables(model)]
    state = np.concatenate([np.empty(0, STATE_TYPE), *values]).tobytes()
    if len(state) > STATE_LIMIT:
        raise ConfigurationError(
            f"The metrics of model {model.name!r} have a state of {len(state)} bytes, of which "
            f"{STATE_LIMIT} can travel with a window. Give AUC fewer thresholds, or leave out the "
            "largest metric and evaluate it after the training."
        )
    return state


def metric_results(model: Any) -> dict[str, float]:
    """Return what a model's metrics say now, but those that are not built."""
    return as_numbers({m.name: m.result() for m in model.metrics if m.variables})


def results_of(model: Any, state: bytes) -> dict[str, float] | None:
    """Return what a model's metrics say of a sum of states; they are reset afterwards.

    `state`: sum of what `metric_state` returned; empty if there is none.
    """
    values = np.frombuffer(state, STATE_TYPE)
    variables = metric_variables(model)
    bounds = list(accumulate((math.prod(v.shape) for v in variables), initial=0))
    if not state or bounds[-1] != values.size:
        return None
    for variable, (start, stop) in zip(variables, pairwise(bounds), strict=True):
        part = values[start:stop].reshape(variable.shape)
        variable.assign(part.astype(str(variable.dtype)))
    results = metric_results(model)
    model.reset_metrics()
    return results


class LogSources:
    """Finds which metrics of a model the logs of its own ``train_step`` are results of.

    They may have other names than these, and be no results of metrics at all. So they are those
    whose values have been the same after each window.
    """

    def __init__(self) -> None:
        self._candidates: dict[str, list[str]] = {}

    def look(self, logs: Mapping[str, float], results: Mapping[str, float]) -> dict[str, str]:
        """Compare logs and results after a window; return the source of each log of another name.

        An empty source is none.

        Examples
        --------
        >>> sources = LogSources()
        >>> sources.look({"loss": 2.0, "kl": 1.0}, {"total": 2.0, "other": 2.0, "kl": 1.0})
        {'loss': 'total'}
        >>> sources.look({"loss": 3.0, "kl": 1.0}, {"total": 4.0, "other": 3.0, "kl": 2.0})
        {'loss': 'other', 'kl': ''}
        """
        for log, value in logs.items():
            known = self._candidates.get(log, [log, *(name for name in results if name != log)])
            same = (n for n in known if n in results and _same(results[n], value))
            self._candidates[log] = list(same)
        names = {log: next(iter(self._candidates[log]), "") for log in logs}
        return {log: name for log, name in names.items() if name != log}


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def declare_metrics(model: Any, data: Any) -> None:
    """Create the variables of a compiled model's loss and metrics, and compute nothing.

    `data`: what ``train_step`` takes; only shapes and types count.
    """
    import keras
    from keras.src.backend import compute_output_spec

    if has_own_train_step(model) and _has_nothing_compiled(model, data):
        return
    symbols = keras.tree.map_structure(
        lambda value: None if value is None else keras.KerasTensor(value.shape, value.dtype.name),
        keras.utils.unpack_x_y_sample_weight(data),
    )
    x, y, weight = symbols
    prediction = compute_output_spec(model, x, training=False)
    try:
        if model.loss is not None:
            # Without one, Keras adds what the layers give, and a symbolic call keeps none of it.
            compute_output_spec(model.compute_loss, x, y, prediction, sample_weight=weight)
        compute_output_spec(model.compute_metrics, x, y, prediction, sample_weight=weight)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"Keras does not compute the loss and metrics of model {model.name!r}: {error} "
            f"Received: loss={model.loss!r}. Give one of your own as an object, and name it in "
            "custom_objects."
        ) from error


def _has_nothing_compiled(model: Any, data: Any) -> bool:
    # Such a model may have no call() of its own.
    import keras

    return model.loss is None or keras.utils.unpack_x_y_sample_weight(data)[1] is None


def build_metrics(model: Any, data: Any) -> None:
    """Create the variables of a compiled model's loss and metrics, with a batch as an example."""
    import keras

    x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
    if has_own_train_step(model) and _has_nothing_compiled(model, data):
        return
    values = [(v, v.numpy()) for v in model.non_trainable_variables]
    prediction = model(x, training=False)
    model.compute_loss(x=x, y=y, y_pred=prediction, sample_weight=weight, training=False)
    update = partial(model.compute_metrics, x, y, prediction, sample_weight=weight)
    update()
    _refuse_what_does_not_add(model, update)
    for variable, value in values:
        variable.assign(value)


def _refuse_what_does_not_add(model: Any, update: Callable[[], object]) -> None:
    """Refuse a metric of the user's whose state after two batches is not twice that of one."""
    metrics = [each for metric in model.metrics for each in getattr(metric, "metrics", [metric])]
    own = [metric for metric in metrics if not type(metric).__module__.startswith("keras.")]
    if not own:
        return
    states = []
    model.reset_metrics()
    for _ in range(2):
        update()
        states.append([[np.array(v.numpy()) for v in metric.variables] for metric in own])
    model.reset_metrics()
    for metric, once, twice in zip(own, *states, strict=True):
        pairs = zip(once, twice, strict=True)
        if not all(np.allclose(2 * a, b, rtol=1e-3, equal_nan=True) for a, b in pairs):
            raise ConfigurationError(
                f"The state of metric {metric.name!r} ({type(metric).__name__}) does not add: "
                "after two batches it is not the sum of their states, as it is for sums and "
                "counts. So it has no value over the windows of an epoch. Keep sums and counts in "
                "its variables, or leave it out of compile() and evaluate it after the training."
            )
