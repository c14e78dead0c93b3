"""What is checked before a run: all that can be known before work starts, what costs least first.

Arguments, columns, the model and whether the features fit it, encryption, executors, then rows,
labels, weights and splits in one job over the data, the slots, and the validation data in the same
way. Nothing is written and no worker runs before.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from distkeras_grid.engine.compile_settings import CompileSettings, compile_model
from distkeras_grid.engine.jit import decide_jit
from distkeras_grid.engine.keras_model import model_from_bytes, model_to_bytes, weight_layout
from distkeras_grid.engine.local_steps import (
    check_average,
    check_plain_sgd,
    check_reset,
    check_unscaled,
)
from distkeras_grid.feeding.batches import BLOCK_STEPS
from distkeras_grid.feeding.shapes import check_fit, check_one_output, outputs_of
from distkeras_grid.rules import Rule, spec_of
from distkeras_grid.rules import rule_of as build_from
from distkeras_grid.spark.addresses import ServerPlace, place_server
from distkeras_grid.spark.dataframes import Columns, as_dataframe, resolve_columns
from distkeras_grid.spark.doctor import check_gpus, check_scheduling, check_slots, settle
from distkeras_grid.spark.interpreters import check_executors
from distkeras_grid.spark.memory import ModelSize, check_containers
from distkeras_grid.spark.seats import DataSummary, largest_seat, pinned
from distkeras_grid.spark.session import (
    active_session,
    check_plaintext,
    executor_slots,
    local_cores,
    settled_slots,
)
from distkeras_grid.trainers.arguments import check_backend, settled
from distkeras_grid.trainers.compressing import (
    check_compressible,
    check_momentum,
    server_vectors,
    worker_vectors,
)
from distkeras_grid.trainers.defaults import WindowChoice, optimizer_kind
from distkeras_grid.trainers.inspection import inspect_training, inspect_validation, naming
from distkeras_grid.trainers.recalibration import check_recalibration
from distkeras_grid.trainers.validation import ValidationData

if TYPE_CHECKING:
    import keras
    from pyspark.sql import DataFrame, SparkSession

    from distkeras_grid.trainers.base import Trainer
    from distkeras_grid.trainers.request import TrainRequest
    from distkeras_grid.weights import WeightLayout


@dataclass(frozen=True)
class Checked:
    """What the checks have found, and the run is laid out from."""

    spark: SparkSession
    frame: DataFrame
    columns: Columns
    summary: DataSummary
    rows: int
    model: keras.Model
    compile_settings: CompileSettings
    layout: WeightLayout
    workers: int
    rule: Rule
    window: WindowChoice
    validation: ValidationData | None
    place: ServerPlace
    warnings: list[str]


def check(trainer: Trainer, request: TrainRequest, resources: ExitStack) -> Checked:
    """Check all that can be known before work starts, what costs least first.

    Parameters
    ----------
    trainer : Trainer
        Its arguments.
    request : TrainRequest
        Those of ``train``.
    resources : ExitStack
        Gets what must be given back when the run has ended.

    Raises
    ------
    GridError
        The first thing that does not fit, with what was received and what to do.
    """
    check_backend()
    arguments = settled(trainer)
    trainer.check_request(request)
    spark = active_session()
    _check_local_slots(spark, trainer)
    check_one_output(request.class_weight, outputs_of(trainer.keras_model))
    frame, columns, held_out = _resolve(spark, trainer, request)
    model, compile_settings = compiled_copy(trainer)
    check_rule(trainer, model)
    check_fit(model, columns.features)
    place = _check_executors(spark, trainer)
    frame = resources.enter_context(pinned(frame, columns))
    summary = inspect_training(frame, columns, model, request.class_weight)
    workers, warnings = _settle_workers(spark, trainer)
    rule = rule_of(trainer, workers, model)
    rows = summary.rows * (1 if trainer.seats_hold == "partition" else workers)
    window = trainer.choose_window(largest_seat(rows, workers), workers)
    check_momentum(arguments.compression, rule, window, model.optimizer)
    validation = _collect_validation(held_out, model, summary)
    layout = weight_layout(model, slots=trainer.slots_travel)
    held = server_vectors(arguments.compression, rule, workers)
    size = _model_size(trainer, model, columns, window, server_vectors=held)
    if trainer.slots_travel:
        size = size.with_longer_vectors(layout.size, workers)
    warnings += _check_memory(spark, size, workers, validation)
    return Checked(
        spark=spark,
        frame=frame,
        columns=columns,
        summary=summary,
        rows=rows,
        model=model,
        compile_settings=compile_settings,
        layout=layout,
        workers=workers,
        rule=rule,
        window=window,
        validation=validation,
        place=place,
        warnings=warnings,
    )


def compiled_copy(trainer: Trainer) -> tuple[keras.Model, CompileSettings]:
    """Return a copy of the user's model, compiled as the trainer says; the original stays."""
    rate = trainer.optimizer_rate
    settings = CompileSettings(
        optimizer=trainer.worker_optimizer,
        loss=trainer.loss,
        metrics=trainer.metrics,
        loss_weights=trainer.loss_weights,
        learning_rate=None if rate is None else float(rate),
    )
    # Refused here if it has no weights yet; Keras would only warn and save it.
    weight_layout(trainer.keras_model)
    archive = model_to_bytes(trainer.keras_model)
    objects = settled(trainer).custom_objects
    model = model_from_bytes(archive, objects)
    compile_model(model, settings, objects)
    # Decided by each worker for itself; here for what it refuses.
    decide_jit(model, trainer.jit)
    return model, settings


def rule_of(trainer: Trainer, workers: int, model: keras.Model) -> Rule:
    """Return the trainer's rule as the server builds it, which reads its parameters as JSON."""
    rule = trainer.build_rule(workers, optimizer_kind(model.optimizer))
    return build_from(spec_of(rule))


def check_rule(trainer: Trainer, model: keras.Model) -> None:
    """Refuse what the rule cannot work with, as far as the number of workers is known.

    Raises
    ------
    ConfigurationError
        Names the optimizer or the argument.
    """
    workers = settled(trainer).workers or 1
    rule = trainer.build_rule(workers, optimizer_kind(model.optimizer))
    if rule.traits.plain_sgd:
        check_plain_sgd(model.optimizer, type(trainer).__name__)
    if rule.traits.steps_on_workers:
        check_unscaled(model.optimizer, type(trainer).__name__)
    if trainer.optimizer_state == "reset":
        check_reset(rule, model.optimizer, type(trainer).__name__)
    if trainer.slots_travel:
        check_average(rule, model, type(trainer).__name__)
    if trainer.statistics == "recalibrate":
        check_recalibration(rule, model, type(trainer).__name__)
    check_compressible(settled(trainer).compression, rule, type(trainer).__name__)


def _resolve(
    spark: SparkSession, trainer: Trainer, request: TrainRequest
) -> tuple[DataFrame, Columns, tuple[DataFrame, Columns] | None]:
    """Return the rows and their columns, and those of the validation data."""
    frame = as_dataframe(spark, request.data)
    columns = resolve_columns(
        frame,
        trainer.features_col,
        trainer.label_col,
        request.sample_weight_col,
        model=trainer.keras_model,
    )
    return frame, columns, _validation_columns(spark, columns, trainer, request)


def _check_executors(spark: SparkSession, trainer: Trainer) -> ServerPlace:
    """Return where the server will listen, once executors have been there."""
    check_plaintext(spark, allowed=trainer.allow_plaintext)
    place = place_server(spark, trainer.master_host, settled(trainer).port)
    on_this_host = local_cores(str(spark.sparkContext.master)) is not None
    check_executors(spark, place=None if on_this_host else place)
    return place


def _check_local_slots(spark: SparkSession, trainer: Trainer) -> None:
    """Refuse more workers than a local master has slots, which never become more."""
    slots = local_cores(str(spark.sparkContext.master))
    if slots is not None:
        settle([check_slots(slots, settled(trainer).workers, fixed=True)])


def _settle_workers(spark: SparkSession, trainer: Trainer) -> tuple[int, list[str]]:
    """Return the number of workers, and what is to be said of slots, scheduling and GPUs."""
    wanted = settled(trainer).workers
    slots = settled_slots(spark, wanted)
    workers = wanted or slots
    setting = spark.sparkContext.getConf().get
    warnings = settle(
        [
            check_slots(slots, workers, together=trainer.synchronous),
            *check_scheduling(setting),
            *check_gpus(setting, sharing=trainer.gpu_sharing),
        ]
    )
    return workers, warnings


def _check_memory(
    spark: SparkSession, size: ModelSize, workers: int, validation: ValidationData | None
) -> list[str]:
    setting = spark.sparkContext.getConf().get
    return settle(
        check_containers(
            setting,
            str(spark.sparkContext.master),
            size,
            slots=executor_slots(setting),
            workers=workers,
            validation_bytes=0 if validation is None else validation.feature_bytes,
        )
    )


def _validation_columns(
    spark: SparkSession, columns: Columns, trainer: Trainer, request: TrainRequest
) -> tuple[DataFrame, Columns] | None:
    if request.validation_data is None:
        return None
    frame = as_dataframe(spark, request.validation_data, "validation_data")
    with naming("validation_data"):
        return frame, resolve_columns(
            frame,
            columns.features,
            [label.name for label in columns.labels],
            model=trainer.keras_model,
        )


def _collect_validation(
    held_out: tuple[DataFrame, Columns] | None, model: keras.Model, training: DataSummary
) -> ValidationData | None:
    if held_out is None:
        return None
    with naming("validation_data"):
        inspect_validation(*held_out, model, training)
        return ValidationData.collect(*held_out)


def _model_size(
    trainer: Trainer,
    model: keras.Model,
    columns: Columns,
    window: WindowChoice,
    server_vectors: int,
) -> ModelSize:
    """Return what model and batches weigh; an optimizer not built yet counts as Adam."""
    weights = int(model.count_params())
    size = ModelSize(
        weights=weights,
        block_bytes=(window.batches or BLOCK_STEPS)
        * settled(trainer).batch_size
        * columns.row_bytes,
        server_vectors=server_vectors,
        worker_vectors=worker_vectors(settled(trainer).compression),
    )
    optimizer = model.optimizer
    if not optimizer.built:
        return size
    held = sum(int(np.prod(variable.shape)) for variable in optimizer.variables)
    return replace(size, optimizer_slots=round(held / max(weights, 1)))
