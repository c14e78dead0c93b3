"""The state of a simulated run in one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from distkeras_grid import trees
from distkeras_grid.errors import DataError, PathNotFoundError


def write(path: str | Path, tree: Mapping[str, Any]) -> None:
    """Write a tree of lists, dicts, plain values and arrays to a local file.

    Parameters
    ----------
    path : str or pathlib.Path
        The file, which is replaced if it exists.
    tree : mapping
        The tree; its keys are strings.
    """
    Path(path).write_bytes(trees.pack(tree).data)


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
        return trees.unpack(np.fromfile(path, np.uint8))
    except FileNotFoundError as error:
        raise PathNotFoundError(f"There is no saved simulation at {str(path)!r}.") from error
    except (DataError, OSError) as error:
        reason = str(error).removesuffix(".")
        raise DataError(f"{str(path)!r} is not a saved simulation: {reason}.") from error
