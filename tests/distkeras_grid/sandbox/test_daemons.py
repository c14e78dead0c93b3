from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from distkeras_grid.errors import SandboxError
from distkeras_grid.sandbox import daemons
from distkeras_grid.sandbox.daemons import (
    beginning,
    command,
    containers_below,
    run,
    start,
    stop,
    tail,
    working_below,
)

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
# Prints when it is deaf, so that the test does not ask before.
DEAF = [
    sys.executable,
    "-uc",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); "
    "time.sleep(60)",
]


def wait_for_word(log: Path) -> None:
    deadline = time.monotonic() + 20
    while not log.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)


def test_a_daemon_is_found_again_and_ends_when_asked(tmp_path: Path) -> None:
    daemon = start("sleeper", SLEEP, tmp_path / "a.log")
    assert daemon.process() is not None
    daemon.check()
    stop([daemon])
    assert daemon.process() is None
    stop([daemon])


def test_a_process_that_has_got_the_number_since_is_another_one(tmp_path: Path) -> None:
    daemon = start("sleeper", SLEEP, tmp_path / "a.log")
    former = replace(daemon, began=beginning(psutil.Process(1)))
    assert former.process() is None
    stop([former])
    assert daemon.process() is not None
    stop([daemon])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel keeps the moment itself")
def test_a_daemon_is_found_again_after_the_clock_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """psutil computes the moment from that of the boot, and that from the clock."""
    daemon = start("sleeper", SLEEP, tmp_path / "a.log")
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: time.time() + 1)
    assert daemon.process() is not None
    stop([daemon])
    assert daemon.process() is None


def test_the_beginning_of_a_process_is_its_own_and_stays(tmp_path: Path) -> None:
    first, second = (psutil.Process(psutil.Process().pid), psutil.Process(1))
    assert beginning(first) == beginning(psutil.Process()) != beginning(second)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    process = psutil.Process(ended.pid)
    ended.wait(20)
    with pytest.raises(psutil.NoSuchProcess):
        beginning(process)


def test_a_daemon_that_ignores_the_request_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemons, "STOP_SECONDS", 0.5)
    daemon = start("deaf", DEAF, tmp_path / "a.log")
    wait_for_word(tmp_path / "a.log")
    stop([daemon])
    assert daemon.process() is None


def test_an_orphan_of_a_container_is_killed_too_and_a_shell_there_is_not(tmp_path: Path) -> None:
    containers = tmp_path / "yarn"
    container = containers / "application_1" / "container_1"
    container.mkdir(parents=True)
    told = {**os.environ, "CONTAINER_ID": "container_1"}
    orphan = subprocess.Popen(SLEEP, cwd=container, env=told)
    shell = subprocess.Popen(SLEEP, cwd=container)
    deadline = time.monotonic() + 20
    while len(working_below(containers)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    other = start("sleeper", SLEEP, tmp_path / "a.log")
    stop([], containers)
    assert not containers_below(containers)
    assert [process.pid for process in working_below(containers)] == [shell.pid]
    assert other.process() is not None
    stop([other])
    orphan.wait(5)
    shell.kill()
    shell.wait(5)


def test_what_nobody_has_noted_ends_with_the_others(tmp_path: Path) -> None:
    """One that was started in the moment in which its starter was killed."""
    scratch = tmp_path / "tmp"
    lines = {name: [*SLEEP, f"-Djava.io.tmpdir={tmp_path / name}"] for name in ("tmp", "tmp2")}
    unknown, others = (start(name, line, tmp_path / name) for name, line in lines.items())
    noted = start("noted", lines["tmp"], tmp_path / "noted")
    stop([noted], scratch=scratch)
    assert unknown.process() is None
    assert noted.process() is None
    assert others.process() is not None
    stop([others])


def test_the_error_of_a_daemon_that_ended_has_the_end_of_its_log(tmp_path: Path) -> None:
    line = [sys.executable, "-c", "print('x' * 5000); print('port 80 is taken')"]
    daemon = start("namenode", line, tmp_path / "a.log")
    psutil.wait_procs([psutil.Process(daemon.pid)], timeout=20)
    with pytest.raises(SandboxError, match="namenode has ended") as caught:
        daemon.check()
    assert str(caught.value).endswith("port 80 is taken")
    assert len(str(caught.value)) < 1000


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


@pytest.mark.parametrize("begin", [start, run])
def test_without_java_the_error_says_what_to_install(tmp_path: Path, begin: object) -> None:
    with pytest.raises(SandboxError, match="Install Java 17"):
        begin("a", ["/nowhere/java"], tmp_path / "a.log")  # type: ignore[operator]


def test_the_class_path_stands_before_the_main_class() -> None:
    line = command(["a", "b"], "Main", "-x", scratch=Path("/s"))
    assert "-Djava.io.tmpdir=/s" in line
    assert line[-4:] == ["-cp", "a:b", "Main", "-x"]
