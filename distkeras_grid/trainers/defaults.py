"""Defaults that depend on the run: windows, elastic force, scale of the commits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from distkeras_grid.errors import ConfigurationError

# An epoch has at least this many exchanges per worker, unless the user sets the window. With fewer,
# training on small data loses accuracy.
EXCHANGES_PER_EPOCH = 20

# Optimizers that scale the step of each weight by its own history. Deltas of n workers that start
# from the same point then add up to a step that is n times too long. An optimizer that holds
# several counts as adaptive, because one of them usually is.
ADAPTIVE_OPTIMIZERS = frozenset(
    {"adam", "adamw", "adamax", "nadam", "adagrad", "adadelta", "adafactor", "rmsprop", "lion"}
    | {"ftrl", "lamb", "muon", "schedulefreeadamw", "multioptimizer"}
)


@dataclass(frozen=True)
class CommunicationWindow:
    """A communication window and why it was chosen."""

    # Batches between two exchanges; None for one exchange per epoch, or a single one
    batches: int | None
    reason: str = ""  # For the run's first lines; empty if the user gave the window
    once: bool = False  # Whether workers exchange only once, after all epochs

    def __str__(self) -> str:
        if self.batches is None:
            return "once, at the end" if self.once else "once an epoch"
        return "every batch" if self.batches == 1 else f"every {self.batches} batches"


def choose_window(
    window: int | Literal["epoch", "once"] | None, default: int, seat_rows: int, batch_size: int
) -> CommunicationWindow:
    """Return the user's window, or the default, which is reduced for small data.

    `default`: the trainer's default [batches].
    """
    if isinstance(window, str):
        return CommunicationWindow(None, once=window == "once")
    if window is not None:
        return CommunicationWindow(window)
    steps = math.ceil(seat_rows / batch_size)
    cap = max(1, steps // EXCHANGES_PER_EPOCH)
    if cap >= default:
        return CommunicationWindow(default)
    return CommunicationWindow(
        cap,
        f"communication_window is {cap}, not {default}, because an epoch of a worker has only "
        f"{steps} batches",
    )


def optimizer_kind(optimizer: Any) -> str:
    """Return the name of the Keras class that an optimizer is, wraps or is derived from.

    Under the policy mixed_float16 Keras wraps the optimizer, and a user's may be a derived class.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    kinds = (kind for kind in type(inner).__mro__ if kind.__module__.startswith("keras."))
    kind = next(kinds, type(inner))
    # Of one that is derived from no other its own name says most.
    return (type(inner) if kind.__name__ == "Optimizer" else kind).__name__


def choose_commit_scale(scale: float | str, optimizer: str, workers: int) -> float:
    """Return the factor of DOWNPOUR's commits.

    ``"auto"`` is 1, but 1/workers with an adaptive optimizer. Adam's steps are about as long as the
    learning rate, whatever the gradient, so the sum of n workers' deltas is n times as long as the
    delta of one worker.
    """
    if scale == "auto":
        return 1.0 / workers if optimizer.lower() in ADAPTIVE_OPTIMIZERS else 1.0
    return float(scale)


def choose_alpha(
    alpha: float | None, rho: float | None, learning_rate: float | None, workers: int
) -> float:
    """Return the elastic force of one exchange.

    Zhang et al. 2015 use ``alpha = beta / n`` with beta = 0.9; dist-keras uses
    ``alpha = rho * learning_rate``.
    """
    if alpha is not None and rho is not None:
        raise ConfigurationError(f"Give alpha or rho, not both. Received: {alpha=}, {rho=}.")
    if rho is not None:
        if learning_rate is None:
            raise ConfigurationError("rho needs learning_rate: alpha = rho * learning_rate.")
        alpha = rho * learning_rate
    force = 0.9 / workers if alpha is None else float(alpha)
    if force > 1:
        raise ConfigurationError(f"alpha must be at most 1. Received: {force:g}.")
    return force
