"""The user's own layers, losses and metrics, kept beside the models that need them.

Keras does not save code. Predictors and evaluators find the ``custom_objects`` of a model's trainer
here as long as the model exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

_known: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def remember_objects(model: Any, objects: Mapping[str, Any] | None) -> None:
    """Keep what a model was built with.

    Parameters
    ----------
    model : keras.Model
        The model.
    objects : mapping of str to object, optional
        Its ``custom_objects``. Without any, nothing is kept.
    """
    if objects:
        _known[model] = dict(objects)


def objects_of(model: Any) -> dict[str, Any]:
    """Return what `remember_objects` has kept for a model; empty if there is nothing."""
    return dict(_known.get(model, {}))
