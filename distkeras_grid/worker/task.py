"""The one function shipped to Spark: what a worker does, from its first row to its last commit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from distkeras_grid.errors import FencedError, GridError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.parameter_server.client import WorkerClient
from distkeras_grid.parameter_server.settings import ServerAddress
from distkeras_grid.rules import Rule

if TYPE_CHECKING:
    import pyarrow as pa

    from distkeras_grid.engine.tensorflow import TensorFlowEngine
    from distkeras_grid.feeding.batches import Window
    from distkeras_grid.feeding.spool import Spool

#: What a task yields when it has finished, as Spark DDL.
SUMMARY_SCHEMA = (
    "worker int, attempt long, host string, rows long, samples long, "
    "import_seconds double, read_seconds double, compile_seconds double"
)


@dataclass(frozen=True)
class WorkerPlan:
    """What a worker must know; travels in the task's closure.

    Parameters
    ----------
    run : str
        Name of the run.
    key : bytes
        The run's secret.
    address : ServerAddress
        Of the parameter server.
    rule : Rule
        The update rule.
    size : int
        Length of the flat vector.
    model : bytes
        The compiled model as a ``.keras`` archive, frozen weights included.
    compile_settings : mapping
        JSON of `CompileSettings`.
    custom_objects : mapping of str to object
        The user's own classes and functions.
    features : Field
        The feature column.
    batch_size : int
        Rows in a batch.
    window : int or None
        Batches between two exchanges; None for one an epoch.
    epochs, seed : int
        Passes over the data, seed of mixing and of random layers.
    workers : int
        Workers of the run.
    shuffle : bool
        Whether each epoch is mixed.
    class_weight : mapping of int to float, optional
        Weight of the samples of each class.
    jit : bool or "auto"
        Whether XLA compiles windows.
    threads : int
        Cores of a task.
    timeout : float
        Seconds to wait for the server and for the other workers.
    """

    run: str
    key: bytes = field(repr=False)
    address: ServerAddress
    rule: Rule
    size: int
    model: bytes = field(repr=False)
    compile_settings: Mapping[str, Any]
    custom_objects: Mapping[str, Any]
    features: Field
    batch_size: int
    window: int | None
    epochs: int
    seed: int
    workers: int
    shuffle: bool
    class_weight: Mapping[int, float] | None
    jit: bool | Literal["auto"]
    threads: int
    timeout: float


def run_worker(plan: WorkerPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Train one seat: read its rows, wait for the others, train all epochs, report.

    Parameters
    ----------
    plan : WorkerPlan
        The same for every worker.
    batches : iterator of pyarrow.RecordBatch
        The seat's rows, in any order, as `distkeras_grid.spark.seats.deal` dealt them.

    Yields
    ------
    pyarrow.RecordBatch
        One row of `SUMMARY_SCHEMA`.
    """
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise GridError("run_worker runs inside a Spark task only.")
    seat, attempt = context.partitionId(), context.taskAttemptId()
    client = WorkerClient.connect(
        plan.address, plan.key, plan.run, seat, attempt, plan.size, plan.timeout
    )
    with client:
        try:
            summary = {**_train_seat(plan, client, batches), "attempt": attempt}
        except FencedError:
            # A newer attempt has the seat and goes on; this one ends without a word to the run.
            raise
        except Exception as error:
            # The driver learns the cause at once, while Spark would only tell it after retries.
            client.fail(type(error).__name__, str(error))
            raise
        client.finish()
    yield pa.RecordBatch.from_pylist([summary], schema=_summary_type(pa))


def _train_seat(
    plan: WorkerPlan, client: WorkerClient, batches: Iterator[pa.RecordBatch]
) -> dict[str, Any]:
    import platform

    from distkeras_grid.engine.loading import prepare_process
    from distkeras_grid.feeding.spool import Spool
    from distkeras_grid.worker.loop import train

    clock = time.perf_counter()
    with Spool(plan.features) as spool:
        for batch in batches:
            spool.append(batch)
        spool.seal()
        read = time.perf_counter()
        prepare_process(plan.threads)
        imported = time.perf_counter()
        engine = _engine(plan, client.seat)
        _warm_up(plan, engine, spool, client.seat)
        compiled = time.perf_counter()
        start = client.ready(spool.rows, plan.timeout)
        if start.learning_rate is not None:
            engine.set_learning_rate(start.learning_rate)
        samples = 0
        if not start.stop:
            remaining = _windows(plan, spool.rows, client.seat, start.next_sequence)
            samples = train(engine, plan.rule, client, spool, remaining, plan.class_weight)
        return {
            "worker": client.seat,
            "host": platform.node(),
            "rows": spool.rows,
            "samples": samples,
            "import_seconds": imported - read,
            "read_seconds": read - clock,
            "compile_seconds": compiled - imported,
        }


def _engine(plan: WorkerPlan, seat: int) -> TensorFlowEngine:
    from distkeras_grid.engine.loading import load_engine

    engine = load_engine(
        plan.model,
        plan.compile_settings,
        custom_objects=plan.custom_objects,
        scale=plan.features.scale,
        offset=plan.features.offset,
        block_shape=None if plan.window is None else (plan.window, plan.batch_size),
        jit=plan.jit,
    )
    if plan.workers > 1:
        # Workers that drop the same units would lose the benefit of averaging; a single worker
        # keeps the model's own generators, and with them the numbers of fit.
        engine.set_seed((plan.seed, seat))
    return engine


def _windows(plan: WorkerPlan, rows: int, seat: int, start: int = 0) -> Iterator[Window]:
    from distkeras_grid.feeding.batches import windows

    return windows(
        rows,
        plan.batch_size,
        plan.window,
        plan.epochs,
        seed=plan.seed,
        seat=seat,
        shuffle=plan.shuffle,
        start_sequence=start,
    )


def _warm_up(plan: WorkerPlan, engine: TensorFlowEngine, spool: Spool, seat: int) -> float:
    """Compile before the run's clock starts; return how long a compiled window takes [s]."""
    from distkeras_grid.worker.loop import gather

    first = next(_windows(plan, spool.rows, seat), None)
    if first is None:
        return 0.0
    block = next(gather(spool, first, plan.class_weight))
    engine.warm_up(block)
    clock = time.perf_counter()
    engine.warm_up(block)
    return time.perf_counter() - clock


def _summary_type(pa: Any) -> Any:
    types = {"int": pa.int32(), "long": pa.int64(), "string": pa.string(), "double": pa.float64()}
    named = (column.split() for column in SUMMARY_SCHEMA.split(", "))
    return pa.schema([(name, types[kind]) for name, kind in named])
