"""A function named ``module:function``, imported as the driver of a training imports it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from distkeras_grid.errors import ConfigurationError


def load_function(source: str) -> Any:
    """Import a function; modules beside the user's job are found as `python script.py` does."""
    module, name = _parts(source)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"--model {source!r} cannot be found: {error}.") from error


def _parts(source: str) -> tuple[str, str]:
    """Return module and function."""
    module, _, name = source.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise not_a_model(source)
    return module, name


def not_a_model(source: str) -> ConfigurationError:
    """Return the error for a model that is neither a file of Keras 3 nor a function.

    HDF5, the format of Keras 2, can be converted: the message has the line that does it.
    """
    text = f"--model takes FILE.keras or module:function. Received: {source!r}."
    if source.lower().endswith((".h5", ".hdf5")):
        new = f"{source.rpartition('.')[0]}.keras"
        text += (
            f' Convert it: python -c "import keras; '
            f"keras.models.load_model('{source}').save('{new}')\""
        )
    return ConfigurationError(text)
