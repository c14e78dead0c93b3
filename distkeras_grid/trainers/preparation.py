"""From a trainer's arguments and data to a run that is ready to start.

All that can be known before work starts is checked here, what costs least first: arguments,
columns, the model and whether the features fit it, encryption, executors, then rows, labels,
weights and splits in one job over the data, the slots, and the validation data in the same way.
Nothing is written and no worker runs before.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from distkeras_grid.engine.compile_settings import CompileSettings, compile_model
from distkeras_grid.engine.jit import decide_jit
from distkeras_grid.engine.keras_model import (
    get_flat_weights,
    model_from_bytes,
    model_to_bytes,
    weight_layout,
)
from distkeras_grid.engine.local_steps import check_plain_sgd, check_reset, check_unscaled
from distkeras_grid.feeding.batches import BLOCK_STEPS
from distkeras_grid.feeding.shapes import check_fit, check_one_output, outputs_of
from distkeras_grid.history import History
from distkeras_grid.parameter_server.auth import new_key
from distkeras_grid.parameter_server.compression import wire_of
from distkeras_grid.parameter_server.process import ServerProcess
from distkeras_grid.parameter_server.settings import ServerSettings
from distkeras_grid.rules import Rule, build_rule
from distkeras_grid.spark.addresses import ServerPlace, place_server, port_note
from distkeras_grid.spark.dataframes import Columns, as_dataframe, resolve_columns
from distkeras_grid.spark.doctor import check_gpus, check_scheduling, check_slots, settle
from distkeras_grid.spark.interpreters import check_executors
from distkeras_grid.spark.launch import Launch
from distkeras_grid.spark.memory import ModelSize, check_containers
from distkeras_grid.spark.seats import DataSummary, deal, largest_seat, pinned
from distkeras_grid.spark.session import (
    active_session,
    check_plaintext,
    executor_slots,
    local_cores,
    settled_slots,
)
from distkeras_grid.trainers.arguments import (
    check_backend,
    checked_class_weight,
    checked_seed,
    plain,
)
from distkeras_grid.trainers.callbacks import EpochObserver
from distkeras_grid.trainers.capacity import NetworkNeed, link_speed
from distkeras_grid.trainers.compressing import (
    check_compressible,
    check_momentum,
    compression_notes,
    server_vectors,
    vector_bytes,
    worker_vectors,
)
from distkeras_grid.trainers.defaults import WindowChoice
from distkeras_grid.trainers.description import (
    announce_run,
    cautions,
    compression_sentence,
    describe_run,
)
from distkeras_grid.trainers.inspection import inspect_training, inspect_validation, naming
from distkeras_grid.trainers.progress import ProgressLine
from distkeras_grid.trainers.run import Run, RunLimits
from distkeras_grid.trainers.validation import ValidationData
from distkeras_grid.worker.task import SUMMARY_SCHEMA, WorkerPlan, run_worker

if TYPE_CHECKING:
    import keras
    from pyspark.sql import DataFrame, SparkSession

    from distkeras_grid.trainers.base import Trainer
    from distkeras_grid.weights import Vector, WeightLayout


@dataclass(frozen=True)
class TrainRequest:
    """What `Trainer.train` was asked for; its docstring has the meanings."""

    data: Any
    shuffle: bool
    validation_data: Any
    callbacks: Sequence[keras.callbacks.Callback]
    class_weight: Mapping[int, float] | None
    sample_weight_col: str | None
    seed: int


@dataclass
class PreparedRun:
    """A run that is ready to start; `execute` starts it.

    Parameters
    ----------
    dealt : DataFrame
        The rows, one partition a worker.
    model : keras.Model
        The driver's copy, compiled; it is what the user gets in the end.
    center : ndarray
        The initial weights.
    settings : ServerSettings
        What the server is told.
    plan : callable
        Gives the workers' plan for the server's address and the run's key.
    observer : EpochObserver
        Acts at each epoch's end.
    limits : RunLimits
        What the run may take.
    history : History
        Filled while the run goes on.
    description : dict
        For ``run.json``.
    notes : sequence of str
        Said before the run starts.
    began : float
        When the preparation began, Unix seconds.
    centers : list of ndarray
        Of all seats when the run has ended, where each has its own; else empty.
    """

    dealt: DataFrame
    model: keras.Model
    center: Vector
    settings: ServerSettings
    plan: partial[WorkerPlan]
    observer: EpochObserver
    limits: RunLimits
    history: History
    description: dict[str, Any]
    notes: Sequence[str]
    began: float
    centers: list[Vector] = field(default_factory=list)

    def execute(self, progress: ProgressLine) -> keras.Model:
        """Run to the end, showing progress, and return the trained model."""
        key = new_key()
        progress.expect(
            total_samples=self.limits.rows * self.limits.epochs,
            epochs=self.limits.epochs,
            workers=self.limits.workers,
        )
        for note in self.notes:
            progress.note(note)
        with ServerProcess(self.settings, self.center, key) as server:
            if moved := port_note(self.settings.port, server.address.port):
                progress.note(moved)
            plan = self.plan(address=server.address, key=key)
            launch = Launch(
                self.dealt, partial(run_worker, plan), SUMMARY_SCHEMA, self.settings.run
            )
            run = Run(server, launch, self.limits, self.history, progress, self.observer)
            rate = self.observer.begin().learning_rate
            if rate is not None:
                server.command(learning_rate=rate)
            center, summaries = run.execute()
            if self.settings.build_rule().separate:
                self.centers = [server.center(seat=n) for n in range(self.settings.seats)]
        if self.settings.compression:
            progress.note(compression_sentence(self.history, self.settings.size))
        self.observer.end(center)
        self._describe(summaries)
        return self.model

    def _describe(self, summaries: list[dict[str, Any]]) -> None:
        """Add the run's figures to its description."""
        started = min((record.started for record in self.history.records), default=self.began)
        self.description.update(
            {
                "start_up_seconds": started - self.began,
                "training_seconds": self.history.training_seconds(),
                "total_seconds": time.time() - self.began,
                "samples": self.history.samples,
                "num_updates": self.history.num_updates,
                "workers": sorted(summaries, key=lambda summary: int(summary["worker"])),
            }
        )


def prepare(trainer: Trainer, request: TrainRequest, resources: ExitStack) -> PreparedRun:
    """Check arguments, model, data, executors and slots, and lay out the run.

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
        The first thing that does not fit, with what came in and what to do.
    """
    began = time.time()
    request = replace(
        request,
        seed=checked_seed(request.seed),
        class_weight=checked_class_weight(request.class_weight),
    )
    return _lay_out(trainer, request, _check(trainer, request, resources), began)


@dataclass(frozen=True)
class _Checked:
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


def _check(trainer: Trainer, request: TrainRequest, resources: ExitStack) -> _Checked:
    check_backend()
    trainer.check_request(request)
    spark = active_session()
    frame = as_dataframe(spark, request.data)
    check_one_output(request.class_weight, outputs_of(trainer.keras_model))
    columns = resolve_columns(
        frame,
        trainer.features_col,
        trainer.label_col,
        request.sample_weight_col,
        model=trainer.keras_model,
    )
    held_out = _validation_columns(spark, columns, trainer, request)
    model, compile_settings = compiled_copy(trainer)
    check_rule(trainer, model)
    check_fit(model, columns.features)
    check_plaintext(spark, allowed=trainer.allow_plaintext)
    place = place_server(spark, trainer.master_host, trainer.master_port)
    on_this_host = local_cores(str(spark.sparkContext.master)) is not None
    check_executors(spark, place=None if on_this_host else place)
    frame = resources.enter_context(pinned(frame, columns))
    summary = inspect_training(frame, columns, model, request.class_weight)
    slots = settled_slots(spark, trainer.num_workers)
    workers = trainer.num_workers or slots
    setting = spark.sparkContext.getConf().get
    warnings = settle(
        [
            check_slots(slots, workers, together=trainer.synchronous),
            *check_scheduling(setting),
            *check_gpus(setting, sharing=trainer.gpu_sharing),
        ]
    )
    rule = rule_of(trainer, workers, model)
    rows = summary.rows * (1 if trainer.seats_hold == "partition" else workers)
    window = trainer.choose_window(largest_seat(rows, workers), workers)
    check_momentum(trainer.compression, rule, window, model.optimizer)
    validation = _collect_validation(held_out, model, summary)
    warnings += settle(
        check_containers(
            setting,
            str(spark.sparkContext.master),
            _model_size(
                trainer,
                model,
                columns,
                window,
                server_vectors=server_vectors(trainer.compression, rule, workers),
            ),
            slots=executor_slots(setting),
            workers=workers,
            validation_bytes=0 if validation is None else validation.feature_bytes,
        )
    )
    return _Checked(
        spark=spark,
        frame=frame,
        columns=columns,
        summary=summary,
        rows=rows,
        model=model,
        compile_settings=compile_settings,
        layout=weight_layout(model),
        workers=workers,
        rule=rule,
        window=window,
        validation=validation,
        place=place,
        warnings=warnings,
    )


def _lay_out(
    trainer: Trainer, request: TrainRequest, checked: _Checked, began: float
) -> PreparedRun:
    summary, workers = checked.summary, checked.workers
    history = History()
    observer = EpochObserver(
        checked.model, history, request.callbacks, checked.validation, trainer.num_epoch
    )
    settings = _settings(trainer, checked, shows_center=observer.needs_center)
    plan = _plan(trainer, request, checked, settings.run)
    master = str(checked.spark.sparkContext.master)
    description = describe_run(trainer, request, settings, plan.keywords, checked.columns, master)
    history.params.update(description)
    return PreparedRun(
        dealt=deal(
            checked.frame,
            checked.columns,
            summary,
            workers,
            shuffle=request.shuffle,
            seed=request.seed,
            copies=trainer.seats_hold != "partition",
        ),
        model=checked.model,
        center=get_flat_weights(checked.model),
        settings=settings,
        plan=plan,
        observer=observer,
        limits=RunLimits(
            workers=workers,
            rows=settings.rows,
            epochs=trainer.num_epoch,
            needed=settings.quorum_of(workers),
            start_timeout=trainer.start_timeout,
            silence_timeout=None if trainer.synchronous else trainer.round_timeout,
            shows_center=observer.needs_center,
            network=_network(trainer, checked),
        ),
        history=history,
        description=description,
        notes=[
            *cautions(
                trainer,
                checked.rule,
                checked.model,
                checked.window.batches,
                checked.rows,
                workers,
            ),
            *announce_run(trainer, settings, checked.rule, checked.window),
            *compression_notes(trainer.compression, trainer.num_epoch),
            *checked.warnings,
        ],
        began=began,
    )


def _settings(trainer: Trainer, checked: _Checked, *, shows_center: bool) -> ServerSettings:
    """Return what the server is told; it gives the run its name."""
    place = checked.place
    return ServerSettings(
        run=f"{type(trainer).__name__}-{secrets.token_hex(4)}",
        seats=checked.workers,
        rule={"name": checked.rule.name, "parameters": checked.rule.parameters()},
        trainable_size=checked.layout.trainable_size,
        statistics_size=checked.layout.statistics_size,
        rows=checked.rows,
        epochs=trainer.num_epoch,
        snapshots_per_epoch=1 if shows_center else 0,
        bind_host=place.bind_host,
        advertised_host=place.advertised_host,
        port=place.port,
        port_retries=place.port_retries,
        round_timeout=trainer.round_timeout,
        quorum=trainer.quorum,
        compression=wire_of(trainer.compression),
    )


def _plan(
    trainer: Trainer, request: TrainRequest, checked: _Checked, run: str
) -> partial[WorkerPlan]:
    """Return what the workers are told, but for what is only known once the server runs."""
    conf = checked.spark.sparkContext.getConf()
    return partial(
        WorkerPlan,
        run=run,
        rule=checked.rule,
        size=checked.layout.size,
        model=model_to_bytes(checked.model),
        compile_settings=checked.compile_settings.to_json(),
        custom_objects=trainer.custom_objects,
        features=checked.columns.features,
        labels=tuple(label.name for label in checked.columns.labels),
        batch_size=trainer.batch_size,
        window=checked.window.batches,
        epochs_per_window=trainer.num_epoch if checked.window.once else 1,
        epochs=trainer.num_epoch,
        seed=request.seed,
        workers=checked.workers,
        shuffle=request.shuffle,
        bootstrap=trainer.seats_hold == "bootstrap",
        own_start=trainer.own_start,
        class_weight=request.class_weight,
        jit=trainer.jit,
        threads=int(conf.get("spark.task.cpus", "1") or 1),
        timeout=trainer.start_timeout,
        gpu_sharing=trainer.gpu_sharing,
        compression=trainer.compression,
        optimizer_state=trainer.optimizer_state,
    )


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
        block_bytes=(window.batches or BLOCK_STEPS) * trainer.batch_size * columns.row_bytes,
        server_vectors=server_vectors,
        worker_vectors=worker_vectors(trainer.compression),
    )
    optimizer = model.optimizer
    if not optimizer.built:
        return size
    held = sum(int(np.prod(variable.shape)) for variable in optimizer.variables)
    return replace(size, optimizer_slots=round(held / max(weights, 1)))


def _network(trainer: Trainer, checked: _Checked) -> partial[NetworkNeed]:
    """Return what the run asks of the network, but for the time of a window."""
    rows, workers = checked.rows, checked.workers
    epoch = -(-largest_seat(rows, workers) // trainer.batch_size)
    return partial(
        NetworkNeed,
        vector_bytes=vector_bytes(trainer.compression, checked.layout.size, workers),
        # Seats without rows exchange nothing.
        workers=min(workers, rows),
        window=checked.window.batches or epoch * (trainer.num_epoch if checked.window.once else 1),
        available=link_speed(checked.place.bind_host),
        empty_reply=not checked.rule.answers,
    )


def compiled_copy(trainer: Trainer) -> tuple[keras.Model, CompileSettings]:
    """Return a copy of the user's model, compiled as the trainer says; the original stays."""
    settings = CompileSettings(
        optimizer=trainer.worker_optimizer,
        loss=trainer.loss,
        metrics=trainer.metrics,
        loss_weights=trainer.loss_weights,
        learning_rate=trainer.optimizer_rate,
    )
    # Refused here if it has no weights yet; Keras would only warn and save it.
    weight_layout(trainer.keras_model)
    archive = model_to_bytes(trainer.keras_model)
    model = model_from_bytes(archive, trainer.custom_objects)
    compile_model(model, settings, trainer.custom_objects)
    # Decided by each worker for itself; here for what it refuses.
    decide_jit(model, trainer.jit)
    return model, settings


def rule_of(trainer: Trainer, workers: int, model: keras.Model) -> Rule:
    """Return the trainer's rule as the server builds it, which reads its parameters as JSON."""
    rule = trainer.build_rule(workers, type(model.optimizer).__name__)
    return build_rule(rule.name, plain(rule.parameters()))


def check_rule(trainer: Trainer, model: keras.Model) -> None:
    """Refuse what the rule cannot work with, whatever the number of workers.

    Raises
    ------
    ConfigurationError
        Names the optimizer or the argument.
    """
    rule = trainer.build_rule(1, type(model.optimizer).__name__)
    if rule.plain_sgd:
        check_plain_sgd(model.optimizer, type(trainer).__name__)
    if rule.steps_on_workers:
        check_unscaled(model.optimizer, type(trainer).__name__)
    if trainer.optimizer_state == "reset":
        check_reset(rule, model.optimizer, type(trainer).__name__)
    check_compressible(trainer.compression, rule, type(trainer).__name__)


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
