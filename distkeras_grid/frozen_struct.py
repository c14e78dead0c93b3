"""Frozen values that JSON can describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec
import numpy as np

from distkeras_grid.errors import ConfigurationError

#: The largest whole number that every reader of a run's JSON takes as one.
LARGEST = 2**63 - 1


class FrozenStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A frozen value that JSON can describe."""

    def to_json(self) -> dict[str, Any]:
        """Return the value as plain JSON values."""
        described: dict[str, Any] = msgspec.to_builtins(self, str_keys=True, enc_hook=plain_number)
        return described

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Build the value that `to_json` described; raise `ConfigurationError` if it is another."""
        try:
            return msgspec.convert(data, cls, str_keys=True)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"{cls.__name__} cannot be read: {error}.") from error


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with NumPy's numbers as Python's, for JSON."""
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in values.items()
    }


def plain_number(value: Any) -> Any:
    """Return a number of NumPy, inside a description of Keras, as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise ConfigurationError(
        "A run is described by numbers, texts, lists and mappings. "
        f"Received: {type(value).__name__}, {value!r}."
    )
