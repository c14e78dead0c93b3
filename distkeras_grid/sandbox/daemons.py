"""Start, watch and stop Hadoop's daemons as processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import psutil

from distkeras_grid.errors import SandboxError
from distkeras_grid.logs import cause, end
from distkeras_grid.sandbox.class_path import java, no_java

# A NodeManager that ran applications takes 18 s to end.
STOP_SECONDS = 30.0
FORMAT_SECONDS = 60.0
TAIL_LINES = 15

NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
RESOURCEMANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
NODEMANAGER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"

# These JVMs serve one machine: little memory, the quick compiler alone, one thread of garbage.
JVM_OPTIONS = (
    "-Xmx512m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Djava.net.preferIPv4Stack=true",
)


@dataclass(frozen=True)
class Daemon:
    """A started daemon."""

    name: str  # Such as ``namenode`` or ``datanode-1``
    pid: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]  # Id of its process
    began: str  # What `beginning` returned for it: numbers of processes come again
    log: str  # Path of its log

    def process(self) -> psutil.Process | None:
        """Return its process, None if it has ended."""
        try:
            process = psutil.Process(self.pid)
            same = beginning(process) == self.began
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None

    def check(self) -> None:
        """Raise if it has ended."""
        if self.process() is None:
            raise SandboxError(f"The {self.name} has ended. {tail(self.log)}")


def beginning(process: psutil.Process) -> str:
    """Return a mark of the moment at which a process began; no other process ever has both.

    psutil's ``create_time`` is not one on Linux: it is computed from the wall clock, and changes
    when that is set. The kernel counts ticks since it was booted.
    """
    if sys.platform != "linux":
        return str(process.create_time())
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise psutil.NoSuchProcess(process.pid) from error
    # The name, in parentheses, may hold anything; field 22, counted from 1, is the 20th after it.
    ticks = stat.rpartition(")")[2].split()[19]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {ticks}"


def command(
    class_path: Sequence[str],
    main: str,
    *arguments: str,
    scratch: Path,
) -> list[str]:
    """Return the command line of a daemon; its temporary files go to `scratch`."""
    return [java(), *JVM_OPTIONS, _mark(scratch), "-cp", ":".join(class_path), main, *arguments]


def _mark(scratch: Path) -> str:
    """Return the option that every daemon of a sandbox has, and no other process."""
    return f"-Djava.io.tmpdir={scratch}"


def start(name: str, line: Sequence[str], log: Path) -> Daemon:
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
    # Its end is looked for by number, also from other processes; Popen would warn of a child.
    started.returncode = 0
    return Daemon(name, started.pid, beginning(psutil.Process(started.pid)), str(log))


def run(what: str, line: Sequence[str], log: Path) -> None:
    """Run a command to its end."""
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("ab") as out:
            done = subprocess.run(
                list(line), check=False, stdout=out, stderr=out, timeout=FORMAT_SECONDS
            )
    except FileNotFoundError as error:
        raise no_java(line[0]) from error
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"{what} did not end in {FORMAT_SECONDS:.0f} s. {tail(log)}") from error
    if done.returncode != 0:
        raise SandboxError(f"{what} ended with {done.returncode}. {tail(log)}")


def stop(
    daemons: Iterable[Daemon], containers: Path | None = None, scratch: Path | None = None
) -> None:
    """End daemons, the last one started first, and what YARN's containers left running.

    `containers`: where containers work; a killed NodeManager leaves them without a parent.
    """
    processes = [process for daemon in daemons if (process := daemon.process()) is not None]
    known = {process.pid for process in processes}
    marked = marked_with(scratch) if scratch else ()
    processes += [process for process in marked if process.pid not in known]
    left: list[psutil.Process] = []
    for process in reversed(processes):
        # One after another: a NodeManager whose master has gone waits for it.
        _send(process, "terminate")
        left += psutil.wait_procs([process], timeout=STOP_SECONDS)[1]
    left += containers_below(containers) if containers else ()
    for process in left:
        _send(process, "kill")
    _, left = psutil.wait_procs(left, timeout=STOP_SECONDS)
    if left:
        numbers = ", ".join(str(process.pid) for process in left)
        raise SandboxError(f"Processes of the sandbox do not end: {numbers}. Kill them by hand.")


def marked_with(scratch: Path) -> list[psutil.Process]:
    """Return the daemons of this user whose temporary files go to a folder."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.uids().real == os.getuid() and _mark(scratch) in process.cmdline():
                processes.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    return processes


def working_below(folder: Path) -> list[psutil.Process]:
    """Return the processes of this user whose working directory is in a folder."""
    processes = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder.resolve()):
                processes.append(process)
        # Of other users one may not ask; others end while one asks.
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    return processes


def containers_below(folder: Path) -> list[psutil.Process]:
    """Return the processes of YARN's containers that work in a folder.

    A shell of the user may stand there, too. YARN tells each container its number in a variable,
    which the programs that it starts inherit.
    """
    return [process for process in working_below(folder) if _is_of_a_container(process)]


def _is_of_a_container(process: psutil.Process) -> bool:
    try:
        return "CONTAINER_ID" in process.environ()
    except (psutil.AccessDenied, psutil.NoSuchProcess):
        return False


def tail(log: str | Path) -> str:
    """Return the line of a log that counts and its end; its head is Hadoop's class path, 20 kB."""
    text = Path(log).read_text(encoding="utf-8", errors="replace")
    shown = [line[:300] for line in end(text, TAIL_LINES).splitlines()]
    if not shown:
        return f"{log} is empty."
    why = cause(text)
    return "\n".join([*([why[:300]] if why else []), f"The end of {log}:", *shown])


def _send(process: psutil.Process, signal: Any) -> None:
    try:
        getattr(process, signal)()
    except psutil.NoSuchProcess:
        return
