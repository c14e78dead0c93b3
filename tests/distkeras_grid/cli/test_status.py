"""`distkeras-grid status` and `logs`: what is shown."""

from __future__ import annotations

import json

import pytest

from distkeras_grid.cli import logs, status
from distkeras_grid.cli.exit_codes import ExitCode
from distkeras_grid.cli.main import main as grid
from tests.distkeras_grid.submission.pages import FAILED, RUNNING, application


def test_an_application_in_words():
    ended = {"state": "FINISHED", "finalStatus": "FAILED", "trackingUrl": ""}
    lines = status.describe(application(FAILED, **ended)).splitlines()
    assert lines[0].split(maxsplit=1) == ["application", f"{FAILED} (a job)"]
    assert lines[2].split(maxsplit=1) == ["state", "FINISHED, FAILED"]
    assert not any(line.startswith(("finished", "uses")) for line in lines)
    assert lines[3].split()[1].startswith("1970-01-01")


def test_it_is_told_over_http_at_once_with_the_exit_code_of_the_program(yarn, capsys):
    yarn()
    assert status.main([RUNNING]) == ExitCode.OK
    assert status.main([FAILED]) == ExitCode.CLUSTER
    assert f"why\nwhat it wrote: distkeras-grid logs {FAILED}\n" in capsys.readouterr().err
    assert status.main(["application_1_0001"]) == ExitCode.CLUSTER
    capsys.readouterr()
    assert status.main([]) == ExitCode.OK
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["id", "state", "queue"]
    assert first.split()[:4] == [RUNNING, "RUNNING", "root.nightly", "me"]
    assert second.split()[:2] == [FAILED, "FAILED"]
    assert grid(["status", "--log-format", "json"]) == ExitCode.OK
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [each["id"] for each in last["applications"]] == [RUNNING, FAILED]


@pytest.mark.parametrize(("flags", "lines"), [(["1"], ["c"]), (["0", "--driver"], ["a", "b", "c"])])
def test_what_one_that_runs_has_written(flags, lines, yarn, capsys):
    yarn()
    assert logs.main([RUNNING, "--lines", *flags]) == ExitCode.OK
    _, heading, *written = capsys.readouterr().out.splitlines()
    assert heading.startswith("== ")
    assert written == lines
