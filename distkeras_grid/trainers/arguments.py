"""Checks of arguments beyond their type and range, which the table of parameters says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal, TypeAlias

from distkeras_grid.engine.registry import backend_named, current_backend
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rules import AsynchronousRule, Rule

BALANCED: Literal["balanced"] = "balanced"
#: Each server is a process on the driver's host.
MOST_SERVERS = 64
#: What needs a single server, by the name of the argument: the value that needs none, and why.
_NEEDS_ONE: Mapping[str, tuple[Any, str]] = {
    "validate": (None, "looks at whole commits, and each server sees a part of them"),
    "on_nonfinite": ("stop", "leaves out whole commits, and each server sees a part of them"),
}
#: By the numbers of classes.
ClassWeight: TypeAlias = dict[int, float] | Literal["balanced"] | None


def check_backend() -> None:
    """Refuse to train if Keras runs on a backend that has no engine."""
    backend_named(current_backend())


def check_tensorflow(who: str) -> None:
    """Refuse a trainer that cuts models up if Keras does not run on TensorFlow."""
    if (name := current_backend()) != "tensorflow":
        raise ConfigurationError(
            f"{who} cuts models up with TensorFlow's own operations. Received: Keras on {name!r}. "
            "Set KERAS_BACKEND=tensorflow before Keras is imported, or use another trainer."
        )


def check_servers(who: str, servers: int, rule: Rule, arguments: Mapping[str, Any]) -> None:
    """Refuse several parameter servers for a rule, or beside an argument, that needs one."""
    if servers == 1:
        return
    if not isinstance(rule, AsynchronousRule) or not rule.traits.reply_has_vector:
        raise ConfigurationError(
            "Several servers are for trainers that fold each commit for itself and reply with the "
            f"center. Received: num_servers={servers} for {who}. Leave it out, or use ADAG, "
            "DOWNPOUR or another asynchronous trainer."
        )
    for name, (harmless, why) in _NEEDS_ONE.items():
        if arguments.get(name, harmless) != harmless:
            raise ConfigurationError(
                f"{name} {why}. Received: {name}={arguments[name]!r} with num_servers={servers}. "
                "Leave one of them out."
            )


def checked_class_weight(class_weight: Any) -> ClassWeight:
    """Return class weights as plain numbers by plain integers; others stay what they are."""
    if class_weight is None:
        return None
    example = "such as {0: 1.0, 1: 2.5}"
    if isinstance(class_weight, str) and class_weight == BALANCED:
        return BALANCED
    if not isinstance(class_weight, Mapping):
        raise ConfigurationError(
            f"class_weight must be {BALANCED!r}, or map classes to weights, {example}. "
            f"Received: {class_weight!r}."
        )
    for number, weight in class_weight.items():
        if not isinstance(number, Real) or not float(number).is_integer():
            raise ConfigurationError(
                f"class_weight names classes by their numbers, {example}. "
                f"Received: the class {number!r}."
            )
        if not isinstance(weight, Real) or not 0 <= float(weight) < math.inf:
            raise ConfigurationError(
                "class_weight holds finite numbers of at least 0. "
                f"Received: {weight!r} for class {number!r}."
            )
    return {int(number): float(weight) for number, weight in class_weight.items()}
