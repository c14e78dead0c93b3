"""What a test leaves behind in this process and on this machine: nothing, if all is well."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields

#: How long what a test has ended may take to be gone [s].
GRACE_SECONDS = 5.0
#: The same for what a run has ended, in processes beside which a cluster may run [s].
RUN_GRACE_SECONDS = 20.0
#: Variable with which all processes of a session of tests begin, also those whose parent is gone.
MARK = "DISTKERAS_GRID_TESTS"
#: How the process of a parameter server is started.
SERVER = b"\0-m\0distkeras_grid.parameter_server\0"
#: Threads with names of this beginning stand for workers: processes that Spark kills when a run
#: ends, whatever they wait for.
WORKER = "worker of a test "
#: Kinds of descriptors that count: files and sockets that somebody has to close.
OPEN = ("socket:", "/")
#: What stays open for the whole process: libraries, devices, and pytest's own files. And shared
#: memory: it is mapped while an object refers to it, such as the error that has ended a server,
#: whose frames have the vector. parameter_server/test_shared_memory says who lets go of it when.
KEPT = ("/dev/", "/proc/", "/sys/", "/memfd:")
#: Files of libraries, such as Matplotlib's fonts, stay open, too.
LIBRARIES = "/site-packages/"
#: Processes that Python starts once and keeps, by words of their command lines.
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
#: Threads that libraries keep for the whole process, by the beginnings of their names: the event
#: loop of Zarr, and what it has asked to wait. The fixture `event_loop` starts it.
LOOPS = ("zarr_io", "asyncio_")


def open_files() -> int:
    """Count the descriptors of this process, after what the garbage collector would close."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@dataclass(frozen=True)
class Held:
    """What this process holds at a moment."""

    processes: frozenset[str]  # Children that run, with their command lines
    threads: frozenset[str]  # Names and numbers
    descriptors: frozenset[str]  # Open files and sockets, listening ports among them
    temporary: frozenset[str]  # Names in the folder of temporary files, which nobody else uses

    def beyond(self, before: Held) -> dict[str, list[str]]:
        more = {
            each.name: sorted(getattr(self, each.name) - getattr(before, each.name))
            for each in fields(self)
        }
        return {kind: found for kind, found in more.items() if found}


def held(folder: str) -> Held:
    return Held(
        frozenset(_children()),
        frozenset(
            f"{each.name} ({each.ident})"
            for each in threading.enumerate()
            if not each.name.startswith((WORKER, *LOOPS))
        ),
        frozenset(_descriptors()),
        frozenset(os.listdir(folder)),
    )


def held_by_runs(_: str) -> Held:
    """Look only for what a run has beside a session that stays: its servers.

    Threads, descriptors and other processes are Spark's and TensorFlow's.
    """
    nothing: frozenset[str] = frozenset()
    return Held(frozenset(_servers()), nothing, nothing, nothing)


def left(
    before: Held,
    folder: str,
    seconds: float = GRACE_SECONDS,
    look: Callable[[str], Held] = held,
) -> dict[str, list[str]]:
    """Return what is still held after a time of grace that was not held before, by kind."""
    deadline = time.monotonic() + seconds
    while (more := look(folder).beyond(before)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return more


def _servers() -> list[str]:
    """Return the parameter servers of this session, the orphans among them included."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or SERVER not in _bytes(f"/proc/{entry.name}/cmdline"):
            continue
        if _is_marked(entry.name) or _is_below(entry.name, os.getpid()):
            found.append(f"{entry.name} a parameter server")
    return found


def _is_marked(number: str) -> bool:
    mark = f"{MARK}={os.environ.get(MARK)}".encode()
    return mark in _bytes(f"/proc/{number}/environ").split(b"\0")


def _is_below(number: str, ancestor: int) -> bool:
    """Tell whether a process descends from another one: containers have variables of their own."""
    parent = int(number)
    while parent > 1 and parent != ancestor:
        state = _read(f"/proc/{parent}/stat").rpartition(")")[2].split()
        parent = int(state[1]) if state else 0
    return parent == ancestor


def _children() -> list[str]:
    found = []
    for task in os.listdir("/proc/self/task"):
        # A thread that ends meanwhile has no children.
        numbers = _read(f"/proc/self/task/{task}/children").split()
        for number in numbers:
            state = _read(f"/proc/{number}/stat").rpartition(")")[2].split()
            command = _read(f"/proc/{number}/cmdline").replace("\0", " ")
            if state and state[0] != "Z" and not any(each in command for each in HELPERS):
                found.append(f"{number} {command}")
    return found


def _descriptors() -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        kept = target.startswith(KEPT) or LIBRARIES in target
        if target.startswith(OPEN) and not kept:
            found.append(f"{number} {target}")
    return found


def _bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _read(path: str) -> str:
    return _bytes(path).decode(errors="replace")
