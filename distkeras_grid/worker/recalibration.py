"""A task that measures batch normalization's statistics on a seat's rows after the training.

The workers' moving statistics are averages over weights that have changed since, and over workers
with different weights. A forward pass over all rows gives the statistics of the final weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from distkeras_grid.errors import GridError
from distkeras_grid.feeding.batches import policy_of
from distkeras_grid.worker.task import (
    WorkerPlan,
    build_engine,
    prepare_worker_process,
)

if TYPE_CHECKING:
    import pyarrow as pa

#: What a task yields, as Spark's DDL: its rows, and the sums of their statistics as float64.
STATISTICS_SCHEMA = "rows long, sums binary"


def measure_statistics(
    plan: WorkerPlan, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Measure the statistics of one seat's rows; Spark runs this on an executor.

    Parameters
    ----------
    plan : WorkerPlan
        Plan of the training, with the trained model.
    batches : iterator of pyarrow.RecordBatch
        The seat's rows, in any order.

    Yields
    ------
    pyarrow.RecordBatch
        One row of `STATISTICS_SCHEMA`; none for a seat without rows.
    """
    import pyarrow as pa
    from pyspark import TaskContext

    from distkeras_grid.feeding.spool import Spool

    context = TaskContext.get()
    if context is None:
        raise GridError("measure_statistics runs inside a Spark task only.")
    seat = context.partitionId()
    with Spool(plan.features, plan.labelled) as spool:
        for batch in batches:
            spool.append(batch)
        spool.seal()
        if len(spool) == 0:
            return
        prepare_worker_process(plan.spec)
        engine = build_engine(plan, seat)
        policy = policy_of(plan.spec.schedule, len(spool), seat).once()
        blocks = (block for window in policy.windows() for block in spool.blocks(window.blocks))
        rows, sums = engine.measure_statistics(engine.weights(), blocks)
    yield pa.RecordBatch.from_pydict({"rows": pa.array([rows]), "sums": [sums.tobytes()]})
