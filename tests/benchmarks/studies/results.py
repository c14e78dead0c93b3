"""The results of a comparison: a file with a line for each cell, and a table of all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec

from distkeras_grid.errors import ConfigurationError
from tests.benchmarks.studies.cells import LOCAL, Cell, Outcome

HEAD = (
    *("model", "batch", "side", "window", "seeds", "failed", "start-up s"),
    *("s after epoch 1", "accuracy after epoch 1", "s at the end", "accuracy at the end"),
    "test accuracy",
)
FIGURES = {
    "start_seconds": 1,
    "first_seconds": 2,
    "first_accuracy": 4,
    "end_seconds": 2,
    "end_accuracy": 4,
    "test_accuracy": 4,
}


class Results:
    """Lines of JSON, of which the first says what all cells have in common."""

    def __init__(self, path: Path, conditions: Mapping[str, Any]) -> None:
        self._path = path
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(conditions) + "\n", encoding="utf-8")
        head, *lines = path.read_text(encoding="utf-8").splitlines()
        before = json.loads(head)
        for name in sorted({*before, *conditions}):
            if before.get(name) != conditions.get(name):
                raise ConfigurationError(
                    f"The results in {path} were measured with {name} {before.get(name)!r}. "
                    f"Received: {conditions.get(name)!r}. Give the same, or another --output."
                )
        self.outcomes = [msgspec.json.decode(line, type=Outcome) for line in lines]

    def __contains__(self, cell: Cell) -> bool:
        return any(outcome.cell == cell for outcome in self.outcomes)

    def add(self, outcome: Outcome) -> None:
        """Append a line."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(outcome) + b"\n")
        self.outcomes.append(outcome)


def table(outcomes: Sequence[Outcome]) -> list[list[object]]:
    """Return a row for each model, batch and side, ``local`` first: mean (lowest to highest)."""
    sides: dict[tuple[object, ...], list[Outcome]] = {}
    for each in outcomes:
        cell = each.cell
        key = (cell.model, cell.batch, cell.trainer != LOCAL, cell.side)
        sides.setdefault(key, []).append(each)
    rows: list[list[object]] = []
    for (model, batch, _, side), group in sorted(sides.items()):
        good = [each for each in group if not each.error]
        row = [model, batch, side, good[0].window if good else "", len(good)]
        row.append(len(group) - len(good))
        for name, digits in FIGURES.items():
            row.append(_spread([getattr(each, name) for each in good], digits))
        rows.append(row)
    return rows


def _spread(values: Sequence[float], digits: int) -> str:
    if not values:
        return ""
    middle, low, high = (f"{v:.{digits}f}" for v in (mean(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"
