"""Checks of the parameters of rules."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.frozen_struct import LARGEST


def check_positive(name: str, value: Any, *, below: float = math.inf, zero: bool = False) -> None:
    """Refuse a parameter that is out of its range.

    `below`: the number must be smaller.

    Examples
    --------
    >>> check_positive("momentum", 0, below=1, zero=True)
    >>> check_positive("kappa", "2")
    Traceback (most recent call last):
    distkeras_grid.errors.ConfigurationError: kappa must be above 0 and finite. Received: '2'.
    """
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not (0 <= value < below) or (value == 0 and not zero):
        least = "at least 0" if zero else "above 0"
        most = "finite" if below == math.inf else f"below {below:g}"
        raise ConfigurationError(f"{name} must be {least} and {most}. Received: {value!r}.")


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
