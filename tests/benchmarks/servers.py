"""Exchanges per second with one parameter server, and with several that share the center.

An exchange is one commit up and one reply down; both ways together are counted in GB/s. Several
servers pay where one has no core left, on a host that has more. So the cores that all servers and
all clients use are in the table, too: their number on this host is the limit.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil

from distkeras_grid.parameter_server.auth import new_key, seat_key, workers_key
from distkeras_grid.parameter_server.messages import WindowCommit
from distkeras_grid.parameter_server.settings import ServerAddress
from distkeras_grid.parameter_server.sharded_client import ShardedClient
from distkeras_grid.parameter_server.sharded_process import ShardedProcess
from distkeras_grid.spec import RunSpec
from tests.benchmarks.exchange import PROCESSES, fits
from tests.specs import make_settings

MEGABYTES = 20
CLIENTS = (1, 2, 4, 8, 16, 32, 64)
SERVERS = (1, 2, 4)
SECONDS = 3.0
ROWS = 1_000_000


@dataclass(frozen=True)
class Found:
    """Exchanges per second of all clients, and cores that servers and clients used meanwhile."""

    rate: float
    server_cores: float
    client_cores: float


def run_client(
    addresses: tuple[ServerAddress, ...], key: bytes, seat: int, spec: RunSpec
) -> tuple[int, float, float]:
    """Exchange for a while; return how many exchanges were done, from when to when."""
    payload, reply = np.zeros(spec.size, np.float32), np.empty(spec.size, np.float32)
    own = seat_key(workers_key(key), seat)
    with ShardedClient.connect(addresses, own, "bench", seat, 0, spec, 60) as client:
        client.ready(ROWS, 120)
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


def run_clients(addresses, key: bytes, seats: range, spec: RunSpec, pipe) -> None:
    """Run the clients of some seats, and report on all of them and on this process' time."""
    began = time.process_time()
    with ThreadPoolExecutor(len(seats)) as pool:
        done = list(pool.map(lambda seat: run_client(addresses, key, seat, spec), seats))
    pipe.send((done, time.process_time() - began))


def seconds_of(pids: tuple[int, ...]) -> float:
    """Return the processor time of processes so far [s]."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(each.user + each.system for each in times)


def measure(clients: int, servers: int, unix: bool) -> Found:
    """Let all clients exchange with all servers at once."""
    size, key = MEGABYTES * 10**6 // 4, new_key()
    settings = make_settings(
        run="bench", seats=clients, trainable_size=size, rows=ROWS * clients, servers=servers
    )
    context = multiprocessing.get_context("spawn")
    with ShardedProcess(settings, np.zeros(size, np.float32), key) as running:
        addresses, before = running.addresses, seconds_of(running.pids)
        if not unix:
            addresses = tuple(replace(each, unix_path=None) for each in addresses)
        pipes, processes = [], []
        workers = min(clients, PROCESSES)
        for number in range(workers):
            ours, theirs = context.Pipe(duplex=False)
            seats = range(number, clients, workers)
            arguments = (addresses, key, seats, settings.spec, theirs)
            processes.append(context.Process(target=run_clients, args=arguments))
            processes[-1].start()
            pipes.append(ours)
        told = [pipe.recv() for pipe in pipes]
        used = seconds_of(running.pids) - before
        for process in processes:
            process.join()
    results = [result for done, _ in told for result in done]
    seconds = max(end for *_, end in results) - min(begin for _, begin, _ in results)
    return Found(
        sum(count for count, _, _ in results) / seconds,
        used / seconds,
        sum(theirs for _, theirs in told) / seconds,
    )


def main() -> None:
    """Print the table."""
    print(f"{Path(__file__).name}: {os.cpu_count()} cores, {MEGABYTES} MB, each server a process")
    for unix in (False, True):
        print(f"\n{'Unix socket' if unix else 'TCP, sealed'}")
        print(
            f"{'clients':>8} {'servers':>8} {'exchanges/s':>12} {'GB/s both ways':>15}"
            f" {'server cores':>13} {'client cores':>13}"
        )
        for clients in CLIENTS:
            for servers in SERVERS:
                if not fits(MEGABYTES, clients):
                    print(f"{clients:8d} {servers:8d} {'left out: memory':>38}")
                    continue
                found = measure(clients, servers, unix)
                carried = 2 * MEGABYTES * 10**6 * found.rate
                print(
                    f"{clients:8d} {servers:8d} {found.rate:12.1f} {carried / 1e9:15.2f}"
                    f" {found.server_cores:13.2f} {found.client_cores:13.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
