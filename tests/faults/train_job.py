"""A driver of its own: trains the counting model on a cluster while something is killed.

``python -m tests.faults.train_job MASTER FOLDER SETTINGS`` with the settings as JSON; what came out
is written to ``FOLDER/result.json``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import psutil

from distkeras_grid.errors import GridError
from distkeras_grid.parameter_server import messages
from distkeras_grid.parameter_server.process import ServerProcess
from tests.distkeras_grid.parameter_server.relay import Fault, Relay
from tests.faults import counting

DEFAULTS = {
    "trainer": "DOWNPOUR",
    "rows": 600,
    "epochs": 40,
    "arguments": {},
    # What dies: nothing, worker, workers, stopped worker, executor, slot, driver,
    # interrupt, each worker, or a list of seats, whose executors die one after another. Of a slot,
    # the daemon that would start another executor dies, too. A decommissioned executor lives on.
    "fault": "nothing",
    "at_epoch": 3,
    # Whether the rows come in an order that each execution of their plan draws anew.
    "shuffled": False,
    # The seat for which others wait in their batches, once the fault "wait" has come.
    "waits_for": None,
    # In which frames workers are struck: kind of the message, seat, which of them, the share of the
    # frame that is passed on before, and the signal that the worker's process gets.
    "frames": [],
    # Whether the run writes checkpoints.
    "saved": False,
    # More settings of the Spark session.
    "conf": {},
    # The cluster's file system, where it has one.
    "file_system": "",
}
DRIVER = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
}


def fault(name: str, folder: Path):
    faults = {
        "nothing": lambda: None,
        "worker": lambda: counting.kill(counting.worker_pid(folder, 0)),
        "workers": lambda: [counting.kill(counting.worker_pid(folder, seat)) for seat in (0, 1)],
        "stopped worker": lambda: os.kill(counting.worker_pid(folder, 0), signal.SIGSTOP),
        "executor": lambda: counting.kill(counting.executor_pid(folder, 0)),
        "slot": lambda: kill_slot(folder),
        # The signal by which Spark's executors learn that their host will go.
        "decommissioned": lambda: os.kill(counting.executor_pid(folder, 0), signal.SIGPWR),
        "wait": (folder / counting.WAITS).touch,
        "driver": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT),
        "each worker": lambda: None,
    }
    return faults[name]


def strike_in(frames: list[tuple[str, int, int, float, int]]) -> list[Relay]:
    """Let workers reach the server through a relay that strikes them in some of their frames."""

    def strike(number: int, port: int) -> None:
        (owner,) = {
            each.pid
            for each in psutil.net_connections("tcp")
            if each.laddr and each.laddr.port == port and each.pid != os.getpid()
        }
        os.kill(owner, number)

    faults = [
        Fault(getattr(messages, kind), "call", nth, seat, share, call=partial(strike, number))
        for kind, seat, nth, share, number in frames
    ]
    relays: list[Relay] = []

    def addresses(server):
        if not relays:
            relays.append(Relay(server.address, *faults))
        return (relays[0].address,)

    if faults:
        ServerProcess.addresses = property(addresses)
    return relays


def kill_slot(folder: Path) -> None:
    """Kill the executor of seat 0, and before it the daemon that has started it."""
    executor = counting.executor_pid(folder, 0)
    counting.kill(counting.parent_pid(executor))
    counting.kill(executor)


def kill_each_attempt(folder: Path) -> None:
    """Kill every worker of seat 0 as soon as it has traced its model."""
    killed: set[int] = set()
    while True:
        for attempt in set(counting.attempts(folder, 0)) - killed:
            if text := (folder / f"0-{attempt}").read_text():
                counting.kill(int(text))
                killed.add(attempt)
        time.sleep(0.02)


def kill_executors(folder: Path, seats: list[int], history) -> None:
    """Kill the executors of seats one after another, each when its worker has folded a window."""
    killed: set[int] = set()
    for seat in seats:
        while True:
            folded = {record.attempt for record in history.records[-200:] if record.worker == seat}
            if folded - killed and max(folded) == counting.attempts(folder, seat)[-1]:
                break
            time.sleep(0.02)
        counting.kill(counting.executor_pid(folder, seat))
        killed |= folded


def in_any_order(rows):
    """Return the rows behind a sort whose keys are drawn each time that a task computes them."""
    import random

    from pyspark.sql import functions as F

    draw = F.udf(lambda _: random.random(), "double").asNondeterministic()
    return rows.withColumn("drawn", draw("x")).orderBy("drawn").drop("drawn")


def run(spark, folder: Path, settings) -> dict:
    folder.mkdir()
    saving = {"checkpoint_dir": str(folder / "checkpoints")} if settings["saved"] else {}
    waits_for = settings["waits_for"]
    loss = counting.negative_sum(folder)
    if waits_for is not None:
        loss = counting.waiting(loss, folder, waits_for)
    arguments = {"num_epoch": settings["epochs"], **saving, **settings["arguments"]}
    trainer = counting.counting_trainer(
        settings["trainer"], folder, rows=settings["rows"], loss=loss, **arguments
    )
    moment: list[float] = []

    def harm():
        if moment:
            # The run has begun again before this epoch.
            return
        moment.append(time.monotonic())
        if isinstance(settings["fault"], list):
            killer = (folder, settings["fault"], trainer.history)
            threading.Thread(target=kill_executors, args=killer, daemon=True).start()
            return
        fault(settings["fault"], folder)()

    relays = strike_in(settings["frames"])
    if settings["fault"] == "each worker":
        threading.Thread(target=kill_each_attempt, args=(folder,), daemon=True).start()
    callbacks = [counting.at_epoch(settings["at_epoch"], harm)]
    error = words = None
    try:
        data = counting.counting_data(spark, settings["rows"])
        if settings["shuffled"]:
            data = in_any_order(data)
        trainer.train(data, seed=1, callbacks=callbacks)
    except (GridError, KeyboardInterrupt) as raised:
        error, words = type(raised).__name__, str(raised)
    return {
        "error": error,
        "words": words,
        "seconds_after": time.monotonic() - moment[0] if moment else None,
        "samples": trainer.history.samples,
        "stored_rows": trainer.run.get("stored_rows"),
        "struck": [each.kind.__name__ for relay in relays for each in relay.struck],
        "seats": [[r.worker, r.attempt] for r in trainer.history.records],
        "joined": [[r.worker, r.attempt] for r in trainer.history.workers if r.status == "joined"],
        "weights": [] if error else trainer.model.get_weights()[0].ravel().tolist(),
        "active_jobs": list(spark.sparkContext.statusTracker().getActiveJobsIds()),
        "rows_of_another_job": spark.range(100).count(),
    }


def main(master: str, folder: str, text: str) -> None:
    from distkeras_grid.spark.session import build_session

    settings = {**DEFAULTS, **json.loads(text)}
    hadoop = {"spark.hadoop.fs.defaultFS": settings["file_system"]}
    more = hadoop if settings["file_system"] else {}
    spark = build_session("faults", master=master, settings={**DRIVER, **more, **settings["conf"]})
    home = Path(folder)
    results = {}
    if settings["trainer"] == "AveragingTrainer":
        results["undisturbed"] = run(spark, home / "undisturbed", {**settings, "fault": "nothing"})
    results["disturbed"] = run(spark, home / "disturbed", settings)
    (home / "result.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
