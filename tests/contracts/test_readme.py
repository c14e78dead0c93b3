"""The README's own algorithm is one."""

import re
from pathlib import Path

import numpy as np


def test_the_algorithm_of_the_readme_runs(project: Path) -> None:
    text = (project / "README.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(@dataclass.*?)```", text, re.DOTALL)
    names: dict[str, object] = {}
    exec(
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "import numpy as np\n"
        "from distkeras_grid.rules import CommitInfo, Rule\n"
        "from distkeras_grid.rules.downpour import DeltaRule\n"
        "from distkeras_grid.trainers.base import Trainer\n"
        "from distkeras_grid.weights import Vector\n" + source,
        names,
    )
    rule = names["HalfRule"]()  # type: ignore[operator]
    center, out = np.zeros(2, np.float32), np.empty(2, np.float32)
    rule.propose(center, np.array([2, 4], np.float32), 1, out)
    rule.fold(center, out, names["CommitInfo"](0, 1, 1, 0), [])  # type: ignore[operator]
    assert center.tolist() == [1, 2]
    assert names["Half"].default_window == 8  # type: ignore[attr-defined]
