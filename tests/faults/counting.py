"""A model that counts: whatever dies meanwhile, each weight tells how often its row was trained.

An embedding with one weight per row, loss the negative sum, SGD with rate 1: each visit of a row
adds exactly 1 to its weight. Under `DOWNPOUR` the center adds up all visits.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.cluster import driver_environment
from tests.processes import processes

ROWS, EPOCHS = 600, 30


def counting_model(rows: int, loss: Callable[..., object]):
    import keras

    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Embedding(rows, 1, embeddings_initializer="zeros")]
    )
    model.compile(keras.optimizers.SGD(1.0), loss=loss)
    return model


def negative_sum(folder: Path) -> Callable[..., object]:
    """Return the loss; each worker that traces it notes its process in `folder`.

    A function in a function: it travels by value, for executors cannot import tests.
    """
    folder = Path(folder)

    def loss(_, predicted):
        import os

        import keras
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None:
            name = f"{context.partitionId()}-{context.taskAttemptId()}"
            (folder / name).write_text(str(os.getpid()))
        # The sum over the batch: Keras divides by its size, which is multiplied back.
        ones = keras.ops.ones_like(predicted[:, 0, 0])
        return ones * -keras.ops.sum(predicted)

    return loss


def failing(folder: Path) -> Callable[..., object]:
    """Return a loss that fails on workers; each of them notes its attempt in `folder`."""

    def loss(_, predicted):
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:  # The driver computes it once, to see what it gives.
            return predicted[:, 0, 0]
        (folder / f"{context.partitionId()}-{context.taskAttemptId()}").touch()
        raise ValueError("no such class: basalt")

    return loss


#: In the folder of a run: workers wait in their batches, until the one that they wait for has come.
WAITS = "waits"


def waiting(counts: Callable[..., object], folder: Path, seat: int) -> Callable[..., object]:
    """Return a loss that waits in each batch while the folder says so, for a seat to come."""
    text, waits = str(folder), str(folder / WAITS)

    def loss(labels, predicted):
        import tensorflow as tf
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.partitionId() == seat:
            # It has come. It notes that when it traces the loss, and an engine calls it before.
            return counts(labels, predicted)

        def wait() -> float:
            import os
            import time
            from pathlib import Path

            until = time.monotonic() + 200.0
            while os.path.exists(waits) and time.monotonic() < until:
                if any(Path(text).glob(f"{seat}-*")):
                    break
                time.sleep(0.05)
            return 0.0

        none = tf.py_function(wait, [], tf.float32)
        none.set_shape(())
        return counts(labels, predicted) + none

    return loss


def counting_trainer(name, folder: Path, *, rows: int = ROWS, loss=None, **arguments):
    """Return a trainer of two workers, with other arguments where a test says so."""
    import distkeras_grid

    loss = loss or negative_sum(folder)
    settings = {"num_workers": 2, "batch_size": 4, "num_epoch": EPOCHS, "communication_window": 2}
    settings["features_col"] = "x"
    return getattr(distkeras_grid, name)(
        counting_model(rows, loss),
        custom_objects={"loss": loss},
        progress=False,
        **{**settings, **arguments},
    )


def counting_data(spark, rows: int = ROWS):
    return spark.range(rows, numPartitions=3).selectExpr("cast(id as float) x", "0 as label")


def attempts(folder: Path, seat: int) -> list[int]:
    """Attempts on a seat that have come as far as tracing, oldest first."""
    return sorted(int(path.name.split("-")[1]) for path in folder.glob(f"{seat}-*"))


def worker_pid(folder: Path, seat: int) -> int:
    """Process of the newest attempt on a seat."""
    return int((folder / f"{seat}-{attempts(folder, seat)[-1]}").read_text())


def parent_pid(pid: int) -> int:
    return int(subprocess.check_output(["ps", "-o", "ppid=", "-p", str(pid)], text=True))


def executor_pid(folder: Path, seat: int) -> int:
    """The executor's JVM: the parent of the daemon that forks Python workers."""
    return parent_pid(parent_pid(worker_pid(folder, seat)))


def server_pid() -> int:
    """The parameter server that this process has started."""
    for pid, parent, command in processes():
        if parent == os.getpid() and "distkeras_grid.parameter_server" in command:
            return pid
    raise LookupError("no parameter server")


def lives(pid: int) -> bool:
    """Whether a process runs; one that is dead but not yet waited for does not."""
    command = ["ps", "-o", "stat=", "-p", str(pid)]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    return bool(found.stdout.strip()) and not found.stdout.startswith("Z")


def at_epoch(number: int, act: Callable[[], object]):
    """Return a callback that acts once, when an epoch ends; workers go on meanwhile."""
    import keras

    def on_epoch_end(epoch, _):
        if epoch + 1 == number:
            act()

    return keras.callbacks.LambdaCallback(on_epoch_end=on_epoch_end)


def from_epoch(number: int, act: Callable[[], object]):
    """Return a callback that acts when epoch ``number``, counted from 1, or any later one ends."""
    import keras

    def on_epoch_end(epoch, _):
        if epoch + 1 >= number:
            act()

    return keras.callbacks.LambdaCallback(on_epoch_end=on_epoch_end)


def kill(pid: int, by: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, by)


def wait_until(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not so after {seconds} s"
        threading.Event().wait(0.05)


def start_driver(project: Path, job: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a driver of its own: a job of this folder; settings in a dict are given as JSON."""
    words = [json.dumps(each) if isinstance(each, dict) else str(each) for each in arguments]
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.faults.{job}", *words],
        cwd=project,
        env=driver_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(driver: subprocess.Popen[str], seconds: float = 360.0, code: int = 0) -> None:
    """Wait for a driver; leave nothing of it, for what is left would fail a later test."""
    try:
        output, _ = driver.communicate(timeout=seconds)
    finally:
        driver.kill()
        driver.communicate()
    assert driver.returncode == code, output
