"""`distkeras-grid submit`: what is refused before anything starts, and how an end is told."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from distkeras_grid.cli.exit_codes import ExitCode
from distkeras_grid.cli.main import main as grid
from distkeras_grid.cli.submit import (
    build_parser,
    driver_line,
    in_client,
    in_cluster,
    planned,
    resolve_job,
    split_arguments,
    verdict,
)
from distkeras_grid.errors import ClusterError
from distkeras_grid.submission import run_verb
from distkeras_grid.submission.command import Submission
from distkeras_grid.submission.resource_manager import ResourceManager
from distkeras_grid.submission.spark_submit import hand_over
from tests.distkeras_grid.submission.pages import FAILED, RUNNING, app, application

EVALUATE = ("evaluate", "--data", "hdfs:///predicted")


def test_flags_before_the_job_are_ours_and_those_after_it_the_jobs():
    submission = planned(
        build_parser().parse_args(
            ["--executors", "3", "--conf", "spark.a=1", *EVALUATE, "--master", "local"]
        )
    )
    assert submission.executors == 3
    assert submission.settings == {"spark.a": "1"}
    assert submission.name == "distkeras-grid evaluate"
    assert submission.master == "yarn"
    assert submission.arguments == [
        "evaluate",
        *("--data", "hdfs:///predicted", "--master", "local"),
    ]
    assert Path(submission.program).name == "run_verb.py"


def test_the_format_of_lines_before_the_job_is_ours_and_after_it_the_jobs():
    ours = ["--log-format", "json", "--py-files", "b.py"]
    of_job = ["--log-format", "json", "--data", "x"]
    assert split_arguments([*ours, "evaluate", *of_job]) == ([*ours, "evaluate"], of_job)
    # Also of a program of the user's, whatever it means there.
    assert split_arguments(["my.py", "--queue", "x"]) == (["my.py"], ["--queue", "x"])


def test_the_command_line_hands_the_jobs_flags_over_untouched(capsys, monkeypatch):
    monkeypatch.setenv("HADOOP_CONF_DIR", "")
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    # Text, not JSON: the format is the job's. What is refused is refused by submit.
    assert grid(["submit", "evaluate", "--data", "x", "--log-format", "json"]) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("ConfigurationError: HADOOP_CONF_DIR is not set")
    assert grid(["submit", "--log-format", "json", "evaluate", "--data", "x"]) == ExitCode.USAGE
    assert '"error"' in capsys.readouterr().err


def test_what_runs_in_the_container_takes_the_format_of_its_lines():
    ended = subprocess.run(
        [
            *(sys.executable, str(run_verb.__file__), "evaluate"),
            *("--log-format", "json", "--no-such-flag"),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == ExitCode.USAGE
    last = json.loads(ended.stdout.splitlines()[-1])
    assert (last["verb"], last["exit_code"]) == ("evaluate", ExitCode.USAGE)


@pytest.fixture
def client(monkeypatch) -> Submission:
    """A job in client mode, whose driver ends with 7."""
    monkeypatch.setattr("distkeras_grid.submission.spark_submit.follow", lambda *_: 7)
    return planned(build_parser().parse_args(EVALUATE))


def test_in_client_mode_the_application_is_told_at_the_end(client, yarn, capsys):
    both = [app("application_17_0008"), app("application_17_0009", applicationTags=client.tag)]
    yarn({"/ws/v1/cluster/apps": {"apps": {"app": both}}})
    assert in_client([], client) == 7
    told = capsys.readouterr().err
    assert "application_17_0009" in told
    assert "application_17_0008" not in told


@pytest.fixture
def going(client, yarn):
    """YARN's page with the application of `client`, which waits."""
    told = app("application_17_0009", applicationTags=client.tag, state="ACCEPTED")
    apps = "/ws/v1/cluster/apps"
    yarn({apps: {"apps": {"app": [told]}}, f"{apps}/{told['id']}": {"app": told}})
    return told


def interrupt(*_):
    raise KeyboardInterrupt


def in_container(command, submission):
    return in_cluster(command, submission, None, detach=False)


@pytest.mark.parametrize(
    ("run", "step"),
    [
        (in_client, "spark_submit.follow"),
        (in_container, "spark_submit.hand_over"),
        (in_container, "resource_manager.wait"),
    ],
)
def test_an_interrupt_stops_the_application(run, step, client, going, monkeypatch, capsys):
    monkeypatch.setattr("distkeras_grid.submission.spark_submit.hand_over", lambda _: None)
    monkeypatch.setattr(f"distkeras_grid.submission.{step}", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run([], client)
    assert going["state"] == "KILLED"
    told = capsys.readouterr().err
    assert "stopping application_17_0009\napplication_17_0009  KILLED" in told


def test_an_application_is_told_before_it_is_stopped(client, going, monkeypatch, capsys):
    monkeypatch.setattr("distkeras_grid.submission.spark_submit.hand_over", interrupt)
    monkeypatch.setattr(ResourceManager, "cancel", interrupt)
    with pytest.raises(KeyboardInterrupt):
        in_container([], client)
    assert "application_17_0009" in capsys.readouterr().err


def test_the_last_line_of_the_driver_is_told(yarn):
    yarn()
    assert driver_line(RUNNING, None)() == "c"
    assert driver_line("application_1_0001", None)() == ""


def test_in_client_mode_a_yarn_that_does_not_answer_is_named(client, monkeypatch, capsys):
    monkeypatch.setenv("HADOOP_CONF_DIR", "/nowhere")
    assert in_client([], client) == 7
    assert "distkeras-grid status (HADOOP_CONF_DIR=/nowhere " in capsys.readouterr().err


def test_in_client_mode_without_yarn_nothing_is_asked(client, monkeypatch, capsys):
    monkeypatch.setattr("distkeras_grid.submission.yarn_sites.find_resourcemanager", pytest.fail)
    assert in_client([], dataclasses.replace(client, master="spark://host:7077")) == 7
    assert capsys.readouterr().err == ""


def test_each_submission_has_a_tag_of_its_own():
    flags = build_parser().parse_args(EVALUATE)
    assert planned(flags).tag != planned(flags).tag


def test_a_program_of_the_user(tmp_path: Path):
    program = tmp_path / "my_job.py"
    program.write_text("")
    assert resolve_job(str(program), ["--a", "1"]) == (str(program), ["--a", "1"], "my_job")


def test_what_this_machine_needs_of_the_settings_to_reach_the_cluster():
    flags = build_parser().parse_args(
        [
            *("--principal", "me@REALM", "--keytab", "/k"),
            *("--conf", "spark.hadoop.a=1", "--conf", "spark.executor.memory=2g", *EVALUATE),
        ]
    )
    assert planned(flags).client_settings == {
        "spark.kerberos.principal": "me@REALM",
        "spark.kerberos.keytab": "/k",
        "spark.hadoop.a": "1",
    }


@pytest.mark.parametrize(
    ("diagnostics", "code", "why"),
    [
        (
            "User application exited with status 4",
            ExitCode.STORAGE,
            "code 4: a path cannot be",
        ),
        ("User application exited with status 17", 17, "the program ended with exit code 17"),
        ("Killed by user me", ExitCode.CLUSTER, "Killed by user me"),
        # Not that of its program.
        ("AM Container exited with exitCode: 13", ExitCode.CLUSTER, "exitCode: 13"),
    ],
)
def test_the_programs_own_exit_code_is_that_of_the_command(diagnostics, code, why):
    ended = verdict(application(FAILED, state="FINISHED", diagnostics=diagnostics))
    assert ended[0] == code
    assert why in ended[1]


def test_what_spark_submit_wrote_tells_why_it_failed(monkeypatch):
    program = r"print('why\n\tat a.b.C'); raise SystemExit(3)"
    with pytest.raises(ClusterError, match=r"code 3.*\nwhy$"):
        hand_over([sys.executable, "-c", program])
    monkeypatch.setattr("distkeras_grid.submission.spark_submit.SUBMIT_SECONDS", 0.2)
    with pytest.raises(ClusterError, match="has not accepted the application after"):
        hand_over([sys.executable, "-c", "import time; time.sleep(60)"])
