"""Exchanges per second with the parameter server, beside what the loopback can carry.

An exchange is one commit up and one reply down; both ways together are counted in GB/s. The limit
is measured in the same run: one process sends, another receives into one buffer, nothing else. That
of shared memory is a copy, by one process. Clients are processes of their own, so no interpreter
lock is shared. Processor time counts client and server; on a busy machine it says more than the
clock.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil

from distkeras_grid.parameter_server import client as client_module
from distkeras_grid.parameter_server.auth import new_key, seat_key
from distkeras_grid.parameter_server.client import WorkerClient
from distkeras_grid.parameter_server.messages import WindowCommit
from distkeras_grid.parameter_server.process import ServerProcess
from distkeras_grid.parameter_server.settings import ServerAddress
from tests.specs import make_settings

MEGABYTES = (2, 20, 100)
CLIENTS = (1, 2, 4, 64)
ROADS = ("tcp", "unix socket", "shared memory")
SECONDS = 1.0
# More clients than this share processes, as threads that spend their time in the kernel.
PROCESSES = 8
LIMIT_BYTES = 2 * 10**9
# Parts of it that are copied one after the other: 20 MB each.
COPIES = 100
# Each client holds four vectors and the server one more for it; stay well inside the machine.
MEMORY_SHARE = 0.4


def run_client(
    address: ServerAddress, key: bytes, seat: int, size: int
) -> tuple[int, float, float]:
    """Exchange for a while; return how many exchanges were done, from when to when."""
    reply = np.empty(size, np.float32)
    with WorkerClient.connect(address, seat_key(key, seat), "bench", seat, 0, size, 60) as client:
        client.ready(1_000_000)
        # As in training, the commit is made where the server reads it.
        payload = np.zeros(size, np.float32) if client.outgoing is None else client.outgoing
        began, count = time.monotonic(), 0
        while time.monotonic() < began + SECONDS:
            now = time.time()
            client.exchange(
                WindowCommit(count, 0, 1, count, 1, 1, 0.0, {}, now, 0.0), payload, reply
            )
            count += 1
        ended = time.monotonic()
        client.finish()
    return count, began, ended


def run_clients(
    address: ServerAddress, key: bytes, seats: range, size: int, shared: bool, pipe
) -> None:
    """Run the clients of some seats, and report on all of them."""
    if not shared:
        client_module.LENT_LIMIT = 0
    with ThreadPoolExecutor(len(seats)) as pool:
        clock = time.process_time()
        results = list(pool.map(lambda seat: run_client(address, key, seat, size), seats))
        pipe.send((results, time.process_time() - clock))


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has used [s]."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def measure_exchanges(megabytes: int, clients: int, road: str) -> tuple[float, float]:
    """Return exchanges per second of all clients together, and processor seconds for each."""
    size = megabytes * 10**6 // 4
    key = new_key()
    settings = make_settings(
        run="bench", seats=clients, trainable_size=size, rows=1_000_000 * clients
    )
    context = multiprocessing.get_context("spawn")
    with ServerProcess(settings, np.zeros(size, np.float32), key) as server:
        tcp = replace(server.address, unix_path=None)
        address = tcp if road == "tcp" else server.address
        used = processor_seconds(server.pid)
        pipes, processes = [], []
        workers = min(clients, PROCESSES)
        for number in range(workers):
            ours, theirs = context.Pipe(duplex=False)
            seats, shared = range(number, clients, workers), road == "shared memory"
            arguments = (address, key, seats, size, shared, theirs)
            processes.append(context.Process(target=run_clients, args=arguments))
            processes[-1].start()
            pipes.append(ours)
        told = [pipe.recv() for pipe in pipes]
        used = processor_seconds(server.pid) - used + sum(seconds for _, seconds in told)
        for process in processes:
            process.join()
    results = [result for found, _ in told for result in found]
    total = sum(count for count, _, _ in results)
    seconds = max(end for *_, end in results) - min(begin for _, begin, _ in results)
    return total / seconds, used / total


RECEIVER = """
import socket, sys
family, address, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
stream = socket.socket(family)
stream.connect(address if family == socket.AF_UNIX else ("127.0.0.1", int(address)))
buffer = bytearray(1 << 18)
while count > 0:
    count -= stream.recv_into(buffer)
stream.send(b"!")
"""


def measure_copy() -> float:
    """Return the bytes per second that one process copies."""
    source = np.ones(LIMIT_BYTES // COPIES, np.uint8)
    target = np.zeros_like(source)
    began = time.perf_counter()
    for _ in range(COPIES):
        np.copyto(target, source)
    return LIMIT_BYTES / (time.perf_counter() - began)


def measure_limit(road: str) -> float:
    """Return the bytes per second that one road carries one way on this host."""
    if road == "shared memory":
        return measure_copy()
    unix = road == "unix socket"
    with ExitStack() as stack:
        if unix:
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            family, target = socket.AF_UNIX, os.path.join(directory, "s")
        else:
            family, target = socket.AF_INET, ("127.0.0.1", 0)
        listening = stack.enter_context(socket.socket(family))
        listening.bind(target)
        listening.listen()
        name = target if unix else str(listening.getsockname()[1])
        child = subprocess.Popen(
            [sys.executable, "-c", RECEIVER, str(int(family)), str(name), str(LIMIT_BYTES)]
        )
        stream = stack.enter_context(listening.accept()[0])
        if unix:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        data = memoryview(bytearray(1 << 18))
        began, left = time.perf_counter(), LIMIT_BYTES
        while left > 0:
            left -= stream.send(data[: min(left, len(data))])
        stream.recv(1)
        seconds = time.perf_counter() - began
        child.wait()
    return LIMIT_BYTES / seconds


def fits(megabytes: int, clients: int) -> bool:
    """Whether all buffers fit the share of the memory that the benchmark allows itself."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 5 * megabytes * 10**6 * clients < MEMORY_SHARE * memory


def main() -> None:
    """Print the table."""
    print(f"{Path(__file__).name}: {os.cpu_count()} cores, server and each client a process")
    for road in ROADS:
        limit = measure_limit(road)
        print(f"\n{road}: limit {limit / 1e9:.2f} GB/s one way")
        print(
            f"{'MB':>5} {'clients':>8} {'exchanges/s':>12} {'GB/s both ways':>15} {'of limit':>9}"
            f" {'processor ms each':>18}"
        )
        for megabytes in MEGABYTES:
            for clients in CLIENTS:
                if not fits(megabytes, clients):
                    print(f"{megabytes:5d} {clients:8d} {'left out: memory':>38}")
                    continue
                rate, used = measure_exchanges(megabytes, clients, road)
                carried = 2 * megabytes * 10**6 * rate
                print(
                    f"{megabytes:5d} {clients:8d} {rate:12.1f} {carried / 1e9:15.2f}"
                    f" {carried / limit:8.0%} {1e3 * used:18.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
