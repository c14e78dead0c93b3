"""Arguments whose mistakes only a worker or the server would meet, checked before any work."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, cast, get_args

from distkeras_grid.engine.registry import backend_named, current_backend
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.parameter_server.compression import Compression, check_compression
from distkeras_grid.rules import OptimizerState, StatisticsSource
from distkeras_grid.rules.parameters import check_positive

if TYPE_CHECKING:
    from distkeras_grid.trainers.base import Trainer


@dataclass(frozen=True)
class Settled:
    """A trainer's common arguments, checked, as plain values.

    Parameters
    ----------
    workers : int or None
        None for as many as there are slots.
    batch_size, epochs : int
        Rows in a batch, passes over the data.
    learning_rate : float or None
        Rate of an optimizer given by name.
    custom_objects : mapping of str to object
        The user's own classes and functions.
    port : int
        Port of the parameter server; 0 for any.
    start_timeout, round_timeout : float
        Limits [s].
    compression : "bfloat16", DeepGradientCompression or None
        How exchanges are compressed.
    quorum : float
        Share of the workers that a round waits for.
    optimizer_state, statistics : str
        Policies.
    """

    workers: int | None
    batch_size: int
    epochs: int
    learning_rate: float | None
    custom_objects: Mapping[str, Any]
    port: int
    start_timeout: float
    round_timeout: float
    compression: Compression | None
    quorum: float
    optimizer_state: OptimizerState
    statistics: StatisticsSource


def settled(trainer: Trainer) -> Settled:
    """Check a trainer's common arguments, and return them as plain values.

    Parameters
    ----------
    trainer : Trainer
        Holds the arguments as they were given.

    Raises
    ------
    ConfigurationError
        Names the first argument that is out of its range.
    """
    workers, rate = trainer.workers_asked, trainer.learning_rate
    return Settled(
        workers=None if workers is None else checked_whole("num_workers", workers, least=1),
        batch_size=checked_whole("batch_size", trainer.batch_size, least=1),
        epochs=checked_whole("num_epoch", trainer.num_epoch, least=1),
        learning_rate=None if rate is None else checked_positive("learning_rate", rate),
        custom_objects=dict(trainer.custom_objects or {}),
        port=checked_whole("master_port", trainer.master_port, least=0, most=65535),
        start_timeout=checked_positive("start_timeout", trainer.start_timeout),
        round_timeout=checked_positive("round_timeout", trainer.round_timeout),
        compression=check_compression(trainer.compression),
        quorum=checked_quorum(trainer.quorum),
        optimizer_state=checked_optimizer_state(trainer.optimizer_state),
        statistics=checked_statistics(trainer.statistics),
    )


def check_backend() -> None:
    """Refuse to train where Keras runs on a backend for which there is no engine.

    Raises
    ------
    ConfigurationError
        Says what to set, and where.
    """
    backend_named(current_backend())


def checked_whole(name: str, value: Any, *, least: int, most: float = math.inf) -> int:
    """Return a whole number as a plain integer.

    Raises
    ------
    ConfigurationError
        If it is none, or out of its range.

    Examples
    --------
    >>> import numpy as np
    >>> checked_whole("seed", np.int64(7), least=0)
    7
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not least <= int(value) <= most:
        upper = "" if most == math.inf else f" and at most {most}"
        raise ConfigurationError(
            f"{name} must be a whole number of at least {least}{upper}. Received: {value!r}."
        )
    return int(value)


def checked_positive(name: str, value: Any) -> float:
    """Return a number above 0 as a plain one; see `check_positive`."""
    check_positive(name, value)
    return float(value)


def checked_quorum(quorum: Any) -> float:
    """Return the share of the workers that a round waits for.

    Raises
    ------
    ConfigurationError
        If it is no number from 0.5 to 1.

    Examples
    --------
    >>> checked_quorum(1)
    1.0
    """
    if not isinstance(quorum, Real) or not 0.5 <= float(quorum) <= 1:
        raise ConfigurationError(
            "quorum is the share of the workers that a round waits for, from 0.5 to 1.0. "
            f"Received: {quorum!r}."
        )
    return float(quorum)


def checked_optimizer_state(policy: Any) -> OptimizerState:
    """Return what becomes of the workers' optimizer state.

    Raises
    ------
    ConfigurationError
        If there is no such policy.

    Examples
    --------
    >>> checked_optimizer_state("reset")
    'reset'
    """
    _check_known(
        policy,
        get_args(OptimizerState),
        "optimizer_state is 'keep' (each worker goes on with its own), 'reset' (a new one in each "
        "window) or 'average' (all go on with the mean, of trainers that work in rounds)",
    )
    return cast(OptimizerState, policy)


def checked_statistics(policy: Any) -> StatisticsSource:
    """Return where batch normalization's statistics come from.

    Raises
    ------
    ConfigurationError
        If there is no such policy.

    Examples
    --------
    >>> checked_statistics("recalibrate")
    'recalibrate'
    """
    _check_known(
        policy,
        get_args(StatisticsSource),
        "statistics is 'average' (the workers' moving ones) or 'recalibrate' (those of all rows "
        "with the final weights)",
    )
    return cast(StatisticsSource, policy)


def _check_known(value: Any, known: tuple[str, ...], meanings: str) -> None:
    if value not in known:
        raise ConfigurationError(f"{meanings}. Received: {value!r}.")


def checked_class_weight(class_weight: Any) -> dict[int, float] | None:
    """Return class weights as plain numbers by plain integers; None stays None.

    Raises
    ------
    ConfigurationError
        If it is no mapping, or a class is no whole number, or a weight is negative, infinite or
        no number.

    Examples
    --------
    >>> import numpy as np
    >>> checked_class_weight({np.int64(0): 1, 1.0: np.float32(2.5)})
    {0: 1.0, 1: 2.5}
    """
    if class_weight is None:
        return None
    example = "such as {0: 1.0, 1: 2.5}"
    if not isinstance(class_weight, Mapping):
        raise ConfigurationError(
            f"class_weight must map numbers of classes to weights, {example}. "
            f"Received: {class_weight!r}."
        )
    for number, weight in class_weight.items():
        if not isinstance(number, Real) or not float(number).is_integer():
            raise ConfigurationError(
                f"class_weight names classes by their numbers, {example}. "
                f"Received the class {number!r}."
            )
        if not isinstance(weight, Real) or not 0 <= float(weight) < math.inf:
            raise ConfigurationError(
                "class_weight holds finite numbers of at least 0. "
                f"Received {weight!r} for class {number!r}."
            )
    return {int(number): float(weight) for number, weight in class_weight.items()}
