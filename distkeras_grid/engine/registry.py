"""Which engine trains on which Keras backend."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distkeras_grid.errors import ConfigurationError, EnvironmentMismatchError

if TYPE_CHECKING:
    from distkeras_grid.engine.keras_engine import KerasEngine

#: The variable that Keras reads when it is imported.
VARIABLE = "KERAS_BACKEND"


@dataclass(frozen=True)
class Backend:
    """One Keras backend, which is imported when it is used."""

    # Module with two functions: ``prepare_process`` limits the process to a number of threads,
    # before the backend's first operation, and returns the number in use. ``count_gpus`` returns
    # how many GPUs it sees.
    module: str
    engine: str  # Name of its `distkeras_grid.engine.keras_engine.KerasEngine` in that module
    packages: tuple[str, ...]  # Packages whose versions must be the same on driver and executors
    extras: tuple[str, ...]  # Extras of this project that install it


#: By the names that ``keras.backend.backend()`` returns.
BACKENDS: Mapping[str, Backend] = {
    "tensorflow": Backend(
        module="distkeras_grid.engine.tensorflow",
        engine="TensorFlowEngine",
        packages=("tensorflow",),
        extras=("tensorflow", "gpu"),
    ),
    "jax": Backend(
        module="distkeras_grid.engine.jax",
        engine="JaxEngine",
        packages=("jax", "jaxlib"),
        extras=("jax",),
    ),
    "torch": Backend(
        module="distkeras_grid.engine.torch",
        engine="TorchEngine",
        packages=("torch",),
        extras=("torch",),
    ),
}


def backend_named(name: str) -> Backend:
    """Return a backend.

    Examples
    --------
    >>> backend_named("tensorflow").engine
    'TensorFlowEngine'
    """
    if name not in BACKENDS:
        raise ConfigurationError(
            f"Workers train on the Keras backends {', '.join(map(repr, BACKENDS))}. "
            f"Received: {name!r}. Set {VARIABLE} to one of them before Keras is imported. "
            "Executors take the driver's."
        )
    return BACKENDS[name]


def current_backend() -> str:
    """Return the backend that Keras runs on in this process."""
    try:
        import keras
    except ModuleNotFoundError as error:
        raise EnvironmentMismatchError(
            f"Keras cannot be imported with {VARIABLE}={configured_backend()}: {error}. Install "
            "the backend: pip install 'distkeras_grid[tensorflow]', or [jax], or [torch]."
        ) from error
    name: str = keras.backend.backend()
    return name


def configured_backend() -> str:
    """Return the backend that Keras runs on, or will run on; without its import, which is slow."""
    if "keras" in sys.modules:
        return current_backend()
    if named := os.environ.get(VARIABLE):
        return named
    folder = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")
    try:
        return str(json.loads((folder / "keras.json").read_text()).get("backend", "tensorflow"))
    except (OSError, ValueError):
        # As Keras itself does.
        return "tensorflow"


def use_backend(name: str, threads: int) -> int:
    """Let Keras run on a backend in this process, with some threads."""
    if "keras" not in sys.modules:
        os.environ[VARIABLE] = name
    elif (here := current_backend()) != name:
        raise EnvironmentMismatchError(
            f"The driver's Keras runs on {name}. Received: Keras on {here} in this Python process "
            f"of an executor. Let it start with {VARIABLE}={name} "
            f"(spark.executorEnv.{VARIABLE}={name})."
        )
    in_force: int = _module(name).prepare_process(threads)
    return in_force


def count_gpus(name: str) -> int:
    """Return how many GPUs a backend sees."""
    count: int = _module(name).count_gpus()
    return count


def build_engine(backend: str, model: Any, **options: Any) -> KerasEngine:
    """Build the engine of a backend."""
    build = getattr(_module(backend), backend_named(backend).engine)
    engine: KerasEngine = build(model, **options)
    return engine


def _module(name: str) -> Any:
    return importlib.import_module(backend_named(name).module)
