"""`distkeras-grid applications`: which are listed, and how."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distkeras_grid.cli.applications import filter_applications, main
from distkeras_grid.cli.exit_codes import ExitCode
from distkeras_grid.cli.main import main as grid
from distkeras_grid.sandbox.configuration import render_site
from distkeras_grid.submission.applications import Application
from tests.distkeras_grid.submission.pages import FAILED, RUNNING, yarn_pages


def application(state: str, queue: str, user: str) -> Application:
    return Application("id", "job", user, queue, state, "FAILED", 0, 0, "", "", 1.0, 0.0)


def test_which_are_chosen():
    runs = application("RUNNING", "root.nightly", "me")
    ended = application("FINISHED", "root.default", "you")
    known = [runs, ended]
    assert filter_applications(known, running=True, queue=None, user=None) == [runs]
    assert filter_applications(known, running=False, queue="nightly", user=None) == [runs]
    assert filter_applications(known, running=False, queue="root.default", user="you") == [ended]
    assert filter_applications(known, running=False, queue="ightly", user=None) == []


def test_a_table_and_the_same_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    with yarn_pages() as url:
        site = {"yarn.resourcemanager.webapp.address": url.removeprefix("http://")}
        (tmp_path / "yarn-site.xml").write_text(render_site(site))
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
        assert main(["--limit", "1"]) == ExitCode.OK
        head, first, more = capsys.readouterr().out.splitlines()
        assert head.split()[:3] == ["id", "state", "queue"]
        assert first.split()[:4] == [RUNNING, "RUNNING", "root.nightly", "me"]
        assert "1 older" in more
        assert grid(["applications", "--log-format", "json"]) == ExitCode.OK
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [each["id"] for each in told["applications"]] == [RUNNING, FAILED]


@pytest.mark.parametrize("limit", ["0", "-1"])
def test_a_limit_below_one_is_refused(limit: str, capsys: pytest.CaptureFixture[str]):
    """With -1 the oldest one was left out, and counted twice."""
    assert main(["--limit", limit]) == ExitCode.USAGE
    assert "--limit must be at least 1" in capsys.readouterr().err
