"""The folder of a comparison, with one file for each cell, so that it can be resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distkeras_grid import fsync
from distkeras_grid.errors import UNREADABLE, ConfigurationError, DataError, StorageError
from tests.benchmarks.studies.cells import Cell, Outcome

CONDITIONS = "conditions.json"


class Results:
    """Results of cells in a local folder, made if it is missing.

    Parameters
    ----------
    folder : Path
    conditions : mapping
        What all cells have in common, JSON types.

    Raises
    ------
    ConfigurationError
        If the folder holds results of other conditions.
    StorageError
        If the folder cannot be made.
    """

    def __init__(self, folder: Path, conditions: Mapping[str, Any]) -> None:
        self.folder = folder
        self.conditions = dict(conditions)
        self._cells = folder / "cells"
        try:
            self._cells.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{folder} cannot be made: {error}. Choose another.") from error
        path = folder / CONDITIONS
        if not path.exists():
            write_whole(path, self.conditions)
            return
        before = _read(path)
        for name in sorted({*before, *self.conditions}):
            if before.get(name) != self.conditions.get(name):
                raise ConfigurationError(
                    f"The results in {folder} were measured with {name} {before.get(name)!r}. "
                    f"Received: {self.conditions.get(name)!r}. Give the same, or another --output."
                )

    def __contains__(self, cell: Cell) -> bool:
        return (self._cells / cell.file_name).exists()

    def add(self, outcome: Outcome) -> None:
        """Store the result of a cell, whole or not at all."""
        write_whole(self._cells / outcome.cell.file_name, outcome.to_json())

    def read(self) -> list[Outcome]:
        """Return all results, by the names of their files.

        Raises
        ------
        DataError
            Names a file that is none.
        """
        paths = sorted(self._cells.glob("*.json"))
        return [Outcome.from_json(_read(path), str(path)) for path in paths]


def write_whole(path: Path, content: object) -> None:
    """Write JSON to a temporary file, and rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    fsync.replace(temporary, path)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except UNREADABLE as error:
        raise DataError(f"{path} is not JSON ({error}). Delete it.") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a JSON object. Delete it.")
    return content
