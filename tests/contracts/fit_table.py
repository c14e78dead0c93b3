"""The guide's page on what is taken, refused, and different from `fit`, written from the cases.

``make fit-table`` writes it, and a test compares the two.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from tests.contracts.like_fit import CASES, Case
from tests.contracts.unlike_fit import REFUSALS

PAGE = Path(__file__).parents[2] / "distkeras_grid" / "trainers" / "fit.md"
HEAD = """\
# Beside Keras' `fit`

`make fit-table` writes this page from the cases that `tests/contracts/test_like_fit.py` runs. In
each of them `SingleTrainer` trains as `fit` does, with `shuffle=False` and the same batches, from
the columns of a DataFrame. Then every variable of the model and every number of the history is
compared: the same bits where the table says so, and a difference of at most 1e-6 elsewhere. The
history of a trainer also has `learning_rate`.

Several workers train what the [rule of their trainer](README.md#which-trainer) says. For
`AveragingTrainer` the same tests compare two workers with averaging in a few lines of plain Keras.
"""


def page() -> str:
    parts = [HEAD]
    for topic, cases in groupby(CASES, key=lambda case: case.topic):
        parts.append(f"\n## {topic}\n\n| what | beside `fit` |\n|---|---|\n")
        parts += [f"| {case.text} | {beside(case)} |\n" for case in cases]
    parts.append("\n## Refused\n\nEach in one line, which says what to do.\n\n")
    parts.append("| what | instead |\n|---|---|\n")
    parts += [f"| {each.text} | {each.remedy} |\n" for each in REFUSALS]
    return "".join(parts)


def beside(case: Case) -> str:
    same = "the same bits" if case.tolerance == 0 else "equal"
    return f"{same}; {case.note}" if case.note else same


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
