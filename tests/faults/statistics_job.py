"""A driver of its own, whose worker is killed or stopped while statistics are measured again.

``python -m tests.faults.statistics_job MASTER FOLDER FAULT`` trains a net with batch normalization
and ``statistics="recalibrate"``; the fault is ``nothing``, ``kill`` or ``stop``. What came out is
written to ``FOLDER/result.json``. The first attempt of seat 0 waits at a latch where it loads the
trained model, until the fault has struck it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from tests.faults.counting import kill
from tests.faults.train_job import DRIVER

ROWS, START_SECONDS, LATCH_SECONDS = 240, 40.0, 120.0
#: The mark of the attempt at the latch, which has its process, and what lets it go.
REACHED, GO = "reached", "go"


def latched(folder: Path):
    """Return a layer that changes nothing; it travels by value, as executors import no tests."""
    import keras

    reached, go, seconds = str(folder / REACHED), str(folder / GO), LATCH_SECONDS

    class Latched(keras.layers.Layer):
        def call(self, x):
            import os
            import time

            from pyspark import TaskContext

            context = TaskContext.get()
            job = context and context.getLocalProperty("spark.job.description")
            if not (job or "").endswith("statistics"):
                return x
            if (context.partitionId(), context.attemptNumber()) == (0, 0):
                with open(f"{reached}.part", "w") as file:
                    file.write(str(os.getpid()))
                os.replace(f"{reached}.part", reached)
                until = time.monotonic() + seconds
                while not os.path.exists(go) and time.monotonic() < until:
                    time.sleep(0.02)
            return x

    return Latched


def strike(folder: Path, fault: str, struck: list[float]) -> None:
    """Do the harm once the attempt is at its latch."""
    until = time.monotonic() + 2 * LATCH_SECONDS
    while not (folder / REACHED).exists() and time.monotonic() < until:
        time.sleep(0.02)
    pid = int((folder / REACHED).read_text())
    struck.append(time.monotonic())
    if fault == "kill":
        kill(pid)
    elif fault == "stop":
        os.kill(pid, signal.SIGSTOP)
    (folder / GO).touch()


def active_jobs(spark) -> list[int]:
    """Return the jobs that run. Spark's listeners may hear of an end some seconds late."""
    tracker, until = spark.sparkContext.statusTracker(), time.monotonic() + 10.0
    while (found := list(tracker.getActiveJobsIds())) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def main(master: str, text: str, fault: str) -> None:
    import keras
    import numpy as np

    import distkeras_grid
    from distkeras_grid.spark.session import build_session

    folder = Path(text)
    spark = build_session("statistics", master=master, settings=DRIVER)
    layer = latched(folder)
    layers = [keras.Input((1,)), keras.layers.BatchNormalization(), layer()]
    model = keras.Sequential([*layers, keras.layers.Dense(2, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    data = spark.range(ROWS, numPartitions=3).selectExpr(
        f"array(cast(id as float) / {ROWS}) as features", "cast(id % 2 as int) as label"
    )
    trainer = distkeras_grid.AveragingTrainer(
        model,
        num_workers=2,
        batch_size=20,
        statistics="recalibrate",
        custom_objects={"Latched": layer},
        start_timeout=START_SECONDS,
    )
    struck: list[float] = []
    striker = threading.Thread(target=strike, args=(folder, fault, struck), daemon=True)
    striker.start()
    trained = trainer.train(data, seed=1)
    seconds = time.monotonic() - struck[0]
    mean, variance = (np.asarray(each).item() for each in trained.layers[0].get_weights()[2:])
    told = {
        "samples": trainer.history.samples,
        "statistics": trainer.history.params["statistics"],
        "measured": [mean, variance],
        "true": float(np.mean(np.arange(ROWS) / ROWS)),
        "seconds_after": seconds,
        "active_jobs": active_jobs(spark),
        "rows_of_another_job": spark.range(100).count(),
    }
    (folder / "result.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
