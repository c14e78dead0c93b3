"""Frozen settings that travel as JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

from distkeras_grid.errors import ConfigurationError, UnknownArgumentError


@dataclasses.dataclass(frozen=True)
class Settings:
    """Base of frozen dataclasses that go to JSON and come back equal.

    Subclasses hold numbers, strings, booleans, ``None``, dicts of these, tuples of these and other
    `Settings`.
    """

    owner: ClassVar[str] = "settings"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON objects; tuples become lists."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    def to_text(self) -> str:
        """Return the JSON text, with sorted keys, so that equal settings give equal text."""
        return json.dumps(self.to_json(), sort_keys=True)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Build the settings from what `to_json` returned.

        Raises
        ------
        UnknownArgumentError
            If a key is not a field.
        ConfigurationError
            If a field without default is missing.
        """
        names = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(set(values) - names)
        if unknown:
            raise UnknownArgumentError.among(cls.__name__, unknown, names)
        hints = get_type_hints(cls)
        try:
            return cls(**{name: _typed(hints[name], value) for name, value in values.items()})
        except TypeError as error:
            raise ConfigurationError(
                f"{cls.__name__} cannot be built from {values!r}: {error}"
            ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Settings):
        return value.to_json()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _typed(hint: Any, value: Any) -> Any:
    """Turn JSON lists back into tuples and objects back into `Settings`, as the hint says."""
    arguments = get_args(hint)
    if value is None:
        return None
    if get_origin(hint) is tuple:
        return tuple(_typed(arguments[0], item) for item in value)
    for choice in (hint, *arguments):
        if isinstance(choice, type) and issubclass(choice, Settings) and isinstance(value, dict):
            return choice.from_json(value)
    return value
