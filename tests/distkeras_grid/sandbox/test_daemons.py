from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from distkeras_grid.errors import SandboxError
from distkeras_grid.sandbox import daemons
from distkeras_grid.sandbox.daemons import command, run, running, start, stop, tail, working_below

pytestmark = pytest.mark.slow

SLEEP = "import time; time.sleep(60)"
# Prints when it is deaf, so that the test does not ask before.
DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); "
    "time.sleep(60)"
)


def wait_for_word(log: Path) -> None:
    deadline = time.monotonic() + 20
    while not log.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)


def begin(name: str, scratch: Path, program: str = SLEEP) -> psutil.Process:
    """Start a Python that is named as a daemon is."""
    _, *options = command(name, [], "main", scratch=scratch)
    start([sys.executable, "-uc", program, *options], scratch.with_name(f"{name}.log"))
    return running(scratch)[name]


def test_daemons_are_found_by_their_command_lines_and_end_when_asked(tmp_path: Path) -> None:
    scratch, other = tmp_path / "tmp", tmp_path / "tmp2"
    processes = [begin(name, scratch) for name in ("namenode", "datanode-0")]
    elsewhere = begin("namenode", other)
    assert running(scratch) == dict(zip(("namenode", "datanode-0"), processes, strict=True))
    stop(processes)
    stop(processes)
    assert running(scratch) == {}
    assert running(other) == {"namenode": elsewhere}
    stop([elsewhere])


def test_the_last_daemon_of_the_list_ends_first(tmp_path: Path) -> None:
    """A NodeManager waits for a ResourceManager that has gone; start times are not so exact."""
    said = tmp_path / "said"
    program = (
        "import signal, sys, time\n"
        "def end(*_):\n"
        f"    open({str(said)!r}, 'a').write(sys.argv[-4].rpartition('=')[2]); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end); print('ready'); time.sleep(60)"
    )
    processes = []
    for name in ("first", "second"):
        processes.append(begin(name, tmp_path / "tmp", program))
        wait_for_word(tmp_path / f"{name}.log")
    stop(processes[::-1])
    assert said.read_text() == "firstsecond"


def test_a_child_is_not_taken_for_its_daemon(tmp_path: Path) -> None:
    """Until it executes a program of its own, it has its parent's command line."""
    log = tmp_path / "namenode.log"
    program = "import os, time; child = os.fork(); print('ready', flush=True); time.sleep(60)"
    daemon = begin("namenode", tmp_path / "tmp", program)
    wait_for_word(log)
    children = daemon.children()
    assert running(tmp_path / "tmp") == {"namenode": daemon}
    # The last ends first: a child that ends before its parent remains as a zombie.
    stop([*children, daemon])


def test_a_daemon_that_ignores_the_request_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemons, "STOP_SECONDS", 0.5)
    daemon = begin("deaf", tmp_path / "tmp", DEAF)
    wait_for_word(tmp_path / "deaf.log")
    stop([daemon])
    assert running(tmp_path / "tmp") == {}


def test_an_orphan_of_a_container_is_killed_too_and_a_shell_there_is_not(tmp_path: Path) -> None:
    containers = tmp_path / "yarn"
    container = containers / "application_1" / "container_1"
    container.mkdir(parents=True)
    environment = {**os.environ, "CONTAINER_ID": "container_1"}
    line = [sys.executable, "-c", SLEEP]
    orphan = subprocess.Popen(line, cwd=container, env=environment)
    shell = subprocess.Popen(line, cwd=container)
    deadline = time.monotonic() + 20
    while len(working_below(containers)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    stop([], containers)
    assert [process.pid for process in working_below(containers)] == [shell.pid]
    orphan.wait(5)
    shell.kill()
    shell.wait(5)


def test_a_log_is_shown_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("\n".join(map(str, range(100))))
    assert tail(log).splitlines()[1:] == [str(number) for number in range(85, 100)]
    log.write_text("")
    assert tail(log) == f"{log} is empty."


def test_a_command_that_fails_is_an_error_with_its_log(tmp_path: Path) -> None:
    run("Nothing", [sys.executable, "-c", ""], tmp_path / "a.log")
    with pytest.raises(SandboxError, match=r"(?s)Formatting ended with 3.*no space"):
        run("Formatting", ["sh", "-c", "echo no space; exit 3"], tmp_path / "b.log")


def test_without_java_the_error_says_what_to_install(tmp_path: Path) -> None:
    for act in (start, partial(run, "Formatting")):
        with pytest.raises(SandboxError, match="Install Java 17"):
            act(["/nowhere/java"], tmp_path / "a.log")


def test_the_class_path_stands_before_the_main_class() -> None:
    line = command("namenode", ["a", "b"], "Main", "-x", scratch=Path("/s"))
    assert "-Djava.io.tmpdir=/s" in line
    assert line[-4:] == ["-cp", "a:b", "Main", "-x"]
