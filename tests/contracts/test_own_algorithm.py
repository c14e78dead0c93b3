"""The algorithm that the guide adds is one, and the contracts hold for it."""

import re
from pathlib import Path

import numpy as np
import pytest

import distkeras_grid
from distkeras_grid.rules import RULES
from tests.contracts import test_rules, test_trainers

pytestmark = pytest.mark.tensorflow


def test_the_algorithm_of_the_guide_runs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import keras

    text = (project / "distkeras_grid/trainers/README.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(@dataclass.*?)```", text, re.DOTALL)
    names: dict[str, object] = {}
    exec(
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "import numpy as np\n"
        "from distkeras_grid.rules import CommitInfo, DeltaRule, Rule\n"
        "from distkeras_grid.trainers.base import Trainer\n"
        "from distkeras_grid.weights import Vector\n" + source,
        names,
    )
    rule = names["HalfRule"]()  # type: ignore[operator]
    center, out = np.zeros(2, np.float32), np.empty(2, np.float32)
    rule.compute_commit(center, np.array([2, 4], np.float32), 1, out)
    rule.fold(center, out, names["CommitInfo"](0, 1, 1, 0), [])  # type: ignore[operator]
    assert center.tolist() == [1, 2]
    assert names["Half"].default_window == 8  # type: ignore[attr-defined]
    monkeypatch.setitem(RULES, "half", names["HalfRule"])  # type: ignore[arg-type]
    monkeypatch.setattr(distkeras_grid, "Half", names["Half"], raising=False)
    test_rules.test_round_trip_by_name_and_parameters(rule)
    test_rules.test_nothing_trained_changes_nothing(rule)
    test_rules.test_statistics_are_never_summed(rule)
    test_rules.test_a_reply_may_be_applied_in_place(rule)
    test_rules.test_repeated_commits_leave_the_center_alone(rule)
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    net.compile("sgd", "mse")
    test_trainers.test_the_common_arguments_are_taken_and_a_misspelt_one_is_told("Half", net)
    test_trainers.test_the_extras_are_what_the_constructor_adds_and_what_the_run_keeps("Half", net)
    test_trainers.test_every_argument_is_documented_with_its_default("Half")
    test_trainers.test_the_rule_travels_as_json("Half", net)
