"""When a run begins again whose server has died, without a server."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from distkeras_grid.errors import FencedError, ServerUnreachableError
from distkeras_grid.parameter_server.retry_policy import MOST_FAILURES
from distkeras_grid.progress import SILENT
from distkeras_grid.trainers.run_status import run_progress
from distkeras_grid.trainers.server_deaths import NO_CHECKPOINTS, ServerDeaths


class Checkpoints:
    """The checkpoints of an execution that has written so many."""

    def __init__(self, written=0, error=None):
        self.written, self.error = written, error

    def check_own(self):
        if self.error is not None:
            raise self.error


def dies(deaths, checkpointer, *, lost=True, samples=0, to=SILENT, error=None):
    """Return whether the run begins again, and the notes of the error."""
    error = error or ServerUnreachableError("ended with exit code -9\nIt wrote: nothing")
    ended = SimpleNamespace(
        lost_server=lost, checkpointer=checkpointer, history=SimpleNamespace(samples=samples)
    )
    with run_progress(to) as progress:
        survived = deaths.survived(error, ended, progress)
    return survived, getattr(error, "__notes__", [])


@pytest.mark.parametrize(
    ("checkpointer", "more", "notes"),
    [
        (None, {}, [NO_CHECKPOINTS]),
        # The server is well.
        (Checkpoints(), {"lost": False}, []),
        # An interrupt comes in place of the server's error, while the tasks are cancelled.
        (Checkpoints(), {"error": KeyboardInterrupt()}, []),
    ],
)
def test_other_runs_end_and_without_checkpoints_the_error_says_what_would_help(
    checkpointer, more, notes
):
    assert dies(ServerDeaths(), checkpointer, **more) == (False, notes)


def test_who_has_lost_the_checkpoints_to_another_driver_does_not_take_them_back():
    with pytest.raises(FencedError):
        dies(ServerDeaths(), Checkpoints(error=FencedError("Another driver.")))


@pytest.mark.promise(
    "server: killed again and again without a new checkpoint",
    "The run ends with `ServerUnreachableError` at the fourth death.",
)
def test_only_deaths_without_a_checkpoint_in_between_are_counted():
    deaths = ServerDeaths()
    for written in (0, 0, 1, 0, 0):
        assert dies(deaths, Checkpoints(written)) == (True, [])
    survived, notes = dies(deaths, Checkpoints())
    assert (survived, len(notes)) == (False, 1)
    assert str(MOST_FAILURES) in notes[0]


def test_a_line_says_why_and_the_run_goes_on_from_its_checkpoints():
    deaths, lines = ServerDeaths(), []
    assert dies(deaths, Checkpoints(), samples=70, to=lines.append)[0]
    (line,) = [each for each in lines if "begins again" in each]
    assert line.endswith("exit code -9")
    assert deaths.samples == 70
