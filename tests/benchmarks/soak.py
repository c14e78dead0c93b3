"""Hundreds of workers, many of which die, against a real server process for minutes.

    python -m tests.benchmarks.soak [--seconds 600] [--workers 200] [--megabytes 0.1]

Each worker exchanges at random moments. Now and then its connection breaks in the middle of a
frame, and another attempt comes for it. The driver polls, and keeps the history. What server and
driver hold is printed every ten seconds, at the end what it grew by in a minute, and what is left.
It fails (exit code 1) if the server grew by more than the limit, or the driver did beyond what the
records of its history take, or if a thread, socket, file or process is left.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event

import numpy as np
import psutil

from distkeras_grid.history import History
from distkeras_grid.parameter_server.auth import new_key, seat_key
from distkeras_grid.parameter_server.client import WorkerClient
from distkeras_grid.parameter_server.frames import encode
from distkeras_grid.parameter_server.messages import PayloadKind, WindowCommit
from distkeras_grid.parameter_server.process import ServerProcess
from distkeras_grid.parameter_server.settings import ServerAddress
from distkeras_grid.records import WindowRecord
from tests.leaks import held, left
from tests.specs import make_settings

#: Of the workers; each has its share of them as threads.
PROCESSES = 8
#: Seconds between two exchanges of a worker, at most; and part of them that break off.
PAUSE, LOSSES = 2.0, 0.02
EVERY = 10.0  # s
ROWS = 1_000_000
START_SECONDS = 120.0
SETTLING = 2.0  # s
VECTOR = PayloadKind.VECTOR


@dataclass(frozen=True)
class Sample:
    """What server and driver hold at a moment."""

    seconds: float  # Since all workers had started
    server_mb: float  # Resident memory [MB]
    driver_mb: float  # Resident memory [MB]
    threads: int  # Those of the server
    descriptors: int  # Those of the server
    windows: int  # Windows in the driver's history
    history_mb: float  # What their records take in the driver [MB]
    losses: int  # Attempts that have come for workers whose connection broke

    @property
    def driver_rest_mb(self) -> float:
        """The driver without its history [MB]."""
        return self.driver_mb - self.history_mb


def work(
    address: ServerAddress, key: bytes, seat: int, size: int, over: Event, lost: Queue[int]
) -> None:
    """Be a worker until the time is over; come again after each loss."""
    chance, attempt = random.Random(seat), 0
    payload, reply = np.full(size, 1e-6, np.float32), np.empty(size, np.float32)
    while not over.is_set():
        with WorkerClient.connect(
            address, seat_key(key, seat), "soak", seat, attempt, size, START_SECONDS
        ) as client:
            start = client.ready(ROWS, START_SECONDS)
            sequence, version = start.next_sequence, start.version
            while not over.wait(chance.random() * PAUSE):
                if chance.random() < LOSSES:
                    break_off(client, chance)
                    break
                commit = WindowCommit(
                    sequence, version, 1, sequence, 1, 1, 0.5, {}, time.time(), 0.01
                )
                version = client.exchange(commit, payload, reply).version
                sequence += 1
        attempt += 1
        lost.put(seat)


def break_off(client: WorkerClient, chance: random.Random) -> None:
    """Send the beginning of a frame, and reset the connection or close it."""
    stream = client._session.channel.stream._socket
    head = encode(WindowCommit(0, 0, 1, 0, 1, 1, 0.5, {}, 0.0, 0.0), client.vector.nbytes, VECTOR)
    stream.sendall(head[: chance.randrange(len(head) + 1)])
    if chance.random() < 0.5:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()


def work_many(
    address: ServerAddress, key: bytes, seats: range, size: int, over: Event, lost: Queue[int]
) -> None:
    """Be some of the workers, each in a thread."""
    threads = [
        threading.Thread(target=work, args=(address, key, seat, size, over, lost)) for seat in seats
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def soak(
    seconds: float, workers: int, size: int, every: float, say: Callable[[Sample], object]
) -> list[Sample]:
    """Let workers exchange and die for a while."""
    key = new_key()
    settings = make_settings(run="soak", seats=workers, trainable_size=size, rows=ROWS * workers)
    context = multiprocessing.get_context("spawn")
    over, lost = context.Event(), context.Queue()
    count = min(PROCESSES, workers)
    with ServerProcess(settings, np.zeros(size, np.float32), key) as server:
        address = replace(server.address, unix_name=None)
        processes = [
            context.Process(
                target=work_many,
                args=(address, key, range(number, workers, count), size, over, lost),
            )
            for number in range(count)
        ]
        server.poll()
        idle = _told(say, server, 0.0, History(), 0)
        for process in processes:
            process.start()
        try:
            return [idle, *_samples(server, seconds, every, over, lost, processes, say)]
        finally:
            over.set()
            for process in processes:
                process.join(START_SECONDS)
                process.kill()


def _samples(server, seconds, every, over, lost, processes, say) -> Iterator[Sample]:
    history, losses, began, due = History(), 0, None, every
    deadline = time.monotonic() + START_SECONDS
    while began or time.monotonic() < deadline:
        for event in server.poll().events:
            if isinstance(event, WindowRecord):
                history.add(event)
                began = began or time.monotonic()
        while not lost.empty():
            lost.get()
            losses += 1
        elapsed = 0.0 if began is None else time.monotonic() - began
        if elapsed > seconds:
            break
        if elapsed > due:
            due += every
            yield _told(say, server, elapsed, history, losses)
        time.sleep(0.1)
    over.set()
    for process in processes:
        process.join(START_SECONDS)
    # Threads end when their peers have gone.
    time.sleep(SETTLING)
    yield _told(say, server, elapsed, history, losses)


def _told(say, server, elapsed, history, losses) -> Sample:
    process, driver = psutil.Process(server._started.process.pid), psutil.Process()
    sample = Sample(
        elapsed,
        process.memory_info().rss / 1e6,
        driver.memory_info().rss / 1e6,
        process.num_threads(),
        process.num_fds(),
        len(history.records),
        history_bytes(history) / 1e6,
        losses,
    )
    say(sample)
    return sample


def history_bytes(history: History) -> int:
    """Return what the columns of a history's windows take, without room to grow."""
    records = history.records
    columns = [*records._columns.values(), records._kind_of, records._places, records._values]
    return sum(column.itemsize * len(column) for column in columns)


def growth(samples: Sequence[Sample], name: str) -> float:
    """Return the slope of a line through the second half of the samples, a minute [MB]."""
    half = [sample for sample in samples if sample.seconds > samples[-1].seconds / 2]
    minutes = [sample.seconds / 60 for sample in half]
    return float(np.polyfit(minutes, [getattr(sample, name) for sample in half], 1)[0])


def faults(samples: Sequence[Sample], limit: float) -> list[str]:
    """Say what grew by more than `limit` MB a minute, and what the server kept.

    The first sample is that of a server without workers, the last that of one whose workers have
    gone.
    """
    found = []
    for name in ("server_mb", "driver_rest_mb"):
        grew = growth(samples[1:-1], name)
        if grew > limit:
            found.append(f"{name} grew by {grew:.2f} MB a minute; the limit is {limit:g}")
    for name in ("threads", "descriptors"):
        before, after = (getattr(sample, name) for sample in (samples[0], samples[-1]))
        if after > before:
            found.append(f"the server has {after} {name}, and had {before} before the workers")
    return found


@contextmanager
def own_temporary_files() -> Iterator[str]:
    """Let this process and its children have a directory that nobody else writes to."""
    before = os.environ.get("TMPDIR"), tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="dkg-soak-") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        try:
            yield folder
        finally:
            tempfile.tempdir = before[1]
            os.environ.pop("TMPDIR")
            if before[0] is not None:
                os.environ["TMPDIR"] = before[0]


def main(words: Sequence[str] | None = None) -> int:
    """Print the samples and the growth; return 1 if something grew or is left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--megabytes", type=float, default=0.1)
    parser.add_argument("--limit", type=float, default=1.0, help="MB a minute (1)")
    flags = parser.parse_args(words)
    print(f"{flags.workers} workers, {flags.megabytes:g} MB, {LOSSES:.0%} of exchanges break off")
    print("seconds  server MB  driver MB  history MB  threads  descriptors  windows  losses")

    def say(sample: Sample) -> None:
        print(
            f"{sample.seconds:7.0f} {sample.server_mb:10.1f} {sample.driver_mb:10.1f} "
            f"{sample.history_mb:11.2f} {sample.threads:8d} {sample.descriptors:12d} "
            f"{sample.windows:8d} {sample.losses:7d}",
            flush=True,
        )

    size = int(flags.megabytes * 1e6 / 4)
    # It is there for the whole process.
    resource_tracker.ensure_running()
    with own_temporary_files() as folder:
        before = held(folder)
        samples = soak(flags.seconds, flags.workers, size, EVERY, say)
        remains = left(before, folder)
    for name in ("server_mb", "driver_mb", "driver_rest_mb"):
        grew = growth(samples[1:-1], name)
        print(f"growth of {name} in the second half: {grew:+.2f} MB a minute")
    found = faults(samples, flags.limit)
    found += [f"{kind} left: {', '.join(names)}" for kind, names in remains.items()]
    for fault in found:
        print(f"failed: {fault}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
