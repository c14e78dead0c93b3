"""Checks of arguments that are not fields of a run's specification, or that are converted first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias

from distkeras_grid.engine.registry import (
    BACKENDS,
    backend_named,
    configured_backend,
    current_backend,
)
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rules import AsynchronousRule, Rule
from distkeras_grid.rules.parameters import check_positive
from distkeras_grid.spec import LARGEST

BALANCED: Literal["balanced"] = "balanced"
#: Each server is a process on the driver's host.
MOST_SERVERS = 64
#: What needs a single server, by the name of the argument: the value that needs none, and why.
_NEEDS_ONE: Mapping[str, tuple[Any, str]] = {
    "validate": (None, "looks at whole commits, and each server sees a part of them"),
    "on_nonfinite": ("stop", "leaves out whole commits, and each server sees a part of them"),
}
# By numbers or names of classes.
ClassWeight: TypeAlias = dict[int | str, float] | Literal["balanced"] | None


def check_backend() -> None:
    """Refuse to train if Keras runs on a backend that has no engine."""
    backend_named(current_backend())


def checked_engine(engine: Any, rule: Rule, who: str) -> str | None:
    """Return the backend on which workers are to train: a name, or None for the driver's.

    Examples
    --------
    >>> from distkeras_grid.rules import DownpourRule
    >>> checked_engine("jax", DownpourRule(), "DOWNPOUR")
    'jax'
    """
    if engine is None:
        return None
    if not (isinstance(engine, str) and engine in BACKENDS):
        raise ConfigurationError(
            f"engine is a backend of Keras ({', '.join(BACKENDS)}), or None for the driver's. "
            f"Received: {engine!r}."
        )
    if rule.traits.steps_on_workers and engine != (here := configured_backend()):
        raise ConfigurationError(
            f"{who}'s workers exchange the optimizer's state in the types of the driver's backend. "
            f"Received: engine={engine!r}, and Keras on {here!r} in the driver. Leave it out, or "
            "choose a backend by KERAS_BACKEND before Keras is imported."
        )
    return str(engine)


def check_cutting_engine(who: str, engine: object) -> None:
    """Refuse a trainer that cuts models up if its workers are to run on another backend."""
    if engine not in (None, "tensorflow"):
        raise ConfigurationError(
            f"{who} cuts models up with TensorFlow's own operations. Received: engine={engine!r}. "
            "Leave it out."
        )


def check_tensorflow(who: str) -> None:
    """Refuse a trainer that cuts models up if Keras does not run on TensorFlow."""
    if (name := current_backend()) != "tensorflow":
        raise ConfigurationError(
            f"{who} cuts models up with TensorFlow's own operations. Received: Keras on {name!r}. "
            "Set KERAS_BACKEND=tensorflow before Keras is imported, or use another trainer."
        )


def checked_whole(name: str, value: Any, *, least: int, most: int = LARGEST) -> int:
    """Return a whole number as a plain integer.

    Examples
    --------
    >>> import numpy as np
    >>> checked_whole("seed", np.int64(7), least=0)
    7
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not least <= int(value) <= most:
        upper = f" and at most {most}" if most < LARGEST or (whole and value > most) else ""
        raise ConfigurationError(
            f"{name} must be a whole number of at least {least}{upper}. Received: {value!r}."
        )
    return int(value)


def checked_servers(who: str, servers: Any, rule: Rule, given: Mapping[str, Any]) -> int:
    """Return the number of parameter servers as a plain integer.

    Examples
    --------
    >>> from distkeras_grid.rules import DownpourRule
    >>> checked_servers("DOWNPOUR", 4, DownpourRule(), {"validate": None})
    4
    """
    count = checked_whole("num_servers", servers, least=1, most=MOST_SERVERS)
    if count == 1:
        return count
    if not isinstance(rule, AsynchronousRule) or not rule.traits.reply_has_vector:
        raise ConfigurationError(
            "Several servers are for trainers that fold each commit for itself and reply with the "
            f"center. Received: num_servers={count} for {who}. Leave it out, or use ADAG, "
            "DOWNPOUR or another asynchronous trainer."
        )
    for name, (harmless, why) in _NEEDS_ONE.items():
        if given.get(name, harmless) != harmless:
            raise ConfigurationError(
                f"{name} {why}. Received: {name}={given[name]!r} with num_servers={count}. "
                "Leave one of them out."
            )
    return count


def checked_positive(name: str, value: Any) -> float:
    """Return a number above 0 as a plain one; see `check_positive`."""
    check_positive(name, value)
    return float(value)


def checked_class_weight(class_weight: Any) -> ClassWeight:
    """Return class weights as plain numbers by plain integers or names.

    ``"balanced"`` and None stay what they are.

    Examples
    --------
    >>> import numpy as np
    >>> checked_class_weight({np.int64(0): 1, 1.0: np.float32(2.5)})
    {0: 1.0, 1: 2.5}
    """
    if class_weight is None:
        return None
    example = 'such as {0: 1.0, 1: 2.5} or {"dark": 1.0, "light": 2.5}'
    if isinstance(class_weight, str) and class_weight == BALANCED:
        return BALANCED
    if not isinstance(class_weight, Mapping):
        raise ConfigurationError(
            f"class_weight must be {BALANCED!r}, or map classes to weights, {example}. "
            f"Received: {class_weight!r}."
        )
    for number, weight in class_weight.items():
        whole = isinstance(number, Real) and float(number).is_integer()
        if not (whole or isinstance(number, str)):
            raise ConfigurationError(
                f"class_weight names classes by their numbers or names, {example}. "
                f"Received: the class {number!r}."
            )
        if not isinstance(weight, Real) or not 0 <= float(weight) < math.inf:
            raise ConfigurationError(
                "class_weight holds finite numbers of at least 0. "
                f"Received: {weight!r} for class {number!r}."
            )
    return {
        number if isinstance(number, str) else int(number): float(weight)
        for number, weight in class_weight.items()
    }
