"""The state of a simulated run in one file: NumPy arrays, and JSON that says where they belong.

The server's objects are taken apart attribute by attribute, whatever these are: what a rule will
have to remember one day is saved without a word here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import msgspec
import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import DataError, PathNotFoundError

_PLAIN = (type(None), bool, int, float, str)
_TREE, _ARRAY = "tree", "array"


def take_apart(thing: Any) -> Any:
    """Return what is in an object as lists, dicts, plain values and its own arrays.

    Frozen dataclasses, such as settings and rules, are left out: who builds the object has them.

    Parameters
    ----------
    thing : object
        Of arrays, plain values, lists, dicts with texts as keys, and objects of these.

    Examples
    --------
    >>> from distkeras_grid.simulation.events import Link
    >>> take_apart(Link(bandwidth=8.0, worker_bandwidth=4.0, latency=0.0))["free_at"]
    0.0
    """
    if isinstance(thing, (*_PLAIN, np.ndarray)):
        return thing
    if isinstance(thing, list | tuple):
        return [take_apart(part) for part in thing]
    if isinstance(thing, dict):
        return {name: take_apart(part) for name, part in thing.items()}
    return {
        name: take_apart(part) for name, part in _attributes(thing).items() if not _is_fixed(part)
    }


def put_together(thing: Any, tree: Any) -> None:
    """Give an object the state that `take_apart` returned of one that was built alike.

    Parameters
    ----------
    thing : object
        Changes in place.
    tree : mapping
        Its attributes.
    """
    for name, part in _attributes(thing).items():
        if not _is_fixed(part):
            setattr(thing, name, _restored(part, tree[name]))


def write(path: str | Path, tree: Mapping[str, Any]) -> None:
    """Write a tree of lists, dicts, plain values and arrays to a local file.

    Parameters
    ----------
    path : str or pathlib.Path
        Replaced if it exists.
    tree : mapping
        With texts as keys.
    """
    arrays: list[NDArray[Any]] = []
    text = json.dumps(_without_arrays(tree, arrays))
    with Path(path).open("wb") as file:
        named = {f"{_ARRAY}{number}": array for number, array in enumerate(arrays)}
        np.savez(
            file, allow_pickle=False, **{_TREE: np.frombuffer(text.encode(), np.uint8)}, **named
        )


def read(path: str | Path) -> dict[str, Any]:
    """Read what `write` wrote.

    Raises
    ------
    PathNotFoundError
        If there is no such file.
    DataError
        If it is no such file.
    """
    try:
        with Path(path).open("rb") as file:
            content = np.load(file, allow_pickle=False)
            tree = json.loads(content[_TREE].tobytes())
            return {name: _with_arrays(part, content) for name, part in tree.items()}
    except FileNotFoundError as error:
        raise PathNotFoundError(f"There is no saved simulation at {str(path)!r}.") from error
    except (BadZipFile, ValueError, KeyError, IndexError, EOFError, OSError) as error:
        raise DataError(f"{str(path)!r} is no saved simulation: {error}.") from error


def _attributes(thing: Any) -> dict[str, Any]:
    # Those with slots have no dict.
    if is_dataclass(thing):
        return {field.name: getattr(thing, field.name) for field in fields(thing)}
    return dict(vars(thing))


def _is_fixed(thing: Any) -> bool:
    if isinstance(thing, msgspec.Struct):
        return type(thing).__struct_config__.frozen
    parameters = getattr(thing, "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


def _restored(thing: Any, tree: Any) -> Any:
    """Return `tree` as what `thing` is: an object stays itself and gets its attributes."""
    if isinstance(thing, np.ndarray):
        # In place, for it may be known by two names.
        np.copyto(thing, tree)
        return thing
    if isinstance(thing, (*_PLAIN, dict)):
        return tree
    if isinstance(thing, list | tuple):
        if len(thing) != len(tree) or all(isinstance(part, _PLAIN) for part in thing):
            return tree
        return [_restored(part, saved) for part, saved in zip(thing, tree, strict=True)]
    put_together(thing, tree)
    return thing


def _without_arrays(tree: Any, arrays: list[NDArray[Any]]) -> Any:
    if isinstance(tree, np.ndarray):
        known = [number for number, array in enumerate(arrays) if array is tree]
        if not known:
            arrays.append(tree)
        return {_ARRAY: (known or [len(arrays) - 1])[0]}
    if isinstance(tree, dict):
        return {name: _without_arrays(part, arrays) for name, part in tree.items()}
    if isinstance(tree, list):
        return [_without_arrays(part, arrays) for part in tree]
    return tree


def _with_arrays(tree: Any, arrays: Any) -> Any:
    if isinstance(tree, dict):
        if tree.keys() == {_ARRAY}:
            return arrays[f"{_ARRAY}{tree[_ARRAY]}"]
        return {name: _with_arrays(part, arrays) for name, part in tree.items()}
    if isinstance(tree, list):
        return [_with_arrays(part, arrays) for part in tree]
    return tree
