"""The state of a simulated run in one file: NumPy arrays, and JSON with their places."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from distkeras_grid.errors import DataError, PathNotFoundError

_TREE, _ARRAY = "tree", "array"


def write(path: str | Path, tree: Mapping[str, Any]) -> None:
    """Write a tree of lists, dicts, plain values and arrays to a local file.

    Parameters
    ----------
    path : str or pathlib.Path
        The file, which is replaced if it exists.
    tree : mapping
        The tree; its keys are strings.
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
        If it was not written by `write`.
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
