"""Checks before a run: everything that can be known before work starts, the cheapest first.

They are: columns, the model and whether the features fit it, executors, slots, then rows, labels,
weights and splits in one job over the data, and the same for the validation data. Executors are
waited for first. A note says if the run's key crosses a network unencrypted. Before the checks have
passed, no worker runs, and nothing is written but rows that have no fixed order. Of the trainer's
parameters and what the checks find the run's specification is built.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from distkeras_grid.engine.jit import decide_jit
from distkeras_grid.engine.keras_model import shared_section, weight_layout, worker_state_limit
from distkeras_grid.engine.local_optimizers import (
    check_plain_sgd,
    check_unscaled,
)
from distkeras_grid.engine.registry import current_backend
from distkeras_grid.feeding.shapes import check_fit, check_one_output, outputs_of
from distkeras_grid.local_sets.sets import LocalSets
from distkeras_grid.parameter_server.settings import BindAddress
from distkeras_grid.parameter_server.shards import cut
from distkeras_grid.rules import Rule, SynchronousRule, spec_of
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
    raise_or_collect,
)
from distkeras_grid.spark.interpreters import check_executors, ship_backend, training_packages
from distkeras_grid.spark.row_partitioner import DataSummary, largest_seat
from distkeras_grid.spark.session import (
    active_session,
    local_cores,
    stable_slot_count,
)
from distkeras_grid.spec import LayoutSpec, RunSpec
from distkeras_grid.trainers.arguments import check_backend
from distkeras_grid.trainers.class_weights import count_classes, settle_class_weight
from distkeras_grid.trainers.compression_checks import (
    check_compressible,
    check_momentum,
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
from distkeras_grid.trainers.spec_builder import build_spec, data_spec
from distkeras_grid.trainers.validation import collect, prepare_metrics

if TYPE_CHECKING:
    import keras
    from pyspark.sql import DataFrame, SparkSession

    from distkeras_grid.feeding.source import ArraySource
    from distkeras_grid.local_sets.store import LocalPlan
    from distkeras_grid.spark.materialized_rows import StoredRows
    from distkeras_grid.spec import DataSpec
    from distkeras_grid.trainers.config import TrainerConfig, TrainingData
    from distkeras_grid.trainers.defaults import CommunicationWindow

    Materialize = Callable[
        [DataFrame, Columns], AbstractContextManager[tuple[DataFrame, StoredRows | None]]
    ]


@dataclass(frozen=True)
class PreparedData:
    """The model and the rows of a run that has passed all checks."""

    compiled: CompiledModel = field(repr=False)
    frame: DataFrame  # The rows
    columns: Columns  # Columns that are read
    summary: DataSummary  # Counts from one pass over the rows
    # What workers draw their sets from; `frame` then has one row for each worker
    local: LocalPlan | None
    stored: StoredRows | None  # How the rows were stored, if they were
    # Rows that are evaluated at the end of each epoch
    validation: ArraySource | None = field(repr=False)


def check(
    config: TrainerConfig,
    data: TrainingData,
    materialize: Materialize,
    resources: ExitStack,
    await_executors: Callable[[], None],
) -> tuple[RunSpec, PreparedData, BindAddress, list[str]]:
    """Check everything that can be known before work starts, the cheapest first.

    Returns the run, its model and rows, where the server will listen, and lines to show before.
    `materialize`: yields rows that are the same each time, see `materialized`. `resources`:
    receives what must be released when the run has ended.
    """
    check_backend()
    spark = active_session()
    check_one_output(data.class_weight, outputs_of(config.keras_model))
    await_executors()
    frame, local, columns, held_out = _resolve(spark, config, data)
    compiled = compiled_copy(config, [each.shape for each in columns.features])
    check_method(config, compiled.model)
    check_fit(compiled.model, columns.features)
    columns = fitted(columns, compiled.model)
    prepare_metrics(compiled.model, columns)
    place = _check_executors(spark, config)
    workers, warnings = _settle_workers(spark, config)
    stored, plan = None, None
    if local is None:
        frame, stored = resources.enter_context(materialize(frame, columns))
        summary = inspect_training(frame, columns, compiled.model)
    else:
        summary = local.summary(workers)
        check_labels(columns, summary, compiled.model)
        # A task for each worker; its row says nothing.
        frame, plan = spark.range(0, workers, 1, workers), local.plan(data.seed, workers)
    settled = settle_class_weight(
        *(data.class_weight, columns, summary, compiled.model),
        partial(_count_classes, frame, columns, plan),
    )
    spec, window = complete_spec(
        *(config, data, compiled, data_spec(data, columns, settled), summary.rows, workers),
        threads=_task_cores(spark),
    )
    validation = _collect_validation(held_out, compiled.model, summary)
    headline = headline_of(spec, build_from(spec.rule), window)
    notes = [headline, *choices(window, spec), *warnings]
    if plan is not None:
        notes += local_notes(plan, spec.epochs)
    prepared = PreparedData(compiled, frame, columns, summary, plan, stored, validation)
    return spec, prepared, place, notes


def check_method(config: TrainerConfig, model: keras.Model) -> None:
    """Refuse arguments that the rule cannot work with, as far as they are known."""
    decide_jit(model, config.jit)
    rule, who = _rule_by_request(config, model), config.trainer_name
    if rule.traits.plain_sgd:
        check_plain_sgd(model.optimizer, who)
    if rule.traits.steps_on_workers:
        check_unscaled(model.optimizer, who)
    check_compressible(config.exchange_compression, rule, who)


def rule_for(config: TrainerConfig, workers: int, model: keras.Model) -> Rule:
    """Return the rule of a run as the server builds it, which reads its parameters as JSON."""
    return build_from(spec_of(config.build_rule(workers, optimizer_kind(model.optimizer))))


def _rule_by_request(config: TrainerConfig, model: keras.Model) -> Rule:
    """Return the rule for the number of workers that was asked for, or for one."""
    return config.build_rule(config.requested_workers or 1, optimizer_kind(model.optimizer))


def complete_spec(
    config: TrainerConfig,
    data: TrainingData,
    compiled: CompiledModel,
    described: DataSpec,
    rows: int,
    workers: int,
    *,
    threads: int = 1,
) -> tuple[RunSpec, CommunicationWindow]:
    """Return the run, with what was found out about model, data and cluster, and its window."""
    model = compiled.model
    rule = rule_for(config, workers, model)
    # All members of an ensemble may have all rows.
    rows *= 1 if config.share == "partition" else workers
    local = isinstance(data.data, LocalSets)
    choose = config.choose_local_window if local else config.choose_window
    window = choose(largest_seat(rows, workers), workers)
    check_momentum(config.exchange_compression, rule, window, model.optimizer)
    state = shared_section(model) if rule.traits.steps_on_workers else None
    spec = build_spec(
        *(config, rule, window),
        LayoutSpec.of(weight_layout(model), state, worker_state_limit(model)),
        described,
        {"rows": rows, "workers": workers, "shuffle": data.shuffle, "seed": data.seed},
        compile=compiled.described,
        backend=current_backend(),
        threads=threads,
    )
    # Refuses more servers than the model can be cut over.
    cut(spec.layout, spec.exchange.servers)
    return spec, window


def _resolve(
    spark: SparkSession, config: TrainerConfig, data: TrainingData
) -> tuple[DataFrame, LocalData | None, Columns, tuple[DataFrame, Columns] | None]:
    """Return rows or local sets, their columns, and those of the validation data."""
    if isinstance(data.data, LocalSets):
        local, columns = resolve_local(config, data)
        held_out = _validation_columns(spark, columns, config, data)
        return spark.range(0), local, columns, held_out
    frame, model = as_dataframe(spark, data.data), config.keras_model
    columns = resolve_columns(
        *(frame, config.features_col, config.label_col, data.sample_weight),
        model=model,
        losses=needs_of(model, config.loss_in_use),
    )
    return frame, None, columns, _validation_columns(spark, columns, config, data)


def _count_classes(frame: DataFrame, columns: Columns, plan: LocalPlan | None) -> dict[int, int]:
    """Return how many rows each class has; local sets have as many of each."""
    return count_classes(frame, columns.labelled[0]) if plan is None else count_drawn(plan)


def _check_executors(spark: SparkSession, config: TrainerConfig) -> BindAddress:
    """Return where the server will listen, after executors have tested the connection."""
    place = place_server(spark, config.master_host, config.master_port)
    on_this_host = local_cores(str(spark.sparkContext.master)) is not None
    backend = current_backend()
    ship_backend(spark, backend)
    check_executors(spark, training_packages(backend), None if on_this_host else place)
    return place


def _settle_workers(spark: SparkSession, config: TrainerConfig) -> tuple[int, list[str]]:
    """Return the number of workers, and notes about slots, scheduling and GPUs."""
    wanted = config.requested_workers
    slots = stable_slot_count(spark, wanted)
    workers = wanted or max(1, slots)
    setting, master = spark.sparkContext.getConf().get, str(spark.sparkContext.master)
    # The slots of a local master never change.
    together = local_cores(master) is not None
    together |= isinstance(config.build_rule(wanted or 1, ""), SynchronousRule)
    warnings = raise_or_collect(
        [
            check_slots(slots, workers, together=together),
            *check_scheduling(setting),
            *check_gpus(setting, sharing=config.gpu_sharing),
            *check_key(master, setting, platform.node()),
        ]
    )
    return workers, warnings


def check_key(master: str, setting: Callable[[str], str | None], node: str) -> list[CheckResult]:
    """Check how the run's key reaches executors; those of a local master are the driver itself.

    `setting`: returns a Spark setting, None if it is not set.
    """
    if local_cores(master) is not None:
        return []
    # Spark sends tasks from its own driver's address, wherever the parameter server listens.
    return [check_encryption(setting, setting("spark.driver.host") or node)]


def _task_cores(spark: SparkSession) -> int:
    return int(spark.sparkContext.getConf().get("spark.task.cpus", "1") or 1)


def _validation_columns(
    spark: SparkSession, columns: Columns, config: TrainerConfig, data: TrainingData
) -> tuple[DataFrame, Columns] | None:
    if data.validation_data is None:
        return None
    frame = as_dataframe(spark, data.validation_data, "validation_data")
    with naming("validation_data"):
        features: Sequence[Any] = columns.features
        if isinstance(data.data, LocalSets):
            features = own_fields(frame, columns.features)
        losses = needs_of(config.keras_model, config.loss_in_use)
        weight = columns.weight if columns.weight in frame.columns else None
        return frame, resolve_columns(
            *(frame, features, config.label_col, weight), model=config.keras_model, losses=losses
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
