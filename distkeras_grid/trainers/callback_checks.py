"""What is known about callbacks before a run: what they cannot do, and what is not called.

Workers train the batches, and the driver calls the callbacks between epochs. So methods for batches
of the training are not called. Where such a method changes what is trained, the run is refused.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

from distkeras_grid.engine.optimizers import rate_of
from distkeras_grid.errors import ConfigurationError

_OF_BATCHES = (
    *("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end"),
    *("on_predict_batch_begin", "on_predict_batch_end"),
)
#: Arguments of Keras' callbacks that may count batches, and those that may be paths.
_FREQUENCIES = ("save_freq", "update_freq")
_PATHS = ("filepath", "backup_dir", "log_dir", "filename", "directory")
_OF_HADOOP = ("hdfs://", "viewfs://", "webhdfs://", "swebhdfs://")
#: Attributes that are set, and methods that are called, where a method changes the training.
_SETTINGS = frozenset({"learning_rate", "stop_training"})
_CHANGES = frozenset({"assign", "assign_add", "assign_sub", "set_value", "set_weights"})


def check_callbacks(callbacks: Sequence[Any], optimizer: Any) -> list[str]:
    """Refuse callbacks that could not do their work in a run; name methods that are not called."""
    import keras

    for callback in callbacks:
        if not isinstance(callback, keras.callbacks.Callback):
            raise ConfigurationError(
                f"callbacks must be keras.callbacks.Callback objects. Received: {callback!r}."
            )
        if isinstance(callback, keras.callbacks.SwapEMAWeights):
            raise ConfigurationError(
                "SwapEMAWeights needs the averages of the weights in each epoch. The workers have "
                "them, and they come to the driver when the run ends: the model that train() "
                "returns has them without this callback. Leave it out."
            )
        _check_paths(callback)
        _check_rate(callback, optimizer)
    uncalled = [name for callback in callbacks for name in _uncalled(callback)]
    if not uncalled:
        return []
    return [
        f"Not called, because workers train the batches: {', '.join(uncalled)}. Callbacks act "
        "between epochs."
    ]


def _check_paths(callback: Any) -> None:
    for name in _PATHS:
        path = str(getattr(callback, name, ""))
        if path.startswith(_OF_HADOOP):
            raise ConfigurationError(
                f"{_name(callback)} writes with TensorFlow, which cannot open Hadoop paths. "
                f"Received: {name}={path!r}. Give it a local path and copy the file with "
                "distkeras_grid.upload(), use trainer.save() for the trained model, or "
                "checkpoint_dir for checkpoints of the run."
            )


def _check_rate(callback: Any, optimizer: Any) -> None:
    import keras

    setters = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)
    if not isinstance(callback, setters) or not isinstance(optimizer, keras.optimizers.Optimizer):
        return
    if rate_of(optimizer) is None:
        raise ConfigurationError(
            f"{_name(callback)} sets the learning rate, and the optimizer's is a schedule "
            "(keras.optimizers.schedules), which sets it after each batch. Leave one of them out: "
            "compile the model with a number, or train without the callback."
        )


def _uncalled(callback: Any) -> Iterator[str]:
    """Yield what a callback would do for batches, in words."""
    for method in _OF_BATCHES:
        function = getattr(getattr(callback, method), "__func__", getattr(callback, method))
        if getattr(function, "__module__", "").startswith("keras."):
            continue
        if change := _change_in(callback, function):
            raise ConfigurationError(
                f"{_name(callback)}.{method} changes the training ({change}), and workers train "
                "batches without callbacks. Set the rate for each batch with a schedule "
                "(keras.optimizers.schedules), and everything else in on_epoch_begin or "
                "on_epoch_end."
            )
        yield f"{_name(callback)}.{method}"
    for argument in _FREQUENCIES:
        value = getattr(callback, argument, None)
        if isinstance(value, int) and not isinstance(value, bool):
            yield f"{_name(callback)}({argument}={value})"


def _change_in(callback: Any, function: Any) -> str:
    """Return what a function, or a method of the callback that it names, changes; or nothing."""
    if not isinstance(function, FunctionType):
        return ""
    named = (getattr(type(callback), name, None) for name in function.__code__.co_names)
    for each in (function, *(method for method in named if isinstance(method, FunctionType))):
        before = None
        for step in dis.get_instructions(each):
            name = str(step.argval)
            if step.opname == "STORE_ATTR" and name in _SETTINGS and before != "self":
                return f"sets {name}"
            if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and name in _CHANGES:
                return f"calls {name}"
            before = step.argval
    return ""


def _name(callback: Any) -> str:
    return type(callback).__name__
