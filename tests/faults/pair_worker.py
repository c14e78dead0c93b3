"""A worker's process without Spark and Keras, that waits at a latch of its test.

It connects, reads rows, waits for the others and trains, as a worker's task does. At the point that
its settings name it says so, and goes on when it is let go.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from distkeras_grid.errors import FencedError
from distkeras_grid.feeding.batches import policy_of
from distkeras_grid.feeding.local_file import LocalFile
from distkeras_grid.feeding.source import ArraySource
from distkeras_grid.parameter_server.auth import seat_key
from distkeras_grid.parameter_server.client import WorkerClient
from distkeras_grid.parameter_server.settings import ServerAddress
from distkeras_grid.parameter_server.sharded_client import ShardedClient
from distkeras_grid.rules import rule_of
from distkeras_grid.spec import RunSpec
from distkeras_grid.worker.engine_actions import first_state
from distkeras_grid.worker.loop import train
from distkeras_grid.worker.progress import HeartbeatThread, Progress
from distkeras_grid.worker.seat import new_worker_core
from distkeras_grid.worker.task import reported
from tests.invariants.small_runs import BATCH, SEAT_ROWS, SIZE, learner_of

#: How this process tells that a newer attempt has its seat.
FENCED = 3
#: Seconds that a latch holds at most, and between two looks at it.
LONGEST, LOOK = 60.0, 0.01
#: The window from which on a latch in windows holds.
LATCHED_WINDOW = 2


class Worker:
    def __init__(self, told):
        self.told, self.folder = told, Path(told["folder"])
        self.spec = RunSpec.from_json(told["spec"])
        self.seat, self.attempt = told["seat"], told["attempt"]
        rows = np.random.default_rng(self.seat).normal(size=(SEAT_ROWS, SIZE))
        self.rows = ArraySource([rows.astype(np.float32)], [np.zeros(SEAT_ROWS)])
        self.window = 0

    def latch(self, point):
        if point == self.told["latch"]:
            (self.folder / f"reached-{self.attempt}").touch()
            self.wait_for(f"go-{self.attempt}")

    def wait_for(self, name):
        until = time.monotonic() + LONGEST
        while not (self.folder / name).exists():
            if time.monotonic() > until:
                sys.exit(f"nobody has let {name} go")
            time.sleep(LOOK)

    def blocks(self, wanted):
        """Yield the blocks of a window, as a source does."""
        per_epoch = SEAT_ROWS // BATCH
        if self.window == per_epoch:
            self.latch("epoch end")
        if self.window == LATCHED_WINDOW or self.attempt != self.told["first_attempt"]:
            self.latch("window")
        self.window += 1
        time.sleep(0.02)
        yield from self.rows.blocks(wanted)

    def work(self):
        if self.told["after_others"]:
            self.wait_for("others")
        self.latch("hello")
        spec, key = self.spec, seat_key(bytes.fromhex(self.told["key"]), self.seat)
        with self.connect(spec, key) as client:
            progress = Progress()
            with HeartbeatThread(client.first, progress, 0.5), reported(client):
                self.train(client, progress)

    def connect(self, spec, key):
        of = ("pairs", self.seat, self.attempt)
        if several := self.told.get("addresses"):
            addresses = list(map(ServerAddress.from_json, several))
            return ShardedClient.connect(addresses, key, *of, spec, 3)
        return WorkerClient.connect(
            ServerAddress.from_json(self.told["address"]),
            *(key, *of, SIZE, 3),
            state_size=spec.layout.state_section.nbytes,
            worker_state_limit=spec.layout.worker_state_limit,
            compression=spec.compression,
        )

    def train(self, client, progress):
        self.latch("spool")
        if self.told["full_disk"]:
            spool = LocalFile(self.folder, 0)
            spool._file = open("/dev/full", "wb", 0)  # noqa: SIM115
            spool.write(b"rows")
        progress.begin("warming up")
        self.latch("warm-up")
        engine = learner_of(rule_of(self.spec.rule), self.told["kind"])
        first = first_state(engine)
        policy = policy_of(self.spec.schedule, SEAT_ROWS, self.seat)
        start = client.ready(SEAT_ROWS, 0.02, self.told["digest"])
        self.window = start.next_sequence
        core = new_worker_core(self.spec, rule_of(self.spec.rule), engine.layout, policy, self.seat)
        train(core, engine, client, start, self, progress=progress, first=first)


def main(told):
    # For whoever looks why a test has failed.
    sys.stderr = open(f"{told['folder']}/told-{told['attempt']}", "w")  # noqa: SIM115
    try:
        Worker(told).work()
    except FencedError:
        sys.exit(FENCED)
