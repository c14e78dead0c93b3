"""Start, find and stop Hadoop's daemons as processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from distkeras_grid.errors import SandboxError
from distkeras_grid.logs import cause, end
from distkeras_grid.sandbox.class_path import java, no_java

# A NodeManager that ran applications takes 18 s to end.
STOP_SECONDS = 30.0
FORMAT_SECONDS = 60.0
TAIL_LINES = 15

#: The main classes, in the order in which they start.
MAIN_CLASSES = {
    "namenode": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "datanode": "org.apache.hadoop.hdfs.server.datanode.DataNode",
    "resourcemanager": "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "nodemanager": "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
}
# These JVMs serve one machine: little memory, the quick compiler alone, one thread of garbage.
JVM_OPTIONS = (
    "-Xmx512m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Djava.net.preferIPv4Stack=true",
)
_NAME = "-Dsandbox.daemon="


def command(
    name: str, class_path: Sequence[str], main: str, *arguments: str, scratch: Path
) -> list[str]:
    """Return the command line of a daemon, by which `running` finds it.

    `scratch`: folder of its temporary files, which no daemon of another sandbox has.
    """
    options = (*JVM_OPTIONS, _mark(scratch), f"{_NAME}{name}")
    return [java(), *options, "-cp", ":".join(class_path), main, *arguments]


def _mark(scratch: Path) -> str:
    return f"-Djava.io.tmpdir={scratch}"


def running(scratch: Path) -> dict[str, psutil.Process]:
    """Return the daemons of a sandbox that run, by their names."""

    def is_daemon(process: psutil.Process) -> bool:
        return process.uids().real == os.getuid() and _mark(scratch) in process.cmdline()

    daemons: dict[str, psutil.Process] = {}
    processes = _processes(is_daemon)
    numbers = {process.pid for process in processes}
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            # A child has the command line of its daemon until it executes a program of its own.
            if process.ppid() in numbers:
                continue
            for word in process.cmdline():
                if word.startswith(_NAME):
                    daemons[word.removeprefix(_NAME)] = process
    return daemons


def working_below(folder: Path) -> list[psutil.Process]:
    """Return the processes of this user whose working directory is in a folder."""
    return _processes(lambda process: Path(process.cwd()).is_relative_to(folder.resolve()))


def _processes(matches: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    processes = []
    for process in psutil.process_iter():
        # Of other users one may not ask; others end while one asks.
        with suppress(psutil.AccessDenied, psutil.NoSuchProcess):
            if matches(process):
                processes.append(process)
    return processes


def start(line: Sequence[str], log: Path) -> None:
    """Start a daemon that outlives this process."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        try:
            started = subprocess.Popen(
                list(line),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=log.parent,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise no_java(line[0]) from error
    # Its end is looked for also by other processes; Popen would warn of a child.
    started.returncode = 0


def run(what: str, line: Sequence[str], log: Path) -> None:
    """Run a command to its end."""
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("ab") as out:
            ended = subprocess.run(
                list(line), check=False, stdout=out, stderr=out, timeout=FORMAT_SECONDS
            )
    except FileNotFoundError as error:
        raise no_java(line[0]) from error
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"{what} did not end in {FORMAT_SECONDS:.0f} s. {tail(log)}") from error
    if ended.returncode != 0:
        raise SandboxError(f"{what} ended with {ended.returncode}. {tail(log)}")


def stop(processes: Sequence[psutil.Process], containers: Path | None = None) -> None:
    """End daemons, the last of the list first, and what YARN's containers left running.

    `containers`: where containers work; a killed NodeManager leaves them without a parent.
    """
    left: list[psutil.Process] = []
    for process in reversed(processes):
        # One after another: a NodeManager whose master has gone waits for it.
        with suppress(psutil.NoSuchProcess):
            process.terminate()
        left += psutil.wait_procs([process], timeout=STOP_SECONDS)[1]
    # A shell of the user may stand there, too. YARN tells each container its number.
    for process in working_below(containers) if containers else ():
        with suppress(psutil.AccessDenied, psutil.NoSuchProcess):
            if "CONTAINER_ID" in process.environ():
                left.append(process)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _, left = psutil.wait_procs(left, timeout=STOP_SECONDS)
    if left:
        numbers = ", ".join(str(process.pid) for process in left)
        raise SandboxError(f"Processes of the sandbox do not end: {numbers}. Kill them by hand.")


def tail(log: Path) -> str:
    """Return the line of a log that counts and its end; its head is Hadoop's class path, 20 kB."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    shown = [line[:300] for line in end(text, TAIL_LINES).splitlines()]
    if not shown:
        return f"{log} is empty."
    why = cause(text)
    return "\n".join([*([why[:300]] if why else []), f"The end of {log}:", *shown])
