"""Applications of YARN as values, and the wait for their end."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from distkeras_grid.errors import ApplicationNotFoundError, ClusterError, ConfigurationError
from distkeras_grid.submission import resource_manager
from distkeras_grid.submission.applications import Application, check_id, state_line
from distkeras_grid.submission.resource_manager import SILENT_SECONDS, wait
from tests.distkeras_grid.submission.pages import application

RUNNING = application("application_17_0001")


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


class Script:
    """Answers that follow each other; an error is no answer."""

    def __init__(self, *states: str | ClusterError) -> None:
        self.states = list(states)

    def application(self, identifier: str) -> Application:
        state = self.states.pop(0)
        if isinstance(state, ClusterError):
            raise state
        return replace(RUNNING, id=identifier, state=state)


def test_waiting_tells_changes_at_once_and_else_now_and_then(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resource_manager, "POLL_SECONDS", 0)
    ticks = iter([0, 0, 1, 2, 10, 18, 20])
    said: list[str] = []
    yarn = Script("ACCEPTED", "ACCEPTED", "RUNNING", "RUNNING", "RUNNING", "KILLED")
    ended = wait(yarn, RUNNING.id, said.append, lambda: "epoch 5/9", lambda: next(ticks))  # type: ignore[arg-type]
    assert ended.state == "KILLED"
    assert [line.endswith(": epoch 5/9") for line in said] == [False, True, True, False]
    assert [line.split("  ")[1:3] for line in said] == [
        *(["ACCEPTED", "0 s"], ["RUNNING", "2 s"], ["RUNNING", "18 s"], ["KILLED", "20 s"])
    ]


def test_a_resourcemanager_may_be_silent_for_a_while(monkeypatch: pytest.MonkeyPatch):
    """Another one takes over, or it is started again; the application goes on meanwhile."""
    monkeypatch.setattr(resource_manager, "POLL_SECONDS", 0)
    silent = ClusterError("nobody answers")
    ticks = iter([0, 1, SILENT_SECONDS, 61, 62])
    yarn = Script("RUNNING", silent, "RUNNING", "FINISHED")
    assert wait(yarn, RUNNING.id, str, clock=lambda: next(ticks)).ended  # type: ignore[arg-type]
    ticks = iter([0, 1, 2, SILENT_SECONDS + 2])
    with pytest.raises(ClusterError, match="nobody answers"):
        wait(Script("RUNNING", silent, silent), RUNNING.id, str, clock=lambda: next(ticks))  # type: ignore[arg-type]
    forgotten = ApplicationNotFoundError("forgotten")
    with pytest.raises(ApplicationNotFoundError):
        wait(Script("RUNNING", forgotten), RUNNING.id, str)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "7", "application_7", "application_7_1; ls", "job_7_0001"])
def test_what_is_no_application_s_id(text: str):
    with pytest.raises(ConfigurationError, match="looks like application_"):
        check_id(text)
