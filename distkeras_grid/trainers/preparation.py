"""From a trainer's arguments and data to a run that is ready to start.

All that can be known before work starts is checked here, in this order: columns, executors,
labels and splits, the model, slots. Nothing is written and no worker runs before.
"""

from __future__ import annotations

import io
import platform
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from distkeras_grid.engine.compile_settings import CompileSettings, compile_model
from distkeras_grid.engine.keras_model import (
    get_flat_weights,
    model_from_bytes,
    model_to_bytes,
    weight_layout,
)
from distkeras_grid.errors import ConfigurationError, NotEnoughSlotsError
from distkeras_grid.history import History
from distkeras_grid.parameter_server.auth import new_key
from distkeras_grid.parameter_server.process import ServerProcess
from distkeras_grid.parameter_server.settings import ServerSettings
from distkeras_grid.spark.dataframes import Columns, as_dataframe, resolve_columns
from distkeras_grid.spark.launch import Launch
from distkeras_grid.spark.seats import deal, seat_rows, summarize
from distkeras_grid.spark.session import (
    TRAINING_PACKAGES,
    active_session,
    check_executors,
    check_plaintext,
    local_cores,
    package_versions,
    task_slots,
)
from distkeras_grid.trainers.callbacks import EpochObserver
from distkeras_grid.trainers.capacity import NetworkNeed, link_speed
from distkeras_grid.trainers.labels import check_features, check_labels
from distkeras_grid.trainers.progress import ProgressLine
from distkeras_grid.trainers.run import Run, RunLimits
from distkeras_grid.trainers.validation import ValidationData
from distkeras_grid.worker.task import SUMMARY_SCHEMA, WorkerPlan, run_worker

if TYPE_CHECKING:
    import keras
    from pyspark.sql import DataFrame, SparkSession

    from distkeras_grid.trainers.base import Trainer
    from distkeras_grid.weights import Vector


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
    show_progress : bool
        Whether the progress line is shown.
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
    show_progress: bool

    def execute(self) -> keras.Model:
        """Run to the end and return the trained model."""
        began = time.time()
        key = new_key()
        progress = ProgressLine(
            self.limits.rows * self.limits.epochs,
            self.limits.epochs,
            self.limits.workers,
            stream=None if self.show_progress else io.StringIO(),
        )
        with ServerProcess(self.settings, self.center, key) as server, progress:
            for note in self.notes:
                progress.note(note)
            plan = self.plan(address=server.address, key=key)
            launch = Launch(
                self.dealt, partial(run_worker, plan), SUMMARY_SCHEMA, self.settings.run
            )
            run = Run(server, launch, self.limits, self.history, progress, self.observer)
            self.observer.begin()
            center, summaries = run.execute()
        self.observer.end(center)
        self._describe(began, summaries)
        return self.model

    def _describe(self, began: float, summaries: list[dict[str, Any]]) -> None:
        """Add the run's figures to its description."""
        started = min((record.started for record in self.history.records), default=began)
        self.description.update(
            {
                "start_up_seconds": started - began,
                "training_seconds": self.history.training_seconds(),
                "total_seconds": time.time() - began,
                "samples": self.history.samples,
                "num_updates": self.history.num_updates,
                "workers": sorted(summaries, key=lambda summary: int(summary["worker"])),
            }
        )


def prepare(trainer: Trainer, request: TrainRequest) -> PreparedRun:
    """Check data, executors, model and slots, and lay out the run.

    Raises
    ------
    GridError
        The first thing that does not fit, with what came in and what to do.
    """
    spark = active_session()
    frame = as_dataframe(spark, request.data)
    columns = resolve_columns(
        frame, trainer.features_col, trainer.label_col, request.sample_weight_col
    )
    check_plaintext(spark, allowed=trainer.allow_plaintext)
    check_executors(spark)
    model, compile_settings = _compiled_copy(trainer)
    check_features(columns.features, tuple(model.input_shape))
    summary = summarize(frame, columns)
    check_labels(columns, summary, model.loss, tuple(model.output_shape))
    workers = _count_workers(trainer, spark)
    rule = trainer.build_rule(workers, type(model.optimizer).__name__)
    largest = seat_rows(summary.rows, workers, 0, shuffle=request.shuffle)
    window = trainer.choose_window(largest, workers)
    layout = weight_layout(model)
    run_name = f"{type(trainer).__name__}-{secrets.token_hex(4)}"
    history = History()
    observer = EpochObserver(
        model, history, request.callbacks, _validation(spark, columns, request), trainer.num_epoch
    )
    plan = partial(
        WorkerPlan,
        run=run_name,
        rule=rule,
        size=layout.size,
        model=model_to_bytes(model),
        compile_settings=compile_settings.to_json(),
        custom_objects=trainer.custom_objects,
        features=columns.features,
        batch_size=trainer.batch_size,
        window=window.batches,
        epochs=trainer.num_epoch,
        seed=request.seed,
        workers=workers,
        shuffle=request.shuffle,
        class_weight=request.class_weight,
        jit=trainer.jit,
        threads=int(spark.sparkContext.getConf().get("spark.task.cpus", "1") or 1),
        timeout=trainer.start_timeout,
    )
    bind, advertised = server_hosts(spark, trainer.master_host)
    settings = ServerSettings(
        run=run_name,
        seats=workers,
        rule={"name": rule.name, "parameters": rule.parameters()},
        trainable_size=layout.trainable_size,
        statistics_size=layout.statistics_size,
        rows=summary.rows,
        epochs=trainer.num_epoch,
        snapshots_per_epoch=1 if observer.needs_center else 0,
        bind_host=bind,
        advertised_host=advertised,
        port=trainer.master_port,
        round_timeout=trainer.round_timeout,
    )
    description = _describe_run(trainer, request, settings, plan.keywords, columns)
    history.params.update(description)
    return PreparedRun(
        dealt=deal(frame, columns, summary, workers, shuffle=request.shuffle),
        model=model,
        center=get_flat_weights(model),
        settings=settings,
        plan=plan,
        observer=observer,
        limits=RunLimits(
            workers=workers,
            rows=summary.rows,
            epochs=trainer.num_epoch,
            start_timeout=trainer.start_timeout,
            shows_center=observer.needs_center,
            network=partial(
                NetworkNeed,
                vector_bytes=4 * layout.size,
                workers=workers,
                window=window.batches or -(-largest // trainer.batch_size),
                available=link_speed(bind),
            ),
        ),
        history=history,
        description=description,
        notes=_notes(trainer, settings, window.batches, window.reason),
        show_progress=trainer.progress,
    )


def _compiled_copy(trainer: Trainer) -> tuple[keras.Model, CompileSettings]:
    """Return a copy of the user's model, compiled as the trainer says; the original stays."""
    settings = CompileSettings(
        optimizer=trainer.worker_optimizer,
        loss=trainer.loss,
        metrics=trainer.metrics,
        loss_weights=trainer.loss_weights,
        learning_rate=trainer.optimizer_rate,
    )
    archive = model_to_bytes(trainer.keras_model)
    model = model_from_bytes(archive, trainer.custom_objects)
    compile_model(model, settings)
    return model, settings


def _count_workers(trainer: Trainer, spark: SparkSession) -> int:
    slots = task_slots(spark)
    workers = trainer.num_workers or slots
    if trainer.synchronous and workers > slots:
        raise NotEnoughSlotsError(
            f"{type(trainer).__name__} needs all {workers} workers at the same time, but Spark "
            f"has {slots} task slots: lower num_workers, or raise spark.executor.instances x "
            "spark.executor.cores / spark.task.cpus (local mode: local[N,4])."
        )
    conf = spark.sparkContext.getConf()
    if conf.get("spark.speculation", "false") == "true":
        raise ConfigurationError(
            "spark.speculation is on: Spark would start a second copy of a slow worker, which "
            "then takes its seat again and again. Set spark.speculation=false."
        )
    return workers


def _validation(
    spark: SparkSession, columns: Columns, request: TrainRequest
) -> ValidationData | None:
    if request.validation_data is None:
        return None
    frame = as_dataframe(spark, request.validation_data, "validation_data")
    found = resolve_columns(frame, columns.features, columns.label)
    return ValidationData.collect(frame, found)


def server_hosts(spark: SparkSession, master_host: str | None) -> tuple[str, str]:
    """Return the address to listen on, and the one that executors connect to.

    In local mode nobody else needs to reach the server. On a cluster it listens where Spark's
    own driver does, and nowhere else.
    """
    conf = spark.sparkContext.getConf()
    if master_host is None and local_cores(str(spark.sparkContext.master)) is not None:
        return "127.0.0.1", "127.0.0.1"
    advertised = master_host or conf.get("spark.driver.host") or platform.node()
    return conf.get("spark.driver.bindAddress") or advertised, advertised


def _describe_run(
    trainer: Trainer,
    request: TrainRequest,
    settings: ServerSettings,
    plan: Mapping[str, Any],
    columns: Columns,
) -> dict[str, Any]:
    return {
        "trainer": type(trainer).__name__,
        "run": settings.run,
        "rule": dict(settings.rule),
        "arguments": trainer.arguments(),
        "num_workers": settings.seats,
        "batch_size": trainer.batch_size,
        "communication_window": plan["window"] or "epoch",
        "num_epoch": trainer.num_epoch,
        "shuffle": request.shuffle,
        "seed": request.seed,
        "jit": trainer.jit,
        "compile": plan["compile_settings"],
        "data": request.data if isinstance(request.data, str) else "DataFrame",
        "rows": settings.rows,
        "features": {"name": columns.features.name, **columns.features.to_metadata()},
        "label": columns.label,
        "trainable_size": settings.trainable_size,
        "statistics_size": settings.statistics_size,
        "versions": {
            "python": platform.python_version(),
            **package_versions(("distkeras_grid", "pyspark", *TRAINING_PACKAGES)),
        },
    }


def _notes(
    trainer: Trainer, settings: ServerSettings, window: int | None, reason: str
) -> list[str]:
    """Return what is said before the run, so that no default is a surprise."""
    every = "once an epoch" if window is None else f"every {window} batches"
    batch = trainer.batch_size
    workers = f"{settings.seats} workers" if settings.seats > 1 else "1 worker"
    batches = f"batch {batch}"
    if settings.seats > 1:
        batches += f" each, {batch * settings.seats} together"
    parameters = "".join(f", {k} {v:g}" for k, v in settings.rule["parameters"].items())
    lines = [
        f"{type(trainer).__name__}: {settings.rows} rows, {workers}, {batches}, "
        f"exchange {every} "
        f"({settings.size * 4 / 1e6:.3g} MB each way){parameters}"
    ]
    if reason:
        lines.append(reason)
    return lines
