"""Interrupting a cell stops the executors' work and leaves the session usable."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

pytestmark = [
    pytest.mark.notebook,
    pytest.mark.full,
    # Jupyter's own libraries leave sockets and event loops to the garbage collector.
    pytest.mark.filterwarnings("default"),
]

SETUP = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
from distkeras_grid import DOWNPOUR, build_session
from pyspark.sql import functions as F

spark = build_session("interrupt", master="local[2,4]")
frame = spark.range(0, 2000, 1, 2).select(
    F.array(*[(F.rand(k) * 2 - 1).cast("float") for k in range(8)]).alias("features"),
    (F.col("id") % 2).alias("label"),
).cache()

def trainer(epochs):
    net = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2, activation="softmax")])
    net.compile("sgd", "sparse_categorical_crossentropy")
    return DOWNPOUR(net, num_workers=2, batch_size=4, num_epoch=epochs)

def running():
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(stage.numActiveTasks for stage in stages if stage)
"""


class Kernel:
    """A notebook's kernel, and what its cells print."""

    def __init__(self, manager: Any, client: Any) -> None:
        self.manager = manager
        self._client = client

    def start(self, code: str) -> str:
        return str(self._client.execute(code))

    def follow(self, cell: str, until: str = "", timeout: float = 120) -> tuple[str, str]:
        """Read a cell's output until a word or its end; return it, and the error's name."""
        printed, error = "", ""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                message = self._client.get_iopub_msg(timeout=1)
            except Empty:
                continue
            if message["parent_header"].get("msg_id") != cell:
                continue
            content = message["content"]
            printed += content.get("text", "") + str(content.get("data", ""))
            error = content.get("ename", error)
            if (until and until in printed) or content.get("execution_state") == "idle":
                return printed, error
        raise TimeoutError(f"the cell is silent; it printed {printed!r}")

    def run(self, code: str) -> str:
        printed, error = self.follow(self.start(code))
        assert not error, printed
        return printed


@pytest.fixture(scope="module")
def kernel(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    from jupyter_client.manager import start_new_kernel

    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "IPYTHONDIR": str(tmp_path_factory.mktemp("ipython")),
    }
    manager, client = start_new_kernel(env=environment, cwd=str(project / "notebooks"))
    try:
        kernel = Kernel(manager, client)
        kernel.run(SETUP)
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_interrupting_a_run_stops_its_workers_and_the_next_run_works(kernel: Kernel) -> None:
    cell = kernel.start("trainer(10_000).train(frame, seed=1)")
    kernel.follow(cell, until="workers 2 of 2")
    kernel.manager.interrupt_kernel()
    _, error = kernel.follow(cell, timeout=30)
    assert error == "KeyboardInterrupt"
    kernel.run("import time\nwhile running(): time.sleep(0.1)")
    kernel.run("short = trainer(1); short.train(frame, seed=1)")
    assert "2000" in kernel.run("print(short.history.samples)")


def test_interrupting_a_job_of_spark_stops_it(kernel: Kernel, tmp_path: Path) -> None:
    cell = kernel.start(
        f"""
def work(number):
    import pathlib, time
    pathlib.Path({str(tmp_path)!r}, str(number)).touch()
    time.sleep(600)

spark.sparkContext.parallelize(range(2), 2).foreach(work)
"""
    )
    deadline = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    kernel.manager.interrupt_kernel()
    _, error = kernel.follow(cell, timeout=30)
    # The second one comes from Py4J, if the interrupt falls into what it sends or receives.
    assert error in ("KeyboardInterrupt", "Py4JNetworkError")
    kernel.run("import time\nwhile running(): time.sleep(0.1)")
    assert "10" in kernel.run("print(spark.range(10).count())")
