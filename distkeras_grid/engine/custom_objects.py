"""The user's own layers, losses and metrics, which other processes need to load a model.

Keras does not save code.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

# Keras imports the classes of these packages itself, and of no others.
_IMPORTED = frozenset(("keras", "keras_hub", "keras_cv", "keras_nlp", "distkeras_grid"))


def own_names(config: Any) -> Iterator[str]:
    """Yield the names in a description that Keras looks up because they are not its own.

    Examples
    --------
    >>> own = {"module": "nets", "class_name": "Net", "config": {}, "registered_name": "mine>Net"}
    >>> dense = {"module": "keras.layers", "class_name": "Dense", "registered_name": None}
    >>> list(own_names({"layers": [own, dense]}))
    ['mine>Net']
    """
    if isinstance(config, Mapping):
        name, module = config.get("class_name"), config.get("module", "keras")
        # The module of a class of ``__main__`` is None. Code has no module.
        if name == "__lambda__" or str(module).partition(".")[0] not in _IMPORTED:
            looked_up = config.get("config" if name == "function" else "registered_name")
            yield looked_up if isinstance(looked_up, str) else str(name)
        config = list(config.values())
    if isinstance(config, list):
        for part in config:
            yield from own_names(part)


def serializable_objects(archive: bytes, objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return the objects with which another process can load a model.

    These are the given ones, and those of the model that are registered in this process by
    ``keras.saving.register_keras_serializable``. No other process knows them. If the model has
    lambdas, and ``keras.config.enable_unsafe_deserialization()`` was called here, there is an item
    that allows them.
    """
    import keras

    # Keras has no public API that tells whether enable_unsafe_deserialization() was called.
    from keras.src.saving.serialization_lib import in_safe_mode

    from distkeras_grid.engine.keras_model import LAMBDAS, model_from_bytes

    with zipfile.ZipFile(io.BytesIO(archive)) as members:
        config = json.loads(members.read("config.json"))
    registered = {name: keras.saving.get_registered_object(name) for name in own_names(config)}
    if LAMBDAS in registered and in_safe_mode() is False:
        # It is the user's own model. The permission goes with this run's objects only.
        registered[LAMBDAS] = True
    known = {name: item for name, item in registered.items() if item is not None} | dict(objects)
    if not registered.keys() <= known.keys():
        # Only Keras can tell whether the name is needed. A layer may build its own parts.
        model_from_bytes(archive, known)
    return known
