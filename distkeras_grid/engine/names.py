"""Names of losses, metrics and optimizers, looked up where they are given, not in a worker."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from distkeras_grid.errors import ConfigurationError

# What Keras itself makes of these depends on the model's output and loss.
SPECIAL_METRICS = ("accuracy", "acc", "crossentropy", "ce")


def check_names(
    model: Any,
    *,
    optimizer: Any = None,
    loss: Any = None,
    metrics: Any = None,
    custom_objects: Mapping[str, Any] | None = None,
) -> None:
    """Refuse names that Keras does not know.

    Parameters
    ----------
    model : keras.Model
        What it was compiled with is looked at where nothing else is given.
    optimizer, loss, metrics : optional
        As in ``keras.Model.compile``; what is no text is taken as it is.
    custom_objects : mapping of str to object, optional
        Further names.

    Raises
    ------
    ConfigurationError
        Names the argument, what was given and what is near.
    """
    if "keras" not in sys.modules:
        # The command line checks arguments before there is a model, by `known_names`.
        return
    import keras

    own = _compiled_with(model)
    objects = dict(custom_objects or {})
    with keras.saving.custom_object_scope(objects):
        for name in _names(own.get("loss") if loss is None else loss):
            _check("loss", name, keras.losses)
        for name in _names(own.get("metrics") if metrics is None else metrics):
            if name not in SPECIAL_METRICS:
                _check("metric", name, keras.metrics)
        for name in _names(optimizer):
            _check("optimizer", name, keras.optimizers)


def _compiled_with(model: Any) -> Mapping[str, Any]:
    """Return what the model's own ``compile`` was given, as far as Keras tells it."""
    config = getattr(model, "_compile_config", None)
    told = getattr(config, "config", None)
    return told if isinstance(told, Mapping) else {}


def _names(given: Any) -> Iterator[str]:
    """Yield the texts in an argument of ``compile``, which may be a list or a dict of them."""
    if isinstance(given, str):
        yield given
    elif isinstance(given, Mapping):
        # The description of an object, not names by outputs.
        if "class_name" not in given:
            for item in given.values():
                yield from _names(item)
    elif isinstance(given, list | tuple):
        for item in given:
            yield from _names(item)


def _check(kind: str, name: str, module: Any) -> None:
    get: Callable[[str], Any] = module.get
    try:
        get(name)
    except ValueError as error:
        known = [each for each in dir(module) if not each.startswith("_")]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigurationError(
            f"Keras knows no {kind} of this name.{hint} Received: {name!r}. Give one of your own "
            "as an object, and name it in custom_objects."
        ) from error
