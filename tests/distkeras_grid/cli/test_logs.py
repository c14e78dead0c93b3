"""Which logs are chosen, and how they are shown."""

from __future__ import annotations

import pytest

from distkeras_grid.cli.logs import select, show
from distkeras_grid.submission.container_logs import LogFile

DRIVER, EXECUTOR = "container_17_0003_01_000001", "container_17_0003_01_000002"


class Source:
    """Logs by container and name."""

    def __init__(self, logs):
        self.logs = logs

    def files(self):
        return [LogFile(*place, len(text)) for place, text in self.logs.items()]

    def read(self, file, last=None):
        text = self.logs[file.container, file.node, file.name]
        return (text if last is None else text[-last:]).decode()


SOURCE = Source(
    {
        (DRIVER, "a:1", "stdout"): b"one\ntwo\nthree\n",
        (DRIVER, "a:1", "stderr"): b"",
        (DRIVER, "a:1", "prelaunch.out"): b"begun",
        (EXECUTOR, "b:1", "stderr"): b"lost\n",
    }
)


@pytest.mark.parametrize(
    ("driver", "selected"),
    [(False, [(DRIVER, "stdout"), (EXECUTOR, "stderr")]), (True, [(DRIVER, "stdout")])],
)
def test_the_programs_output_is_selected(driver, selected):
    files = select(SOURCE.files(), driver=driver)
    assert [(file.container, file.name) for file in files] == selected


@pytest.mark.parametrize(("lines", "shown"), [(0, ["one", "two", "three"]), (2, ["two", "three"])])
def test_the_last_lines_are_shown_below_a_heading(lines, shown, capsys):
    show(SOURCE, SOURCE.files()[:1], lines)
    _, heading, *rest = capsys.readouterr().out.splitlines()
    assert DRIVER in heading
    assert rest == shown
