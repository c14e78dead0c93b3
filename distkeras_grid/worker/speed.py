"""A task that measures how fast an engine trains a model here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from distkeras_grid.rows import aligned_empty
from distkeras_grid.worker.task import EnginePlan, build_engine, prepare_worker_process

if TYPE_CHECKING:
    import pyarrow as pa

    from distkeras_grid.engine.base import ModelEngine
    from distkeras_grid.rows import Block

#: What a task yields, as Spark's DDL: seconds of a block, and why there are none.
SPEED_SCHEMA = "seconds double, problem string"
# Windows are repeated so long, so that all tasks of a host compute at the same time.
SECONDS = 1.5
WINDOWS = 3


def measure_speed(
    plan: EnginePlan, block: Block, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Measure the engine of the plan's backend; Spark runs this on an executor.

    Parameters
    ----------
    plan : EnginePlan
        The run, with the backend that is measured.
    block : Block
        Rows of the run.
    batches : iterator of pyarrow.RecordBatch
        One row that says nothing.

    Yields
    ------
    pyarrow.RecordBatch
        One row of `SPEED_SCHEMA`.
    """
    import pyarrow as pa

    for _ in batches:
        pass
    seconds, problem = None, None
    try:
        prepare_worker_process(plan.spec)
        seconds = time_windows(build_engine(plan, 0), block)
    except Exception as error:  # noqa: BLE001 - a backend that cannot train the model is no choice
        problem = f"{type(error).__name__}: {error}"
    yield pa.RecordBatch.from_pydict(
        {"seconds": pa.array([seconds], pa.float64()), "problem": pa.array([problem], pa.string())}
    )


def time_windows(engine: ModelEngine, block: Block) -> float:
    """Return the median time of a window of one block, once compiled [s]."""
    engine.warm_up(block)
    before, after = engine.weights(), aligned_empty(engine.layout.size)
    start = aligned_empty(engine.layout.size)
    np.copyto(start, before)
    found: list[float] = []
    while sum(found) < SECONDS or len(found) < WINDOWS:
        clock = time.perf_counter()
        engine.run(start, [block], after)
        found.append(time.perf_counter() - clock)
    return median(found)
