"""Frozen values that JSON can describe, and that refuse what is not theirs by name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin

import msgspec
import numpy as np

from distkeras_grid.errors import ConfigurationError, UnknownArgumentError

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
            raise _translated(error, cls, data) from error

    @classmethod
    def checked(cls, **fields: Any) -> Self:
        """Build the value from what a user gave: numbers of NumPy count, wrong types are refused.

        Examples
        --------
        >>> class Limits(FrozenStruct, frozen=True):
        ...     threads: int = 1
        ...     seconds: float = 1.0
        >>> Limits.checked(seconds=np.float32(2)).seconds
        2.0
        >>> Limits.checked(threads="2")
        Traceback (most recent call last):
            ...
        distkeras_grid.errors.ConfigurationError: threads must be a whole number. Received: '2'.
        """
        return cls.from_json(plain(fields))


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with NumPy's numbers as Python's, for JSON.

    Examples
    --------
    >>> plain({"alpha": np.float32(0.5), "rho": None})
    {'alpha': 0.5, 'rho': None}
    """
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


def store(value: FrozenStruct, name: str, content: Any) -> None:
    """Set a field of a value that is being built."""
    msgspec.structs.force_setattr(value, name, content)


def within(name: str, value: float, least: float, most: float = LARGEST) -> None:
    """Refuse a number that is out of its range."""
    # Not `value < least`: NaN is refused, too.
    if not least <= value <= most:
        upper = f" and at most {most:g}" if most < LARGEST or value > most else ""
        raise ConfigurationError(f"{name} must be at least {least:g}{upper}. Received: {value!r}.")


def above_zero(name: str, value: float) -> None:
    """Refuse a number that is not above 0, or not finite."""
    if not 0 < value < math.inf:
        raise ConfigurationError(f"{name} must be above 0 and finite. Received: {value!r}.")


_WRONG_TYPE = re.compile(r"^(?:Expected|Invalid enum) .* - at `\$\.(?P<path>[\w.]+)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`(?: - at `\$\.?(?P<path>[^`]*)`)?")


def _translated(
    error: msgspec.ValidationError, kind: type[FrozenStruct], data: Any
) -> ConfigurationError:
    """Return msgspec's error as one of the project's; a value's own refusal stays as it is."""
    if isinstance(error.__cause__, ConfigurationError):
        return error.__cause__
    owner = kind.__name__
    if match := _UNKNOWN.search(str(error)):
        fields = _fields_at(kind, match["path"] or "")
        where = f"{owner}.{match['path']}" if match["path"] else owner
        return UnknownArgumentError.among(where, [match["name"]], fields)
    if match := _WRONG_TYPE.search(str(error)):
        *sections, name = match["path"].split(".")
        types = _types(_section_at(kind, sections))
        if name in types:
            value = data
            for step in (*sections, name):
                value = value[step] if isinstance(value, Mapping) else getattr(value, step)
            *others, last = type_words(types[name])
            demand = f"{', '.join(others)} or {last}" if others else last
            return ConfigurationError(f"{name} must be {demand}. Received: {value!r}.")
    return ConfigurationError(f"{owner} cannot be read: {error}.")


def _fields_at(kind: type[FrozenStruct], path: str) -> tuple[str, ...]:
    """Return the fields of the section that a path of msgspec leads to."""
    return _section_at(kind, filter(None, path.split("."))).__struct_fields__


def _section_at(kind: type[FrozenStruct], path: Iterable[str]) -> type[FrozenStruct]:
    """Return the kind of the value that a path of field names leads to, as far as it is known."""
    for step in path:
        options = get_args(kinds := _types(kind).get(step)) or (kinds,)
        inner = [
            item for item in options if isinstance(item, type) and issubclass(item, FrozenStruct)
        ]
        if not inner:
            break
        kind = inner[0]
    return kind


def _types(kind: type[FrozenStruct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


_WORDS = {int: "a whole number", float: "a number", str: "a text"}


def type_words(kind: Any) -> Iterator[str]:
    """Yield what a field of this type takes, in words."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        for option in sorted(get_args(kind), key=lambda each: each is NoneType):
            yield from type_words(option)
    elif origin is Literal:
        yield from map(repr, get_args(kind))
    elif kind is bool:
        yield from ("True", "False")
    elif kind is NoneType:
        yield "None"
    elif kind in _WORDS:
        yield _WORDS[kind]
    else:
        yield "a list" if origin in (list, tuple, Sequence) else "a mapping"
