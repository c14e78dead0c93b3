"""What is read out of YARN's answers; the client itself is tested on a real YARN."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.submission.applications import (
    Application,
    check_id,
    is_tag,
    new_tag,
    state_line,
)
from distkeras_grid.submission.yarn import CANCEL_SECONDS, Yarn, wait

RUNNING = Application(
    id="application_17_0001",
    name="a job",
    user="me",
    queue="default",
    state="RUNNING",
    final="UNDEFINED",
    containers=3,
    memory_mb=2048,
    diagnostics="",
    tracking_url="http://host/",
    started=1.0,
    finished=0.0,
)


@pytest.mark.parametrize(
    ("diagnostics", "status"),
    [
        ("User application exited with status 4", 4),
        ("Shutdown hook called", None),
        ("AM Container exited with exitCode: 13", None),
    ],
)
def test_the_programs_exit_code_is_read_where_spark_says_it(diagnostics: str, status: int | None):
    assert replace(RUNNING, diagnostics=diagnostics).exit_status == status


def test_state_lines():
    assert state_line(RUNNING, 12.4) == "application_17_0001  RUNNING  12 s  3 containers, 2048 MB"
    accepted = replace(RUNNING, state="ACCEPTED")
    waiting = "application_17_0001  ACCEPTED  1 s  waiting for a container"
    assert state_line(accepted, 1) == waiting
    alone = replace(RUNNING, containers=1)
    assert state_line(alone, 1).endswith("no executors yet")
    ended = replace(RUNNING, state="FINISHED", final="FAILED")
    assert (accepted.waits, alone.waits, RUNNING.waits, ended.waits) == (True, True, False, False)
    assert state_line(ended, 99) == "application_17_0001  FINISHED  99 s  FAILED"


def test_the_client_of_yarn_waits_for_no_end_longer_than_a_cancel_may_take():
    """Its own default is to ask for ever whether an application that it kills has ended."""
    jvm = MagicMock()
    Yarn(SimpleNamespace(jvm=jvm, gateway=None, configuration=None))  # type: ignore[arg-type]
    configuration = jvm.org.apache.hadoop.yarn.conf.YarnConfiguration.return_value
    told = dict(call.args for call in configuration.setInt.call_args_list)
    name = "yarn.client.application-client-protocol.poll-timeout-ms"
    assert told[name] == 1000 * CANCEL_SECONDS


class Script:
    """Answers that follow each other."""

    def __init__(self, *states: str) -> None:
        self.states = list(states)

    def application(self, identifier: str) -> Application:
        return replace(RUNNING, id=identifier, state=self.states.pop(0))


def test_waiting_tells_changes_at_once_and_else_now_and_then(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("distkeras_grid.submission.yarn.POLL_SECONDS", 0)
    ticks = iter([0, 0, 1, 2, 10, 18, 20])
    said: list[str] = []
    yarn = Script("ACCEPTED", "ACCEPTED", "RUNNING", "RUNNING", "RUNNING", "KILLED")
    ended = wait(yarn, RUNNING.id, said.append, lambda: "epoch 5/9", lambda: next(ticks))  # type: ignore[arg-type]
    assert ended.state == "KILLED"
    assert [line.endswith(": epoch 5/9") for line in said] == [False, True, True, False]
    assert [line.split("  ")[1:3] for line in said] == [
        *(["ACCEPTED", "0 s"], ["RUNNING", "2 s"], ["RUNNING", "18 s"], ["KILLED", "20 s"])
    ]


@pytest.mark.parametrize("text", ["", "7", "application_7", "application_7_1; ls", "job_7_0001"])
def test_what_is_no_application_s_id(text: str):
    with pytest.raises(ConfigurationError, match="looks like application_"):
        check_id(text)


def test_a_tag_is_known_by_its_form():
    assert is_tag(new_tag())
    assert new_tag() != new_tag()
    for text in ("", "distkeras-grid-", f"{new_tag()}0", "application_17_0001", f"{new_tag()}\n"):
        assert not is_tag(text)
