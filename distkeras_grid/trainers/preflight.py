"""Checks before a run: everything that can be known before work starts, the cheapest first.

They are: columns, the model and whether the features fit it, executors, slots, then rows, labels,
weights and splits in one job over the data, and the same for the validation data. Executors are
waited for only when a check needs them, so what can be known before is refused before. A note says
if the run's key crosses a network unencrypted. Before the checks have passed, no worker runs, and
nothing is written but rows that have no fixed order. Their results complete the trainer's draft to
the run's specification.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from distkeras_grid.engine.jit import decide_jit
from distkeras_grid.engine.keras_model import shared_section, weight_layout, worker_state_limit
from distkeras_grid.engine.local_optimizers import (
    check_plain_sgd,
    check_reset,
    check_unscaled,
)
from distkeras_grid.engine.registry import current_backend
from distkeras_grid.feeding.batches import BLOCK_STEPS
from distkeras_grid.feeding.schema import PADDED
from distkeras_grid.feeding.shapes import check_fit, check_one_output, outputs_of
from distkeras_grid.local_sets.sets import LocalSets
from distkeras_grid.parameter_server.settings import BindAddress
from distkeras_grid.parameter_server.shards import cut
from distkeras_grid.rules import Rule, SynchronousRule, compression_of, spec_of
from distkeras_grid.rules import rule_of as build_from
from distkeras_grid.spark.addresses import place_server
from distkeras_grid.spark.columns import Columns, resolve_columns
from distkeras_grid.spark.dataframes import as_dataframe
from distkeras_grid.spark.doctor import (
    CheckResult,
    check_encryption,
    check_gpus,
    check_scheduling,
    check_slots,
    check_threads,
    raise_or_collect,
)
from distkeras_grid.spark.interpreters import check_executors, ship_backend, training_packages
from distkeras_grid.spark.memory import ModelSize, check_containers
from distkeras_grid.spark.row_partitioner import DataSummary, largest_seat
from distkeras_grid.spark.session import (
    active_session,
    executor_slots,
    local_cores,
    stable_slot_count,
)
from distkeras_grid.spec import LayoutSpec, RunSpec
from distkeras_grid.trainers.arguments import check_backend, checked_engine
from distkeras_grid.trainers.class_weights import count_classes, number_classes, settle_class_weight
from distkeras_grid.trainers.compression_checks import (
    check_compressible,
    check_momentum,
    compression_notes,
    server_vectors,
    worker_vectors,
)
from distkeras_grid.trainers.data_checks import inspect_training, inspect_validation, naming
from distkeras_grid.trainers.defaults import optimizer_kind
from distkeras_grid.trainers.description import choices, headline_of
from distkeras_grid.trainers.labels import check_labels, fitted, needs_of
from distkeras_grid.trainers.local_data import (
    LocalData,
    count_drawn,
    local_notes,
    own_fields,
    resolve_local,
)
from distkeras_grid.trainers.model_bundle import CompiledModel, compiled_copy
from distkeras_grid.trainers.spec_builder import data_spec
from distkeras_grid.trainers.validation import collect, prepare_metrics

if TYPE_CHECKING:
    import keras
    from pyspark.sql import DataFrame, SparkSession

    from distkeras_grid.feeding.source import ArraySource
    from distkeras_grid.local_sets.store import LocalPlan
    from distkeras_grid.spark.materialized_rows import StoredRows
    from distkeras_grid.spec import DataSpec, DraftSpec
    from distkeras_grid.trainers.defaults import CommunicationWindow
    from distkeras_grid.trainers.row_storage import RowMaterializer
    from distkeras_grid.trainers.run_request import (
        AlgorithmFactory,
        DataRequest,
        ModelSource,
        RunRequest,
        ServerRequest,
    )


@dataclass(frozen=True)
class CheckedData:
    """The training data."""

    frame: DataFrame  # The rows
    columns: Columns  # Columns that are read
    summary: DataSummary  # Counts from one pass over the rows
    # What workers draw their sets from; `frame` then has one row for each worker
    local: LocalPlan | None = None
    stored: StoredRows | None = None  # How the rows were stored, if they were


@dataclass(frozen=True)
class PreflightResult:
    """A run that has passed all checks."""

    spec: RunSpec  # The run
    compiled: CompiledModel = field(repr=False)  # The model
    data: CheckedData  # The training data
    # Rows that are evaluated at the end of each epoch
    validation: ArraySource | None = field(repr=False)
    place: BindAddress  # Where the server will listen
    notes: list[str]  # Lines to show before the run starts


def check(
    request: RunRequest,
    storage: RowMaterializer,
    resources: ExitStack,
    await_executors: Callable[[], None],
) -> PreflightResult:
    """Check everything that can be known before work starts, the cheapest first.

    `resources`: receives what must be released when the run has ended.
    """
    check_backend()
    draft, method = request.draft, request.method
    spark = active_session()
    _check_local_slots(spark, draft.pace.num_workers)
    check_one_output(request.data.class_weight, outputs_of(request.source.model))
    if _reads_files(request.data):
        await_executors()
    frame, local, columns, held_out = _resolve(spark, request)
    weights = number_classes(request.data.class_weight, columns)
    compiled = compiled_copy(request.source, [each.shape for each in columns.features])
    check_method(draft, method, compiled.model)
    check_fit(compiled.model, columns.features)
    columns = fitted(columns, compiled.model)
    prepare_metrics(compiled.model, columns)
    rule = method.build_rule(draft.pace.num_workers or 1, optimizer_kind(compiled.model.optimizer))
    backend = checked_engine(request.engine, rule, draft.algorithm.trainer) or current_backend()
    await_executors()
    place = _check_executors(spark, request.server, backend)
    workers, warnings = _settle_workers(spark, draft)
    if local is None:
        frame, stored = resources.enter_context(storage.settled(frame, columns))
        summary = inspect_training(frame, columns, compiled.model)
        data = CheckedData(frame, columns, summary, stored=stored)
    else:
        data = _check_local(spark, local, columns, request, compiled.model, workers)
    settled = settle_class_weight(
        *(weights, columns, data.summary, compiled.model), partial(_count_classes, data)
    )
    spec, window = complete(
        request,
        compiled,
        data_spec(request.data, columns, settled),
        data.summary.rows,
        workers,
        threads=_task_cores(spark),
        backend=backend,
    )
    validation = _collect_validation(held_out, compiled.model, data.summary)
    method = _counted(spark, method)
    size = replace(_model_size(spec, columns, compiled.model), stages=method.stages)
    warnings += _check_memory(spark, spec, size, validation, method.devices)
    headline = headline_of(spec, build_from(spec.rule), window)
    notes = [*announcements(request, spec, window, headline), *warnings]
    if data.local is not None:
        notes += local_notes(data.local, spec.epochs)
    return PreflightResult(spec, compiled, data, validation, place, notes)


def check_method(draft: DraftSpec, method: AlgorithmFactory, model: keras.Model) -> None:
    """Refuse arguments that the rule cannot work with, as far as they are known."""
    decide_jit(model, draft.algorithm.jit)
    algorithm, who = draft.algorithm, draft.algorithm.trainer
    rule = method.build_rule(draft.pace.num_workers or 1, optimizer_kind(model.optimizer))
    if rule.traits.plain_sgd:
        check_plain_sgd(model.optimizer, who)
    if rule.traits.steps_on_workers:
        check_unscaled(model.optimizer, who)
    if algorithm.optimizer_state == "reset":
        check_reset(rule, model.optimizer, who)
    check_compressible(compression_of(draft.exchange.compression), rule, who)


def rule_for(method: AlgorithmFactory, workers: int, model: keras.Model) -> Rule:
    """Return the rule of a run as the server builds it, which reads its parameters as JSON."""
    return build_from(spec_of(method.build_rule(workers, optimizer_kind(model.optimizer))))


def complete(
    request: RunRequest,
    compiled: CompiledModel,
    data: DataSpec,
    rows: int,
    workers: int,
    *,
    threads: int = 1,
    backend: str | None = None,
) -> tuple[RunSpec, CommunicationWindow]:
    """Complete a draft to the run, with what was found out about model, data and cluster."""
    draft, model = request.draft, compiled.model
    rule = rule_for(request.method, workers, model)
    # All members of an ensemble may have all rows.
    rows *= 1 if draft.share == "partition" else workers
    window = request.method.choose_window(largest_seat(rows, workers), workers)
    check_momentum(compression_of(draft.exchange.compression), rule, window, model.optimizer)
    state = shared_section(model) if rule.traits.steps_on_workers else None
    spec = draft.complete(
        rule=spec_of(rule),
        layout=LayoutSpec.of(weight_layout(model), state, worker_state_limit(model)),
        schedule=draft.schedule(
            rows=rows,
            workers=workers,
            window=window.batches,
            once=window.once,
            shuffle=request.data.shuffle,
            seed=request.data.seed,
        ),
        compiled=compiled.described,
        backend=backend or current_backend(),
        data=data,
        threads=threads,
    )
    # Refuses more servers than the model can be cut over.
    cut(spec.layout, spec.exchange.servers)
    return spec, window


def announcements(
    request: RunRequest, spec: RunSpec, window: CommunicationWindow, headline: str
) -> list[str]:
    """Return the lines to show before a run starts, real or simulated."""
    introduction = request.method.introduction
    return [
        *([introduction] if introduction else []),
        headline,
        *choices(window, spec),
        *compression_notes(compression_of(spec.exchange.compression), spec.epochs),
    ]


def _resolve(
    spark: SparkSession, request: RunRequest
) -> tuple[DataFrame, LocalData | None, Columns, tuple[DataFrame, Columns] | None]:
    """Return rows or local sets, their columns, and those of the validation data."""
    asked, model = request.data, request.source.model
    if isinstance(asked.data, LocalSets):
        local, columns = resolve_local(asked, model)
        held_out = _validation_columns(spark, columns, asked, request.source)
        return spark.range(0), local, columns, held_out
    frame = as_dataframe(spark, asked.data)
    columns = resolve_columns(
        *(frame, asked.features, asked.labels, asked.sample_weight),
        model=model,
        losses=needs_of(model, request.source.loss),
    )
    return frame, None, columns, _validation_columns(spark, columns, asked, request.source)


def _reads_files(asked: DataRequest) -> bool:
    """Whether Spark's executors read files to find out about columns."""
    given = (asked.data, asked.validation_data)
    return any(isinstance(each, str | LocalSets) or hasattr(each, "__fspath__") for each in given)


def _check_local(
    spark: SparkSession,
    local: LocalData,
    columns: Columns,
    request: RunRequest,
    model: keras.Model,
    workers: int,
) -> CheckedData:
    """Return what workers draw from, after a look at labels and sizes."""
    summary = local.summary(workers)
    check_labels(columns, summary, model)
    plan = local.plan(request.data.seed, workers)
    # A task for each worker; its row says nothing.
    return CheckedData(spark.range(0, workers, 1, workers), columns, summary, plan)


def _count_classes(data: CheckedData) -> dict[int, int]:
    """Return how many rows each class has; local sets have as many of each."""
    if data.local is not None:
        return count_drawn(data.local)
    return count_classes(data.frame, data.columns.labelled[0])


def _check_executors(spark: SparkSession, server: ServerRequest, backend: str) -> BindAddress:
    """Return where the server will listen, after executors have tested the connection."""
    place = place_server(spark, server.host, server.port)
    on_this_host = local_cores(str(spark.sparkContext.master)) is not None
    ship_backend(spark, backend)
    check_executors(spark, training_packages(backend), None if on_this_host else place)
    return place


def _check_local_slots(spark: SparkSession, workers: int | None) -> None:
    """Refuse more workers than a local master has slots, whose number never changes."""
    slots = local_cores(str(spark.sparkContext.master))
    if slots is not None:
        raise_or_collect([check_slots(slots, workers, fixed=True)])


def _settle_workers(spark: SparkSession, draft: DraftSpec) -> tuple[int, list[str]]:
    """Return the number of workers, and notes about slots, scheduling and GPUs."""
    wanted = draft.pace.num_workers
    slots = stable_slot_count(spark, wanted)
    workers = wanted or max(1, slots)
    together = isinstance(build_from(draft.algorithm.rule), SynchronousRule)
    setting = spark.sparkContext.getConf().get
    warnings = raise_or_collect(
        [
            check_slots(slots, workers, together=together),
            *check_scheduling(setting),
            *check_threads(os.environ),
            *check_gpus(setting, sharing=draft.limits.gpu_sharing),
            *check_key(str(spark.sparkContext.master), setting, platform.node()),
        ]
    )
    return workers, warnings


def check_key(master: str, setting: Callable[[str], str | None], node: str) -> list[CheckResult]:
    """Check how the run's key reaches executors; those of a local master are the driver itself.

    `setting`: returns a Spark setting, None if it is not set.

    Examples
    --------
    >>> [len(check_key(master, {}.get, "node-1")) for master in ("local[2]", "yarn")]
    [0, 1]
    """
    if local_cores(master) is not None:
        return []
    # Spark sends tasks from its own driver's address, wherever the parameter server listens.
    return [check_encryption(setting, setting("spark.driver.host") or node)]


def _counted(spark: SparkSession, method: AlgorithmFactory) -> AlgorithmFactory:
    """Return a method with the stages and devices that the cluster has slots for."""
    if method.stages and method.devices:
        return method
    slots = stable_slot_count(spark, None)
    return replace(method, stages=method.stages or slots, devices=method.devices or slots)


def _task_cores(spark: SparkSession) -> int:
    return int(spark.sparkContext.getConf().get("spark.task.cpus", "1") or 1)


def _check_memory(
    spark: SparkSession,
    spec: RunSpec,
    size: ModelSize,
    validation: ArraySource | None,
    devices: int,
) -> list[str]:
    setting = spark.sparkContext.getConf().get
    slots = executor_slots(setting)
    return raise_or_collect(
        check_containers(
            setting,
            str(spark.sparkContext.master),
            size,
            slots=slots,
            workers=spec.workers,
            tasks=spec.workers * devices,
            validation_bytes=0
            if validation is None
            else sum(array.nbytes for array in validation.features),
        )
    )


def _validation_columns(
    spark: SparkSession, columns: Columns, asked: DataRequest, source: ModelSource
) -> tuple[DataFrame, Columns] | None:
    if asked.validation_data is None:
        return None
    frame = as_dataframe(spark, asked.validation_data, "validation_data")
    with naming("validation_data"):
        features: Sequence[Any] = columns.features
        if isinstance(asked.data, LocalSets):
            features = own_fields(frame, columns.features)
        # The longest row may be another one.
        features = [each.name if each.encoding == PADDED else each for each in features]
        losses = needs_of(source.model, source.loss)
        weight = columns.weight if columns.weight in frame.columns else None
        return frame, resolve_columns(
            *(frame, features, asked.labels, weight), model=source.model, losses=losses
        )


def _collect_validation(
    held_out: tuple[DataFrame, Columns] | None, model: keras.Model, training: DataSummary
) -> ArraySource | None:
    if held_out is None:
        return None
    with naming("validation_data"):
        frame, columns = held_out[0], fitted(held_out[1], model)
        inspect_validation(frame, columns, model, training)
        return collect(frame, columns)


def _model_size(spec: RunSpec, columns: Columns, model: keras.Model) -> ModelSize:
    """Return the size of model and batches; an optimizer that is not built counts as Adam."""
    weights, exchange = int(model.count_params()), spec.exchange
    compression = compression_of(exchange.compression)
    size = ModelSize(
        weights=weights,
        block_bytes=(spec.window or BLOCK_STEPS) * spec.batch_size * columns.row_bytes,
        server_vectors=server_vectors(compression, build_from(spec.rule), spec.workers),
        worker_vectors=worker_vectors(compression),
        servers=exchange.servers,
    )
    optimizer = model.optimizer
    if optimizer.built:
        held = sum(int(np.prod(variable.shape)) for variable in optimizer.variables)
        size = replace(size, optimizer_slots=round(held / max(weights, 1)))
    return size
