"""Which logs are chosen, and how they are shown."""

from __future__ import annotations

import pytest

from distkeras_grid.cli.logs import select, show
from tests.distkeras_grid.submission.pages import Logs

DRIVER, EXECUTOR = "container_17_0003_01_000001", "container_17_0003_01_000002"


LOGS = Logs(
    {
        (DRIVER, "stdout"): "one\ntwo\nthree\n",
        (DRIVER, "stderr"): "",
        (DRIVER, "prelaunch.out"): "begun",
        (EXECUTOR, "stderr"): "lost\n",
    }
)


@pytest.mark.parametrize(
    ("driver", "selected"),
    [(False, [(DRIVER, "stdout"), (EXECUTOR, "stderr")]), (True, [(DRIVER, "stdout")])],
)
def test_the_programs_output_is_selected(driver, selected):
    files = select(LOGS.files(), driver=driver)
    assert [(file.container, file.name) for file in files] == selected


@pytest.mark.parametrize(("lines", "shown"), [(0, ["one", "two", "three"]), (2, ["two", "three"])])
def test_the_last_lines_are_shown_below_a_heading(lines, shown, capsys):
    show(LOGS, LOGS.files()[:1], lines)
    _, heading, *rest = capsys.readouterr().out.splitlines()
    assert DRIVER in heading
    assert rest == shown
