"""Loads an engine from an archive in a worker process, and keeps it for the next run.

Spark uses a Python worker again for the next job. Compiling takes seconds, so the engine with its
compiled functions is kept, but not its state.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from distkeras_grid.engine.compile_settings import compile_model
from distkeras_grid.engine.keras_model import layers_of, model_from_bytes
from distkeras_grid.engine.registry import build_engine, current_backend

if TYPE_CHECKING:
    from distkeras_grid.engine.keras_engine import KerasEngine

# Each has a model and its compiled functions. Two are enough for users who alternate between two
# models.
MAX_ENGINES = 2
_engines: OrderedDict[str, KerasEngine] = OrderedDict()


def load_engine(
    archive: bytes, *, custom_objects: Mapping[str, Any] | None = None, **options: Any
) -> KerasEngine:
    """Build an engine, or take the compiled one of an earlier run in this process.

    `options`: as of `KerasEngine`.
    """
    objects = dict(custom_objects or {})
    model = model_from_bytes(archive, objects)
    # Keras has compiled it; this refuses what cannot be trained.
    compile_model(model)
    build = partial(build_engine, current_backend(), model, **options)
    # Compiled functions have the constants and tables of adapted layers in them.
    if objects or any(hasattr(layer, "adapt") for layer in layers_of(model)):
        return build()
    key = _key(archive, options)
    if key in _engines:
        _engines[key].copy_from(model)
    else:
        _engines[key] = build()
    _engines.move_to_end(key)
    if len(_engines) > MAX_ENGINES:
        _engines.popitem(last=False)
    return _engines[key]


def _key(archive: bytes, options: Mapping[str, Any]) -> str:
    # How the model is compiled is in its configuration.
    with zipfile.ZipFile(io.BytesIO(archive)) as members:
        config = members.read("config.json").decode()
    text = json.dumps([config, dict(options)], sort_keys=True, default=lambda choice: choice.value)
    return hashlib.sha256(text.encode()).hexdigest()
