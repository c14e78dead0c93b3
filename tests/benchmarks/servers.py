"""Exchanges per second with one parameter server, and with several that share the center.

    python -m tests.benchmarks.servers [--megabytes 2 20] [--clients 1 64] [--servers 1 4]
        [--transports tcp]

An exchange is one commit up and one reply down; both ways together are counted in GB/s. Each server
is a process, and clients are processes, too, up to eight; more of them are threads in these. A run
with one server is that of users: the plain client, without the copy that several servers need. By
TCP frames are encrypted, by a Unix socket nothing is; shared memory is used for vectors as long as
the server maps no more than its limit of them, and the other workers use the socket. The column
"lent" says how many did lend. The rate is that of the time in which all clients exchange and each
has made its first exchange: that one also maps and touches the memory of both ends. Several servers
pay where one has no core left, on a host that has more. Sides take turns, and figures are medians
of the repetitions.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import psutil

from distkeras_grid.errors import TrainingError
from distkeras_grid.parameter_server import client as client_module
from distkeras_grid.parameter_server.auth import new_key, seat_key
from distkeras_grid.parameter_server.client import WorkerClient
from distkeras_grid.parameter_server.messages import WindowCommit
from distkeras_grid.parameter_server.process import ServerProcess
from distkeras_grid.parameter_server.settings import ServerAddress
from distkeras_grid.parameter_server.sharded_client import AnyClient, ShardedClient
from distkeras_grid.parameter_server.sharded_process import ShardedProcess
from distkeras_grid.parameter_server.shared_memory import LENT_LIMIT
from distkeras_grid.spec import RunSpec
from tests.benchmarks.tables import print_table, processor_name
from tests.specs import make_settings

# More clients than this share processes, as threads that spend their time in the kernel.
PROCESSES = 8
# Of the memory of this machine, for clients of four vectors and the server's one more for each.
MEMORY_SHARE = 0.4
TRANSPORTS = ("tcp", "unix socket", "shared memory")
CLIENTS = (1, 2, 4, 8, 16, 32, 64)
SERVERS = (1, 2, 4)
SECONDS = 6.0
ROWS = 1_000_000
# What a client sends: not zero, since untouched pages of zeros are all one page in the cache.
SMALL = np.float32(1e-6)


@dataclass(frozen=True)
class Load:
    """What is measured."""

    megabytes: int  # Size of the vector [MB]
    clients: int
    servers: int
    transport: str  # One of `TRANSPORTS`
    seconds: float  # How long each client exchanges [s]
    least: int = 2  # Exchanges of each client at least, however long they take

    @property
    def size(self) -> int:
        """Numbers in the vector."""
        return self.megabytes * 10**6 // 4


@dataclass(frozen=True)
class Job:
    """What a process of clients gets."""

    load: Load
    addresses: tuple[ServerAddress, ...]
    key: bytes
    spec: RunSpec


@dataclass(frozen=True)
class Did:
    """What a client did: when its exchanges ended [s], how many connections lent memory."""

    ends: tuple[float, ...]
    lent: int


@dataclass(frozen=True)
class Found:
    """Exchanges per second of all clients, and connections that lent memory."""

    rate: float
    lent: int


def connect(job: Job, seat: int) -> AnyClient:
    """Connect as a worker does, to one server or several."""
    own = seat_key(job.key, seat)
    if job.load.servers > 1:
        return ShardedClient.connect(job.addresses, own, "bench", seat, 0, job.spec, 60)
    return WorkerClient.connect(job.addresses[0], own, "bench", seat, 0, job.spec.size, 60)


def run_client(job: Job, seat: int) -> Did:
    """Exchange for a while."""
    reply = np.empty(job.spec.size, np.float32)
    with connect(job, seat) as client:
        client.ready(ROWS)
        # As in training, the commit is made where the server reads it.
        payload = client.send_buffer
        if payload is None:
            payload = np.empty(job.spec.size, np.float32)
        payload[:] = SMALL
        began, ends = time.monotonic(), list[float]()
        while len(ends) < job.load.least or ends[-1] < began + job.load.seconds:
            count = len(ends)
            commit = WindowCommit(count, 0, 1, count, 1, 1, 0.0, {}, time.time(), 0.0)
            client.exchange(commit, payload, reply)
            ends.append(time.monotonic())
        parts = client._clients if isinstance(client, ShardedClient) else (client,)
        lent = sum(part.transport == "shared memory" for part in parts)
        client.finish()
    return Did(tuple(ends), lent)


def run_clients(job: Job, seats: range) -> list[Did]:
    """Run the clients of some seats in this process; return what they did."""
    if job.load.transport != "shared memory":
        client_module.LENT_LIMIT = 0
    with ThreadPoolExecutor(len(seats)) as pool:
        return list(pool.map(lambda seat: run_client(job, seat), seats))


def steady_rate(ends: Sequence[Sequence[float]]) -> float:
    """Return the exchanges per second of all clients while each is between its first and last one.

    `ends` tells when the exchanges of each client ended [s], at least two of each.
    """
    since, until = max(each[0] for each in ends), min(each[-1] for each in ends)
    if until <= since:
        raise TrainingError(
            "Clients did not exchange at the same time. Received: a common time of "
            f"{until - since:.1f} s. Give them more seconds."
        )
    return sum(since < end <= until for each in ends for end in each) / (until - since)


def fits(load: Load) -> bool:
    """Whether all vectors fit the share of the memory that the benchmark allows itself."""
    memory = psutil.virtual_memory().total
    return 5 * load.megabytes * 10**6 * load.clients < MEMORY_SHARE * memory


def measure(load: Load) -> Found:
    """Let all clients exchange with all servers at once."""
    key = new_key()
    settings = make_settings(
        run="bench",
        seats=load.clients,
        trainable_size=load.size,
        rows=ROWS * load.clients,
        servers=load.servers,
    )
    context = multiprocessing.get_context("spawn")
    serve = ServerProcess if load.servers == 1 else ShardedProcess
    with serve(settings, np.full(load.size, SMALL), key) as running:
        addresses = running.addresses
        if load.transport == "tcp":
            addresses = tuple(replace(each, unix_name=None) for each in addresses)
        job = Job(load, addresses, key, settings.spec)
        workers = min(load.clients, PROCESSES)
        seats = [range(number, load.clients, workers) for number in range(workers)]
        with ProcessPoolExecutor(workers, context) as pool:
            results = [
                did for each in pool.map(run_clients, [job] * workers, seats) for did in each
            ]
    return Found(steady_rate([did.ends for did in results]), sum(did.lent for did in results))


def _row(load: Load, found: Sequence[Found], alone: float | None) -> tuple[str, ...]:
    """Return the row of one load; `alone` is the rate of a single client."""
    rates = [each.rate for each in found]
    carried = 2e6 * load.megabytes * median(rates)
    return (
        *map(str, (load.megabytes, load.clients, load.servers)),
        *(f"{median(rates):.1f}", f"{min(rates):.1f} to {max(rates):.1f}"),
        f"{carried / 1e9:.2f}",
        "" if alone is None else f"{median(rates) / alone:.2f}",
        f"{min(each.lent for each in found)} of {load.clients * load.servers}",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transports", nargs="+", choices=TRANSPORTS, default=TRANSPORTS)
    parser.add_argument("--clients", nargs="+", type=int, default=CLIENTS)
    parser.add_argument("--servers", nargs="+", type=int, default=SERVERS)
    parser.add_argument("--megabytes", nargs="+", type=int, default=[20], help="of the vector (20)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each client (6)")
    parser.add_argument("--least", type=int, default=2, help="exchanges of each client (2)")
    parser.add_argument("--repetitions", type=int, default=1, help="sides take turns (1)")
    return parser


def main(words: Sequence[str] = ()) -> None:
    """Print the tables."""
    options = _parser().parse_args(words)
    print(
        f"{processor_name()}, {os.cpu_count()} cores, load before the start "
        f"{os.getloadavg()[0]:.2f}; {options.seconds:g} s of exchanges, "
        f"medians of {options.repetitions}"
    )
    print(
        f"A server maps {LENT_LIMIT} bytes of workers' vectors at most. Workers that come later "
        "use the Unix socket."
    )
    loads = [
        Load(megabytes, clients, servers, transport, options.seconds, options.least)
        for megabytes in options.megabytes
        for clients in options.clients
        for servers in options.servers
        for transport in options.transports
    ]
    found: dict[Load, list[Found]] = {load: [] for load in loads if fits(load)}
    for _ in range(options.repetitions):
        for load, results in found.items():
            results.append(measure(load))
    alone = {
        replace(load, clients=1): median(each.rate for each in found[load])
        for load in found
        if load.clients == 1
    }
    for transport in options.transports:
        print(f"\n{transport}{', encrypted' if transport == 'tcp' else ''}")
        rows = (
            _row(load, found[load], alone.get(replace(load, clients=1)))
            for load in found
            if load.transport == transport
        )
        print_table(
            (
                *("MB", "clients", "servers", "exchanges/s", "range", "GB/s both ways"),
                *("of one client", "connections that lent memory"),
            ),
            rows,
        )
    for load in [each for each in loads if each not in found]:
        print(f"left out, for it does not fit this machine's memory: {load}")


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
