"""The clockwork of all progress, on plain lines, a terminal and a notebook."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from distkeras_grid import progress as module
from distkeras_grid.progress import (
    Bytes,
    Lines,
    Notebook,
    ProgressState,
    Reporter,
    Terminal,
    one_line,
    surface,
)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Screen(io.StringIO):
    """A terminal of one's own, as a person sees it."""

    def isatty(self):
        return True

    def rows(self):
        return [row.split(module.ERASE)[-1] for row in self.getvalue().split("\n")]


@dataclass(frozen=True)
class Work(ProgressState):
    phase: str = "working"
    done: int = 0
    epoch: int = 1

    @property
    def turn(self):
        return self.phase, self.epoch

    @property
    def amount(self):
        return self.done

    def parts(self, rate, seconds):
        begun = f"{self.phase} {self.epoch}"
        return [begun, f"{self.done} done", f"{rate:.0f}/s", f"{seconds:.0f} s"]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")


def test_plain_lines_come_at_intervals_and_at_each_turn(clock):
    lines = []
    reporter = Reporter(Work(), to=lines.append, clock=clock)
    for count in range(0, 1000, 10):  # 100 changes, 8 a second
        reporter.update(done=count, epoch=1 + count // 500)
        reporter.tick()
        clock.now += 0.125
    assert [line.split("  ")[:2] for line in lines] == [
        ["working 1", "0 done"],
        ["working 1", "320 done"],
        ["working 2", "500 done"],
        ["working 2", "820 done"],
    ]


def test_a_new_phase_starts_rate_and_seconds_again(clock):
    lines = []
    reporter = Reporter(Work(), to=lines.append, clock=clock)
    reporter.update(done=500)
    clock.now += 10
    reporter.update(phase="more")
    clock.now += 10
    reporter.add(done=100)
    reporter.tick()
    assert lines == ["more 1  500 done  0/s  0 s", "more 1  600 done  10/s  10 s"]


def test_the_rate_is_that_of_late(clock):
    lines = []
    reporter = Reporter(Work(), to=lines.append, clock=clock)
    for second in range(200):
        clock.now += 1
        if second > 150:
            reporter.add(done=20)
        reporter.tick()
    assert "  20/s  " in lines[-1]


def test_a_count_can_be_taken_back_and_none_leaves_a_field():
    reporter = Reporter(Work(), to=module.SILENT)
    reporter.add(done=5)
    reporter.add(done=-2)
    reporter.update(done=None, epoch=7)
    assert reporter.state == Work(done=3, epoch=7)


def test_many_threads_count():
    reporter = Reporter(Work(), to=module.SILENT)

    def count():
        for _ in range(1000):
            reporter.add(done=1)

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert reporter.state.done == 8000


def test_the_heartbeat_breaks_the_silence_of_a_busy_program(monkeypatch):
    monkeypatch.setattr(module, "HEARTBEAT", 0.01)
    monkeypatch.setattr(Lines, "interval", 0.01)
    beaten = threading.Event()

    def say(_):
        if threading.current_thread().name == "progress":
            beaten.set()

    with Reporter(Work(), to=say):
        assert beaten.wait(10)
    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]


def test_the_end_is_told_once(clock):
    lines = []
    with Reporter(Work(), to=lines.append, clock=clock) as reporter:
        reporter.tick()
        reporter.update(done=10)
    assert [line.split("  ")[1] for line in lines] == ["0 done", "10 done"]


def test_the_end_is_not_told_by_an_error_nor_where_nothing_was(clock):
    lines = []

    def fail():
        with Reporter(Work(), to=lines.append) as reporter:
            reporter.tick()
            reporter.update(done=10)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(lines) == 1
    with Reporter(Work(), to=lines.append, clock=clock, at_once=False) as reporter:
        reporter.update(done=10)
        reporter.tick()
    assert len(lines) == 1


def test_a_terminal_sees_one_line_that_moves_and_notes_above_it(clock):
    screen = Screen()
    with Reporter(Work(), to=Terminal(screen), clock=clock) as reporter:
        reporter.update(phase="a phase with a very long name, longer than what comes after it")
        clock.now += 1
        reporter.update(phase="short", done=1)
        reporter.note("2 workers " + "x" * 150)
        reporter.update(epoch=2)
        assert screen.rows()[-1].startswith("short 2  1 done")
    assert [row[:12] for row in screen.rows()] == ["2 workers xx", "short 2  1 d", ""]


def test_a_surface_serves_one_reporter_after_the_other(clock):
    screen = Screen()
    where = Terminal(screen)
    for phase in ("looking", "cutting"):
        with Reporter(Work(), to=where, clock=clock) as reporter:
            reporter.update(phase=phase)
        where("done")
    assert [row.split("  ")[0] for row in screen.rows()] == [
        "looking 1", "done", "cutting 1", "done", "",
    ]  # fmt: skip


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_that_cannot_move_gets_plain_lines(monkeypatch, term):
    assert isinstance(surface(Screen()), Terminal)
    monkeypatch.setenv("TERM", term)
    assert isinstance(surface(Screen()), Lines)


def test_a_file_gets_plain_lines_whatever_is_forced(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    with Reporter(Work(), to=surface(stream)) as reporter:
        reporter.update(epoch=2)
        reporter.note("2 workers")
    assert "\x1b" not in stream.getvalue()
    assert stream.getvalue().splitlines()[1] == "2 workers"


def test_by_default_lines_go_to_standard_error_or_to_the_handler_of_a_program(
    capsys, caplog, monkeypatch
):
    surface()("a line")
    assert capsys.readouterr().err == "a line\n"
    monkeypatch.setattr(module.LOGGER, "handlers", [caplog.handler])
    monkeypatch.setattr(module.LOGGER, "propagate", False)
    caplog.set_level(logging.INFO, module.LOGGER.name)
    surface()("another")
    assert caplog.messages == ["another"]
    assert capsys.readouterr().err == ""


def test_ipython_in_a_terminal_is_no_notebook(monkeypatch):
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert isinstance(surface(), Notebook)
    shell = SimpleNamespace()
    assert not isinstance(surface(), Notebook)


NOTEBOOK = """
import time
from distkeras_grid.progress import Bytes, Reporter
with Reporter(Bytes("packing", 4_000_000)) as progress:
    for _ in range(4):
        progress.add(done=1_000_000)
        time.sleep(0.6)
    progress.note("packed")
"""


@pytest.mark.notebook
@pytest.mark.usefixtures("handlers")
def test_a_saved_notebook_keeps_the_last_state_and_the_notes():
    import nbclient
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(NOTEBOOK)])
    nbclient.NotebookClient(notebook, timeout=60).execute()
    display, notes = notebook.cells[0].outputs
    assert display["data"]["text/plain"].startswith("packing  4.0 MB of 4.0 MB")
    assert notes["text"] == "packed\n"
    assert len(json.dumps(notebook.cells[0].outputs)) < 500


@pytest.mark.parametrize("width", [5, 20, 40, 70])
def test_a_line_never_exceeds_the_width(width):
    parts = Bytes("uploading", 200_000_000, 50_000_000).parts(10e6, 5)
    assert len(one_line(parts, width)) <= width
    assert one_line(parts).startswith(one_line(parts, width))
