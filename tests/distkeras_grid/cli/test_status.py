"""`distkeras-grid status`, `cancel` and `logs`: what is refused, and what is shown."""

from __future__ import annotations

import json
import socket

import pytest

from distkeras_grid.cli import cancel, logs, status
from distkeras_grid.cli.exit_codes import ExitCode
from distkeras_grid.cli.main import main as grid
from distkeras_grid.sandbox.configuration import render_site
from distkeras_grid.submission.applications import Application
from tests.distkeras_grid.submission.pages import FAILED, RUNNING, yarn_pages


def test_an_application_in_words():
    application = Application(
        **{"id": "application_17_0001", "name": "a job", "user": "me", "queue": "nightly"},
        **{"state": "FINISHED", "final": "FAILED", "started_ms": 1000, "finished_ms": 0},
    )
    lines = status.describe(application).splitlines()
    assert lines[0].split(maxsplit=1) == ["application", "application_17_0001 (a job)"]
    assert lines[2].split(maxsplit=1) == ["state", "FINISHED, FAILED"]
    assert not any(line.startswith(("finished", "uses")) for line in lines)
    assert lines[3].split()[1].startswith("1970-01-01")


def test_it_is_told_over_http_at_once_with_the_exit_code_of_the_program(
    tmp_path, capsys, monkeypatch
):
    with yarn_pages() as url:
        site = {"yarn.resourcemanager.webapp.address": url.removeprefix("http://")}
        (tmp_path / "yarn-site.xml").write_text(render_site(site))
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
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


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], ["c"]),
        (["--lines", "0"], ["a", "b", "c"]),
        (["--driver"], ["c"]),
    ],
)
def test_what_one_that_runs_has_written(flags, told, tmp_path, capsys, monkeypatch):
    with yarn_pages() as url:
        site = {"yarn.resourcemanager.webapp.address": url.removeprefix("http://")}
        (tmp_path / "yarn-site.xml").write_text(render_site(site))
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
        assert logs.main([RUNNING, "--lines", "1", *flags]) == ExitCode.OK
        lines = capsys.readouterr().out.splitlines()
        shown = [line for line in lines if line and not line.startswith("==")]
        assert [line.split()[-1] for line in shown] == told


def test_a_resource_manager_that_is_not_there_is_told(tmp_path, capsys, monkeypatch):
    with socket.socket() as unused:
        # It does not listen, and no other test can take its port.
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        site = {"yarn.resourcemanager.webapp.address": address}
        (tmp_path / "yarn-site.xml").write_text(render_site(site))
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
        for main in (status.main, cancel.main, logs.main):
            assert main(["application_1_0001"]) == ExitCode.CLUSTER
            told = capsys.readouterr().err
            assert address in told
            assert "ResourceManager" in told
