"""What `PlacedLayers` is for: the peak of the memory of each process, by the number of workers.

Two models: one with large weights, one with large activations. `SingleTrainer` trains the same
model in one process. ``python -m tests.benchmarks.placed``
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from tests.benchmarks.studies.machine import processor_name
from tests.processes import processes

WIDTH, LAYERS = 1024, 16
SIDE, CHANNELS, CONVOLUTIONS = 64, 32, 16
ROWS, BATCH, WORKERS = 128, 64, (1, 2, 4)
#: Without an argument a run of so few rows would take windows of one batch.
WINDOW = "epoch"


def dense():
    """Return a net with large weights and small activations, and the shape of its input."""
    import keras

    keras.utils.set_random_seed(1)
    hidden = [keras.layers.Dense(WIDTH, activation="relu", name=f"dense{n}") for n in range(LAYERS)]
    last = keras.layers.Dense(10, activation="softmax", name="out")
    return keras.Sequential([keras.Input((WIDTH,)), *hidden, last]), (WIDTH,)


def convolutional():
    """Return a net with small weights and large activations, and the shape of its input."""
    import keras

    keras.utils.set_random_seed(1)
    shape = (SIDE, SIDE, 3)
    hidden = [
        # Kernels of 1x1: little work for large activations.
        keras.layers.Conv2D(CHANNELS, 1, activation="relu", name=f"conv{n}")
        for n in range(CONVOLUTIONS)
    ]
    pool = keras.layers.GlobalAveragePooling2D(name="pool")
    last = keras.layers.Dense(10, activation="softmax", name="out")
    return keras.Sequential([keras.Input(shape), *hidden, pool, last]), shape


def peaks() -> dict[int, int]:
    """Return the highest memory so far [bytes] of Spark's Python workers, by process."""
    table = processes()
    parents = {pid: parent for pid, parent, _ in table}
    daemons = {pid for pid, _, command in table if "pyspark.daemon" in command}
    found = {}
    for pid in daemons:
        # Workers are forked from a daemon, which this process's JVM has started.
        if parents[pid] not in daemons or os.getpid() not in ancestors(pid, parents):
            continue
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmHWM"):
                    found[pid] = 1024 * int(line.split()[1])
    return found


def ancestors(pid: int, parents: dict[int, int]) -> list[int]:
    """Return the processes from which a process descends."""
    found = []
    while pid := parents.get(pid, 0):
        found.append(pid)
    return found


@contextlib.contextmanager
def watched() -> Iterator[dict[int, int]]:
    """Watch the peaks of all workers that run meanwhile."""
    found: dict[int, int] = {}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            found.update(peaks())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def rows_of(spark, shape):
    """Return random rows of a shape, as Parquet."""
    from distkeras_grid import Field

    random = np.random.default_rng(0)
    path = "build/benchmark-placed"
    table = [
        (random.random(int(np.prod(shape)), np.float32).tolist(), int(label))
        for label in random.integers(0, 10, ROWS)
    ]
    data = spark.createDataFrame(table, "x array<float>, label long").coalesce(1)
    data.write.mode("overwrite").parquet(path)
    return spark.read.parquet(path).withMetadata("x", Field("x", shape).to_metadata())


def measure(build) -> None:
    """Print a row for each trainer and number of workers."""
    from distkeras_grid import PlacedLayers, SingleTrainer, build_session

    common = {
        "batch_size": BATCH,
        "features_col": "x",
        "num_epoch": 2,
        "communication_window": WINDOW,
        "progress": False,
    }
    settings = ("adam", "sparse_categorical_crossentropy")
    for workers in (0, *WORKERS):
        # Fresh processes for each row: a peak stays with its process.
        spark = build_session("placed", master="local[4]")
        model, shape = build()
        data = rows_of(spark, shape)
        trainer = (
            PlacedLayers(model, *settings, num_workers=workers, **common)
            if workers
            else SingleTrainer(model, *settings, **common)
        )
        with watched() as found:
            trainer.train(data, shuffle=False, seed=1)
        used = sorted(found.values(), reverse=True)[: max(workers, 1)]
        name = f"PlacedLayers, {workers} workers" if workers else "SingleTrainer"
        lines = trainer.run.get("devices", [])
        told = [line for line in lines if "moved" in line or "measured" in line]
        megabytes = " ".join(f"{peak / 1e6:6.0f}" for peak in used)
        seconds = trainer.get_training_time() / 2
        print(f"{name:24} {seconds:6.2f} s an epoch  MB {megabytes}  {' '.join(told)}", flush=True)
        spark.stop()


def main() -> None:
    """Print both tables."""
    print(processor_name())
    for build in (dense, convolutional):
        model, _ = build()
        print(
            f"\n{build.__name__}: {model.count_params() / 1e6:.2f} million weights, batch {BATCH}, "
            f"window {WINDOW}"
        )
        measure(build)


if __name__ == "__main__":
    main()
