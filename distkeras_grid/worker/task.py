"""The one function shipped to Spark: what a worker does, from its first row to its last commit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from distkeras_grid.errors import (
    FencedError,
    GridError,
    RemoteProtocolError,
    ServerUnreachableError,
)
from distkeras_grid.feeding.batches import steps_before
from distkeras_grid.feeding.schema import Field
from distkeras_grid.parameter_server.auth import seat_key
from distkeras_grid.parameter_server.client import WorkerClient
from distkeras_grid.parameter_server.compression import Compression, wire_of
from distkeras_grid.parameter_server.settings import ServerAddress
from distkeras_grid.rules import Accumulator, DeepGradientCompression, OptimizerState, Rule

if TYPE_CHECKING:
    import pyarrow as pa

    from distkeras_grid.engine.tensorflow import TensorFlowEngine
    from distkeras_grid.feeding.batches import Window
    from distkeras_grid.feeding.spool import Spool
    from distkeras_grid.weights import WeightLayout
    from distkeras_grid.worker.mind import WorkerMind

#: What a task yields when it has finished, as Spark DDL.
SUMMARY_SCHEMA = (
    "worker int, attempt long, host string, rows long, samples long, "
    "import_seconds double, read_seconds double, compile_seconds double"
)

# A server that is there answers at once; a blocked port shall be told before the run's own
# start_timeout ends, Spark's four attempts included.
CONNECT_SECONDS = 30.0

# What another attempt may not meet: a broken connection, or a newer attempt on the seat.
MAY_HEAL = (FencedError, ServerUnreachableError, RemoteProtocolError)


@dataclass(frozen=True)
class WorkerPlan:
    """What a worker must know; travels in the task's closure.

    Parameters
    ----------
    run : str
        Name of the run.
    key : bytes
        From which the key of each seat follows, `workers_key`.
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
    features : tuple of Field
        The feature columns, in the order of the model's inputs.
    labels : tuple of str
        Names of the label columns, in the order of its outputs.
    batch_size : int
        Rows in a batch.
    window : int or None
        Batches between two exchanges; None for one an epoch, or after several.
    epochs_per_window : int
        Epochs between two exchanges, where `window` is None.
    epochs, seed : int
        Passes over the data, seed of mixing and of random layers.
    workers : int
        Workers of the run.
    shuffle : bool
        Whether each epoch is mixed.
    bootstrap : bool
        Whether a worker trains on rows drawn with replacement from its own.
    own_start : bool
        Whether workers but the first draw initial weights of their own.
    class_weight : mapping of int to float, optional
        Weight of the samples of each class.
    jit : bool or "auto"
        Whether XLA compiles windows.
    threads : int
        Cores of a task.
    timeout : float
        Seconds to wait for the other workers.
    gpu_sharing : bool
        Whether several workers may use one GPU.
    compression : "bfloat16" or DeepGradientCompression, optional
        How exchanges are compressed.
    optimizer_state : {"keep", "reset", "average"}
        Whether the optimizer goes on from window to window, and with what.
    """

    run: str
    key: bytes = field(repr=False)
    address: ServerAddress
    rule: Rule
    size: int
    model: bytes = field(repr=False)
    compile_settings: Mapping[str, Any]
    custom_objects: Mapping[str, Any]
    features: tuple[Field, ...]
    labels: tuple[str, ...]
    batch_size: int
    window: int | None
    epochs_per_window: int
    epochs: int
    seed: int
    workers: int
    shuffle: bool
    bootstrap: bool
    own_start: bool
    class_weight: Mapping[int, float] | None
    jit: bool | Literal["auto"]
    threads: int
    timeout: float
    gpu_sharing: bool = False
    compression: Compression | None = None
    optimizer_state: OptimizerState = "keep"


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

    from distkeras_grid.feeding.spool import Spool

    context = TaskContext.get()
    if context is None:
        raise GridError("run_worker runs inside a Spark task only.")
    seat, attempt = context.partitionId(), context.taskAttemptId()
    deadline = min(CONNECT_SECONDS, plan.timeout)
    client = WorkerClient.connect(
        plan.address,
        seat_key(plan.key, seat),
        plan.run,
        seat,
        attempt,
        plan.size,
        deadline,
        compression=wire_of(plan.compression),
    )
    clock = time.perf_counter()
    with client, Spool(plan.features, plan.labels) as spool:
        # Rows that do not arrive are Spark's to bring again: such an error ends this attempt only.
        for batch in batches:
            with _reported(client):
                spool.append(batch)
        with _reported(client):
            spool.seal()
            summary = {
                "worker": seat,
                "attempt": attempt,
                "rows": spool.rows,
                "read_seconds": time.perf_counter() - clock,
                **_train_seat(plan, client, spool),
            }
    yield pa.RecordBatch.from_pylist([summary], schema=_summary_type(pa))


@contextmanager
def _reported(client: WorkerClient) -> Iterator[None]:
    """Tell the run of an error that would come again, which ends it at once.

    Spark alone would train in vain until its last attempt. Of an error that may heal the run
    hears nothing; if no attempt gets on, Spark names the cause.
    """
    try:
        yield
    except MAY_HEAL:
        raise
    except Exception as error:
        client.fail(type(error).__name__, str(error))
        raise


def _train_seat(plan: WorkerPlan, client: WorkerClient, spool: Spool) -> dict[str, Any]:
    import platform

    from distkeras_grid.engine.keras_model import fresh_weights
    from distkeras_grid.worker.loop import train

    clock = time.perf_counter()
    prepare_worker_process(plan)
    imported = time.perf_counter()
    engine = build_engine(plan, client.seat)
    window_seconds = _warm_up(plan, engine, spool, client.seat)
    compiled = time.perf_counter()
    start = client.ready(spool.rows, plan.timeout, window_seconds)
    if plan.own_start and client.seat > 0 and start.next_sequence == 0 and not start.stop:
        client.vector[:] = fresh_weights(engine.model, (plan.seed, client.seat))
    mind = seat_mind(plan, engine.layout, spool.rows, client.seat)
    samples = train(mind, engine, client, start, spool, plan.class_weight)
    return {
        "host": platform.node(),
        "samples": samples,
        "import_seconds": imported - clock,
        "compile_seconds": compiled - imported,
    }


def seat_mind(plan: WorkerPlan, layout: WeightLayout, rows: int, seat: int) -> WorkerMind:
    """Return the mind of a seat's worker."""
    from distkeras_grid.worker.mind import WorkerMind

    accumulator = None
    if isinstance(plan.compression, DeepGradientCompression):
        accumulator = partial(Accumulator, plan.compression, layout, plan.workers)
    return WorkerMind(
        seat,
        plan.rule,
        layout,
        partial(seat_windows, plan, rows, seat),
        steps_before=partial(
            steps_before,
            rows=rows,
            batch_size=plan.batch_size,
            window=plan.window,
            epochs_per_window=plan.epochs_per_window,
        ),
        accumulator=accumulator,
        slots_travel=plan.optimizer_state == "average",
    )


def prepare_worker_process(plan: WorkerPlan) -> None:
    """Import TensorFlow with the task's cores and GPUs."""
    from pyspark import TaskContext

    from distkeras_grid.engine.gpus import count_gpus, gpus_of, refuse_unassigned, use_gpus
    from distkeras_grid.engine.loading import prepare_process

    context = TaskContext.get()
    addresses = gpus_of(context.resources() if context is not None else {})
    use_gpus(addresses)
    prepare_process(plan.threads)
    if not plan.gpu_sharing:
        refuse_unassigned(addresses, count_gpus(), plan.workers)


def build_engine(plan: WorkerPlan, seat: int) -> TensorFlowEngine:
    """Return the engine of a seat, in the state of the plan's model."""
    from distkeras_grid.engine.loading import load_engine

    engine = load_engine(
        plan.model,
        plan.compile_settings,
        custom_objects=plan.custom_objects,
        scaling=tuple(field.scaling for field in plan.features),
        block_shape=None if plan.window is None else (plan.window, plan.batch_size),
        jit=plan.jit,
        local_steps=plan.rule.local_steps,
        momentum=plan.rule.local_momentum,
        optimizer_state=plan.optimizer_state,
    )
    if plan.workers > 1:
        # Workers that drop the same units would lose the benefit of averaging; a single worker
        # keeps the model's own generators, and with them the numbers of fit.
        engine.set_seed((plan.seed, seat))
    return engine


def seat_windows(plan: WorkerPlan, rows: int, seat: int, start: int = 0) -> Iterator[Window]:
    """Yield the windows of a seat, from one of them on."""
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
        epochs_per_window=plan.epochs_per_window,
        bootstrap=plan.bootstrap,
    )


def _warm_up(plan: WorkerPlan, engine: TensorFlowEngine, spool: Spool, seat: int) -> float:
    """Compile before the run's clock starts; return how long a window will take [s]."""
    from distkeras_grid.worker.loop import gather

    first = next(seat_windows(plan, spool.rows, seat), None)
    if first is None:
        return 0.0
    block = next(gather(spool, first, plan.class_weight))
    steps = sum(len(indices) for indices in first.blocks)
    return engine.warm_up(block) * steps / block.steps


def _summary_type(pa: Any) -> Any:
    types = {"int": pa.int32(), "long": pa.int64(), "string": pa.string(), "double": pa.float64()}
    named = (column.split() for column in SUMMARY_SCHEMA.split(", "))
    return pa.schema([(name, types[kind]) for name, kind in named])
