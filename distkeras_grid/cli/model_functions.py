"""A function named ``module:function``, imported as the driver of a training imports it."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distkeras_grid.errors import ConfigurationError

# An import of Keras takes 4 s; on a busy machine ten times that.
IMPORT_SECONDS = 120.0
NO_MODULE, NO_FUNCTION = 3, 4
_IMPORT = f"""
import importlib, sys
module, name = sys.argv[1:]
try:
    getattr(importlib.import_module(module), name)
except ImportError as error:
    print(error)
    sys.exit({NO_MODULE})
except AttributeError as error:
    print(error)
    sys.exit({NO_FUNCTION})
"""


def load_function(source: str) -> Any:
    """Import a function; modules beside the user's job are found as `python script.py` does."""
    module, name = _parts(source)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"--model {source!r} cannot be found: {error}.") from error


def check_function(source: str, files: Sequence[Path], where: str, *, whole: bool) -> None:
    """Refuse a function that the driver of another process will not find.

    `files`: folders, zip files and single modules that it has, beside what is installed here;
    `where`: the same in words; `whole`: whether it has no others.
    """
    module, name = _parts(source)
    with tempfile.TemporaryDirectory() as modules:
        for file in files:
            if file.suffix == ".py" and file.is_file():
                shutil.copy(file, modules)
        path = [modules, *map(str, files), *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            ended = subprocess.run(
                [sys.executable, "-P", "-c", _IMPORT, module, name],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=IMPORT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            # The driver itself imports it, and has more time.
            return
    if ended.returncode == NO_FUNCTION or (ended.returncode == NO_MODULE and whole):
        why = ended.stdout.strip().rpartition("\n")[2]
        raise ConfigurationError(
            f"--model {source!r} cannot be found: {why}. It is looked for {where}."
        )


def _parts(source: str) -> tuple[str, str]:
    """Return module and function."""
    module, _, name = source.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise not_a_model(source)
    return module, name


def not_a_model(source: str) -> ConfigurationError:
    """Return the error for a model that is neither a file of Keras 3 nor a function.

    The formats of Keras 2 can be converted: the message has the line that does it.
    """
    text = f"--model takes FILE.keras or module:function. Received: {source!r}."
    if source.lower().endswith((".h5", ".hdf5")):
        new = f"{source.rpartition('.')[0]}.keras"
        text += (
            f' Convert it: python -c "import keras; '
            f"keras.models.load_model('{source}').save('{new}')\""
        )
    elif (Path(source) / "saved_model.pb").exists():
        source = source.rstrip("/")
        text += (
            " It is a SavedModel of Keras 2. Convert it where tf-keras is installed: python -c "
            f"\"import tf_keras; tf_keras.models.load_model('{source}').save('{source}.h5')\"; and "
            f"then: python -c \"import keras; keras.models.load_model('{source}.h5')"
            f".save('{source}.keras')\""
        )
    return ConfigurationError(text)
