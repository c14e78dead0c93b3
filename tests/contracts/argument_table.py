"""The guide's page of a trainer's arguments, written from their table.

``make argument-table`` writes it, and a test compares the two.
"""

from __future__ import annotations

from pathlib import Path

import distkeras_grid
from distkeras_grid.model_parallel import MODEL_TRAINERS
from distkeras_grid.trainers import TRAINERS
from distkeras_grid.trainers.config import TrainerConfig
from distkeras_grid.trainers.parameters import Parameter

PAGE = Path(__file__).parents[2] / "distkeras_grid" / "trainers" / "arguments.md"
HEAD = """\
# Arguments of trainers

`make argument-table` writes this page from the trainers' classes, as `help(DOWNPOUR)` shows them.
[The guide](README.md#arguments) says how to give them on the command line.

## Of all trainers

| argument | type and default | option | meaning |
|---|---|---|---|
"""
OWN = """
## Of some trainers

| argument | of | type and default | meaning |
|---|---|---|---|
"""


def page() -> str:
    common = TrainerConfig.parameters
    rows = [
        f"| `{name}` | {kind(each)} | {each.flag and f'`{each.option}`'} | {meaning(each)} |\n"
        for name, each in common.items()
    ]
    owners: dict[Parameter, list[str]] = {}
    for trainer in (*TRAINERS, *MODEL_TRAINERS, "Towers"):
        for name, each in getattr(distkeras_grid, trainer).parameters.items():
            if name not in common:
                owners.setdefault(each, []).append(f"`{trainer}`")
    own = [
        f"| `{each.name}` | {', '.join(trainers)} | {kind(each)} | {meaning(each)} |\n"
        for each, trainers in owners.items()
    ]
    return "".join([HEAD, *rows, OWN, *own])


def kind(parameter: Parameter) -> str:
    """Return type and default, as documentation says them."""
    return parameter.heading.partition(" : ")[2].replace("|", "\\|")


def meaning(parameter: Parameter) -> str:
    return parameter.doc.replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
