"""What Keras callbacks remember from epoch to epoch, as plain values.

Keras has no way to save a callback. Those that remember something (`EarlyStopping`,
`ReduceLROnPlateau`, `ModelCheckpoint`) keep it in attributes that are numbers, text or arrays, and
begin anew in ``on_train_begin``. So such attributes are saved, and put back after that call. What
else an attribute may be, such as a file or a function, is as ``on_train_begin`` leaves it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from distkeras_grid.errors import ConfigurationError

# Set by Keras for each training.
_OF_KERAS = frozenset({"params", "_params", "model", "_model"})
_NOTHING = object()


def callback_states(callbacks: Sequence[Any]) -> list[dict[str, Any]]:
    """Return what callbacks remember: their classes, and their attributes that are plain values."""
    return [{"kind": _kind(each), "attributes": _plain_attributes(each)} for each in callbacks]


def restore_callbacks(
    callbacks: Sequence[Any], states: Sequence[tuple[str, Mapping[str, Any]]]
) -> None:
    """Let callbacks remember what `callback_states` returned."""
    before, now = [kind for kind, _ in states], [_kind(each) for each in callbacks]
    if before != now:
        raise ConfigurationError(
            "The run goes on with the callbacks that it began with: "
            f"{', '.join(before) or 'none'}. Received: {', '.join(now) or 'none'}."
        )
    for callback, (_, attributes) in zip(callbacks, states, strict=True):
        for name, value in attributes.items():
            # The callback may change it.
            setattr(callback, name, copy.deepcopy(value))


def _kind(callback: Any) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"


def _plain_attributes(callback: Any) -> dict[str, Any]:
    values = (
        (name, _plain(value)) for name, value in vars(callback).items() if name not in _OF_KERAS
    )
    return {name: value for name, value in values if value is not _NOTHING}


def _plain(value: Any) -> Any:
    """Return a value as a tree has it, with copies of arrays; `_NOTHING` if it is not plain."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind not in "biuf":
            return _NOTHING
        return value.copy() if isinstance(value, np.ndarray) else value.item()
    if isinstance(value, list):
        parts = [_plain(part) for part in value]
        return _NOTHING if any(part is _NOTHING for part in parts) else parts
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        named = {name: _plain(part) for name, part in value.items()}
        return _NOTHING if any(part is _NOTHING for part in named.values()) else named
    return _NOTHING
