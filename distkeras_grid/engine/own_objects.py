"""The user's own layers, losses and metrics, kept beside the models that need them.

Keras does not save code. Whoever has a model of the project's (a predictor, an evaluator) finds
here what its trainer was given as ``custom_objects``, as long as the model lives.
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
        Its ``custom_objects``; nothing is kept of none.
    """
    if objects:
        _known[model] = dict(objects)


def objects_of(model: Any) -> dict[str, Any]:
    """Return what `remember_objects` was given for a model; empty for one that nobody told of."""
    return dict(_known.get(model, {}))
