"""The function that Spark runs for a worker, from its first row to its last commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from distkeras_grid.array_tree import pack
from distkeras_grid.errors import (
    AuthenticationError,
    ConfigurationError,
    FencedError,
    GridError,
    LocalDiskError,
    NoSpaceError,
    ProtocolError,
    ServerUnreachableError,
)
from distkeras_grid.feeding.batches import BatchSampler, EpochSampler, policy_of
from distkeras_grid.feeding.schema import Field
from distkeras_grid.feeding.source import RowSource, weighted_by
from distkeras_grid.parameter_server.client import WorkerClient
from distkeras_grid.parameter_server.settings import ServerAddress
from distkeras_grid.parameter_server.sharded_client import AnyClient, ShardedClient
from distkeras_grid.parameter_server.timeouts import CONNECT_SECONDS
from distkeras_grid.rules import Rule, rule_of
from distkeras_grid.spec import RunSpec
from distkeras_grid.worker.progress import HeartbeatThread, Progress

if TYPE_CHECKING:
    import pyarrow as pa

    from distkeras_grid.engine.keras_engine import KerasEngine
    from distkeras_grid.local_sets.store import LocalPlan
    from distkeras_grid.local_sets.worker_sampler import Report
    from distkeras_grid.outliers import Validate
    from distkeras_grid.parameter_server.messages import Start
    from distkeras_grid.records import LocalSet
    from distkeras_grid.weights import Vector
    from distkeras_grid.worker.worker_core import Compute

#: What a task yields when it has finished, as Spark DDL.
SUMMARY_SCHEMA = (
    "worker int, attempt long, host string, rows long, samples long, "
    "import_seconds double, read_seconds double, compile_seconds double, outcome binary"
)

# Errors that may not occur in another attempt: a newer attempt on the seat, a broken connection or
# bytes that were altered on it (while it is opened again, they look like another key), a disk of
# this host, which is full or fails.
MAY_HEAL = (
    *(FencedError, ServerUnreachableError, ProtocolError, AuthenticationError),
    *(NoSpaceError, LocalDiskError),
)


@dataclass(frozen=True)
class EnginePlan:
    """What an engine is built from; it travels in a task's closure."""

    spec: RunSpec  # The run
    # The compiled model as a ``.keras`` archive, frozen weights included
    model: bytes = field(repr=False)
    custom_objects: Mapping[str, Any]  # The user's own classes and functions

    @cached_property
    def rule(self) -> Rule:
        """The update rule."""
        return rule_of(self.spec.rule)

    @cached_property
    def features(self) -> tuple[Field, ...]:
        """The feature columns, in the order of the model's inputs."""
        return tuple(Field.from_metadata(item["name"], item) for item in self.spec.data.features)

    @cached_property
    def labels(self) -> tuple[Field | None, ...]:
        """The label of each of the model's outputs, None for one without."""
        return tuple(
            Field.from_metadata(item["name"], item) if isinstance(item, dict) else None
            for item in self.spec.data.labels
        )

    @property
    def labelled(self) -> tuple[Field, ...]:
        """The labels that there are."""
        return tuple(label for label in self.labels if label is not None)


@dataclass(frozen=True)
class WorkerPlan(EnginePlan):
    """What a worker must know: the run, and its parts that are not JSON."""

    run: str  # Name of the run
    # Where the parameter server listens; the first one, where there are several
    address: ServerAddress
    # Data from which workers draw their sets, in a run on local sets
    local: LocalPlan | None = None
    # Where the servers of the other slices of the center listen, in their order
    others: tuple[ServerAddress, ...] = ()
    # The user's function, which looks at each window before it is sent
    validate: Validate | None = None
    # The key of the seat, in its own task; empty in what all tasks share
    key: bytes = field(default=b"", repr=False)


#: Builds the engine of a seat.
EngineBuilder: TypeAlias = "Callable[[WorkerPlan, int], KerasEngine]"


def with_key(
    work: Callable[[WorkerPlan, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    plan: WorkerPlan,
    key: bytes,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Work with the plan that all tasks share and the key of this task's seat."""
    return work(replace(plan, key=key), batches)


def run_worker(
    plan: WorkerPlan,
    batches: Iterator[pa.RecordBatch],
    build: EngineBuilder | None = None,
) -> Iterator[pa.RecordBatch]:
    """Train one seat: read its rows, wait for the others, train all epochs, report."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise GridError("run_worker runs inside a Spark task only.")
    seat, attempt = context.partitionId(), context.taskAttemptId()
    client, progress = connect(plan, seat, attempt), Progress()
    with client, HeartbeatThread(client.first, progress):
        trained = _train_rows if plan.local is None else _train_local
        outcome = trained(plan, client, batches, build or build_engine, progress)
        summary = {"worker": seat, "attempt": attempt, **outcome}
    yield pa.RecordBatch.from_pylist([summary], schema=_summary_type(pa))


def connect(plan: WorkerPlan, seat: int, attempt: int) -> AnyClient:
    """Take a seat on each server of the run."""
    spec = plan.spec
    deadline = min(CONNECT_SECONDS, spec.limits.start_timeout)
    key, of = plan.key, (plan.run, seat, attempt)
    if plan.others:
        addresses = (plan.address, *plan.others)
        return ShardedClient.connect(addresses, key, *of, spec, deadline)
    return WorkerClient.connect(
        *(plan.address, key, *of, spec.size, deadline),
        state_size=spec.layout.state_section.nbytes,
        worker_state_limit=spec.layout.worker_state_limit,
        compression=spec.compression,
    )


@contextmanager
def reported(client: AnyClient) -> Iterator[None]:
    """Report an error that would occur again, so that the run ends at once.

    Otherwise Spark would repeat the training in vain until its last attempt. An error that may not
    occur in another attempt is not reported; if all attempts fail, Spark names the cause.
    """
    try:
        yield
    except MAY_HEAL:
        raise
    except Exception as error:
        client.first.fail(type(error).__name__, str(error))
        raise


def _train_rows(
    plan: WorkerPlan,
    client: AnyClient,
    batches: Iterator[pa.RecordBatch],
    build: EngineBuilder,
    progress: Progress,
) -> dict[str, Any]:
    """Train on the rows that Spark deals to this seat."""
    from distkeras_grid.feeding.row_cache import RowCache

    clock, spec = time.perf_counter(), plan.spec
    with RowCache(plan.features, plan.labelled) as cache:
        # If rows do not arrive, Spark must send them again. Such an error ends only this attempt.
        for batch in batches:
            with reported(client):
                cache.append(batch)
            progress.advance(batch.num_rows)
        with reported(client):
            cache.seal()
            policy = policy_of(spec.schedule, len(cache), client.seat)
            source = weighted_by(cache, spec.data.class_weight)
            seconds = time.perf_counter() - clock
            trained = _train(plan, client, source, policy, cache.digest, build, progress)
            return {"read_seconds": seconds, **trained}


def _train_local(
    plan: WorkerPlan,
    client: AnyClient,
    batches: Iterator[pa.RecordBatch],  # noqa: ARG001 - of Spark comes nothing but the task
    build: EngineBuilder,
    progress: Progress,
) -> dict[str, Any]:
    """Train on local sets, which the worker forms by itself."""
    from distkeras_grid.local_sets.worker_sampler import WorkerSampler

    spec, local = plan.spec, plan.local
    if local is None:
        raise GridError("This run has no local sets.")
    with reported(client), WorkerSampler(local, spec.schedule, client.seat) as work:
        source = weighted_by(work.rows, spec.data.class_weight)
        parts = source, work.policy, work.digest, build, progress
        summary = _train(plan, client, *parts, work.report)
        return {"read_seconds": work.read_seconds, **summary}


def _train(
    plan: WorkerPlan,
    client: AnyClient,
    source: RowSource,
    policy: EpochSampler,
    digest: str,
    build: EngineBuilder,
    progress: Progress,
    report: Report | None = None,
) -> dict[str, Any]:
    import platform

    from distkeras_grid.worker.engine_actions import first_state
    from distkeras_grid.worker.loop import train
    from distkeras_grid.worker.seat import new_worker_core

    clock, spec = time.perf_counter(), plan.spec
    progress.begin("importing")
    prepare_worker_process(spec)
    imported = time.perf_counter()
    progress.begin("warming up")
    engine = build(plan, client.seat)
    check_state(engine, spec)
    window_seconds = _warm_up(engine, source, policy)
    compiled = time.perf_counter()
    on_start = partial(_draw_initial_weights, spec, client.seat, engine)
    first = first_state(engine) if spec.may_skip or plan.validate is not None else None
    # The driver ends the wait for the others, which may still be reading their rows.
    start = client.ready(policy.rows, window_seconds=window_seconds, digest=digest)
    progress.begin("training")
    core = new_worker_core(
        *(spec, plan.rule, engine.layout, policy, client.seat),
        validate=plan.validate,
        send_buffer=client.send_buffer,
    )
    after = None if report is None else partial(_report, report, engine, plan.rule)
    samples = train(core, engine, client, start, source, after, progress, first, on_start)
    return {
        "rows": policy.rows,
        "host": platform.node(),
        "samples": samples,
        "import_seconds": imported - clock,
        "compile_seconds": compiled - imported,
        "outcome": pack(engine.outcome()).tobytes(),
    }


def _draw_initial_weights(
    spec: RunSpec, seat: int, engine: KerasEngine, start: Start, center: Vector
) -> None:
    """Draw a worker's own initial weights, in a run where each has its own."""
    if spec.algorithm.own_start and seat > 0 and start.next_sequence == 0 and not start.stop:
        center[:] = engine.initial_weights((spec.schedule.seed, seat))


def _report(report: Report, engine: KerasEngine, rule: Rule, done: Compute) -> LocalSet | None:
    from distkeras_grid.worker.seat import tested_weights

    return report(done.window, partial(engine.evaluate, tested_weights(rule, done)))


def check_state(engine: KerasEngine, spec: RunSpec) -> None:
    """Refuse an optimizer whose state does not have the layout of the run."""
    section, expected = engine.step_section, spec.layout.state_section
    if not section.is_like(expected):
        raise ConfigurationError(
            f"The run's optimizer state has {len(expected.variables)} variables of "
            f"{expected.nbytes} bytes. Received: an optimizer with {len(section.variables)} of "
            f"{section.nbytes} bytes. Install the same version of Keras on driver and executors."
        )


def prepare_worker_process(spec: RunSpec) -> None:
    """Import the backend of Keras with the task's cores and GPUs."""
    from pyspark import TaskContext

    from distkeras_grid.engine.gpus import gpus_of, refuse_unassigned, use_gpus
    from distkeras_grid.engine.registry import count_gpus, use_backend

    context = TaskContext.get()
    addresses = gpus_of(context.resources() if context is not None else {})
    use_gpus(addresses)
    backend = spec.algorithm.backend
    use_backend(backend, spec.limits.threads)
    if not spec.limits.gpu_sharing:
        refuse_unassigned(addresses, count_gpus(backend), spec.workers)


def build_engine(plan: EnginePlan, seat: int) -> KerasEngine:
    """Return the engine of a seat, in the state of the plan's model."""
    engine, spec = engine_of(plan), plan.spec
    if spec.workers > 1:
        # If workers dropped the same units, averaging would be of no use. A single worker keeps
        # the model's own generators, and with them the numbers of fit.
        engine.set_seed((spec.schedule.seed, seat))
    return engine


def engine_of(plan: EnginePlan) -> KerasEngine:
    """Return an engine in the state of the plan's model, its random generators included."""
    from distkeras_grid.engine.model_loader import load_engine

    return load_engine(plan.model, custom_objects=plan.custom_objects, **engine_options(plan))


def engine_options(plan: EnginePlan) -> dict[str, Any]:
    """Return the options with which a run's engines are built from a model."""
    spec, rule = plan.spec, plan.rule
    return {
        "scaling": tuple(field.scaling for field in plan.features),
        "labels": tuple(label and label.scaling for label in plan.labels),
        "block_shape": None if spec.window is None else (spec.window, spec.batch_size),
        "jit": spec.algorithm.jit,
        "local_steps": rule.traits.local_steps,
        "momentum": rule.local_momentum,
    }


def _warm_up(engine: KerasEngine, source: RowSource, policy: BatchSampler) -> float:
    """Compile before the run's clock starts; return the expected time of a window [s]."""
    first = next(policy.windows(), None)
    if first is None:
        return 0.0
    block = next(source.blocks(first.blocks))
    return engine.warm_up(block) * first.steps / block.steps


def _summary_type(pa: Any) -> Any:
    types = {
        **{"int": pa.int32(), "long": pa.int64(), "string": pa.string(), "double": pa.float64()},
        # An offset of 32 bits ends at 2 GB.
        "binary": pa.large_binary(),
    }
    named = (column.split() for column in SUMMARY_SCHEMA.split(", "))
    return pa.schema([(name, types[kind]) for name, kind in named])
