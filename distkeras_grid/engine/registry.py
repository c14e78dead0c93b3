"""Which engine trains on which Keras backend."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distkeras_grid.engine.base import ModelEngine
from distkeras_grid.errors import ConfigurationError


@dataclass(frozen=True)
class Backend:
    """One Keras backend, which is imported when it is used.

    Parameters
    ----------
    engine : str
        ``module:class`` of its `ModelEngine`. The class takes a compiled model, and the keywords
        ``scaling``, ``block_shape``, ``jit``, ``local_steps``, ``momentum`` and
        ``optimizer_state``.
    prepare : str
        ``module:function`` that limits the process to a number of threads, before the backend's
        first operation, and returns the number in use.
    """

    engine: str
    prepare: str


#: By the names that ``keras.backend.backend()`` returns.
BACKENDS: Mapping[str, Backend] = {
    "tensorflow": Backend(
        engine="distkeras_grid.engine.tensorflow:TensorFlowEngine",
        prepare="distkeras_grid.engine.process:prepare_process",
    ),
}


def backend_named(name: str) -> Backend:
    """Return a backend.

    Raises
    ------
    ConfigurationError
        If there is no engine for it. The message says what to set, and where.

    Examples
    --------
    >>> backend_named("tensorflow").engine
    'distkeras_grid.engine.tensorflow:TensorFlowEngine'
    """
    if name not in BACKENDS:
        first = next(iter(BACKENDS))
        raise ConfigurationError(
            f"Workers train on the Keras backend {', '.join(map(repr, BACKENDS))}. "
            f"Received: {name!r}. Set KERAS_BACKEND={first} before Keras is imported, for the "
            f"driver and for the executors (spark.executorEnv.KERAS_BACKEND={first})."
        )
    return BACKENDS[name]


def current_backend() -> str:
    """Return the backend that Keras runs on in this process."""
    import keras

    name: str = keras.backend.backend()
    return name


def build_engine(backend: str, model: Any, **options: Any) -> ModelEngine:
    """Build the engine of a backend.

    Parameters
    ----------
    backend : str
        A key of `BACKENDS`.
    model : keras.Model
        Built and compiled; trained in place.
    **options
        Options of the engine's class; see `Backend`.

    Raises
    ------
    ConfigurationError
        If there is no such engine, or it cannot train the model.
    """
    engine: ModelEngine = _found(backend_named(backend).engine)(model, **options)
    return engine


def prepare_process(backend: str, threads: int) -> int:
    """Limit the threads of a backend in this process; return the number in use."""
    in_force: int = _found(backend_named(backend).prepare)(threads)
    return in_force


def _found(place: str) -> Any:
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)
