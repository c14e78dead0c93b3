"""A model of 138 million parameters exchanged: seconds for an exchange, and the memory it takes.

    python -m tests.benchmarks.large [--clients 1 2] [--servers 1 2 4] [--roads tcp]

Vectors have 552 MB. A server maps 1 GiB of workers' vectors at most, so one of two workers with one
server lends its memory, and the other uses the Unix socket; several servers share the vector, and
each maps its slices. Clients only exchange: they have no model, and an exchange is all that they
do. Peaks are those of each process while clients exchange: resident memory (RSS), and
proportional memory (PSS), in which a page that two processes have mapped counts half in each.
"""

from __future__ import annotations

import argparse
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import psutil

from tests.benchmarks.exchange import ROADS
from tests.benchmarks.servers import Found, Load, measure
from tests.benchmarks.studies.machine import processor_name
from tests.benchmarks.tables import print_table

MEGABYTES = 552
CLIENTS, SERVERS = (1, 2), (1, 2, 4)
SECONDS, LEAST = 10.0, 5
EVERY = 0.25  # s
# Vectors of all processes, for one that does not fit not to be tried: the driver has one, each
# server two and two for each client, a client five.
OF_DRIVER, OF_SERVERS, OF_CLIENT = 1, 2, 7
MOST = 0.8

Peaks = dict[str, tuple[float, float]]


@contextmanager
def watching(peaks: Peaks, servers: Sequence[int], clients: Sequence[int]) -> Iterator[None]:
    """Keep the peaks of all processes [MB]: RSS and PSS, and of their sum."""
    names = {os.getpid(): "driver"}
    names |= {pid: f"server {number}" for number, pid in enumerate(servers)}
    names |= {pid: f"worker {number}" for number, pid in enumerate(clients)}
    over = threading.Event()

    def look() -> None:
        while not over.wait(EVERY):
            now = {name: _memory(pid) for pid, name in names.items()}
            now["all"] = (sum(rss for rss, _ in now.values()), sum(pss for _, pss in now.values()))
            for name, each in now.items():
                before = peaks.get(name, (0.0, 0.0))
                peaks[name] = (max(before[0], each[0]), max(before[1], each[1]))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _memory(pid: int) -> tuple[float, float]:
    found = psutil.Process(pid).memory_full_info()
    return found.rss / 1e6, found.pss / 1e6


def fits(load: Load) -> bool:
    """Whether the vectors fit the memory that is free now."""
    vectors = OF_DRIVER + OF_SERVERS + OF_CLIENT * load.clients
    return vectors * load.megabytes * 10**6 < MOST * psutil.virtual_memory().available


def _time_row(load: Load, found: Found) -> tuple[str, ...]:
    return (
        *(load.road, str(load.clients), str(load.servers)),
        f"{load.clients / found.rate:.2f}",
        f"{2 * load.megabytes * 1e6 * found.rate / 1e9:.2f}",
        *(f"{found.server_cores:.2f}", f"{found.client_cores:.2f}"),
        f"{found.lent} of {load.clients * load.servers}",
    )


def _memory_row(load: Load, peaks: Peaks) -> tuple[str, ...]:
    def told(start: str) -> str:
        found = [each for name, each in peaks.items() if name.startswith(start)]
        return "; ".join(f"{rss:,.0f} / {pss:,.0f}" for rss, pss in found)

    head = (load.road, str(load.clients), str(load.servers))
    return (*head, *map(told, ("driver", "server", "worker", "all")))


def main(words: Sequence[str] = ()) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--roads", nargs="+", choices=ROADS, default=ROADS)
    parser.add_argument("--clients", nargs="+", type=int, default=CLIENTS)
    parser.add_argument("--servers", nargs="+", type=int, default=SERVERS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each client (10)")
    options = parser.parse_args(words)
    print(
        f"{processor_name()}, {os.cpu_count()} cores, load before the start "
        f"{os.getloadavg()[0]:.2f}; vectors of {MEGABYTES} MB, at least {LEAST} exchanges of each "
        f"client and {options.seconds:g} s"
    )
    times, memory = [], []
    for clients in options.clients:
        for servers in options.servers:
            # The roads take turns within a row, for these are what is compared.
            for road in options.roads:
                load = Load(MEGABYTES, clients, servers, road, options.seconds, LEAST)
                if not fits(load):
                    times.append((road, clients, servers, "left out: memory", *[""] * 4))
                    continue
                peaks: Peaks = {}
                times.append(_time_row(load, measure(load, partial(watching, peaks))))
                memory.append(_memory_row(load, peaks))
    print_table(
        (
            *("road", "clients", "servers", "s for an exchange of a client", "GB/s of all"),
            *("server cores", "client cores", "connections that lent memory"),
        ),
        times,
    )
    print("\nPeak memory, RSS / PSS, MB")
    print_table(
        ("road", "clients", "servers", "driver", "each server", "each worker", "all together"),
        memory,
    )


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
