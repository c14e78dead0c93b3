"""From a trainer's arguments and data to a run that is ready to start."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from distkeras_grid.engine.keras_model import get_flat_weights, model_to_bytes
from distkeras_grid.errors import GridError
from distkeras_grid.history import History
from distkeras_grid.parameter_server.auth import new_key, workers_key
from distkeras_grid.parameter_server.process import ServerProcess
from distkeras_grid.parameter_server.settings import ServerAddress, ServerSettings
from distkeras_grid.spark.addresses import port_note
from distkeras_grid.spark.launch import Launch
from distkeras_grid.spark.seats import deal, largest_seat
from distkeras_grid.trainers.arguments import checked_class_weight, checked_whole, settled
from distkeras_grid.trainers.callbacks import EpochObserver
from distkeras_grid.trainers.capacity import NetworkNeed, link_speed
from distkeras_grid.trainers.checking import Checked, check
from distkeras_grid.trainers.compressing import compression_notes, vector_bytes
from distkeras_grid.trainers.description import (
    announce_run,
    compression_sentence,
    describe_run,
)
from distkeras_grid.trainers.recalibration import recalibrate
from distkeras_grid.trainers.run import Run
from distkeras_grid.trainers.run_status import RunProgress
from distkeras_grid.trainers.specification import data_spec, run_spec
from distkeras_grid.worker.task import SUMMARY_SCHEMA, WorkerPlan, run_worker

if TYPE_CHECKING:
    import keras
    from pyspark.sql import DataFrame

    from distkeras_grid.spec import RunSpec
    from distkeras_grid.trainers.base import Trainer
    from distkeras_grid.trainers.request import TrainRequest
    from distkeras_grid.weights import Vector


@dataclass
class PreparedRun:
    """A run that is ready to start; `execute` starts it.

    Parameters
    ----------
    settings : ServerSettings
        What the server is told: the run, and where to listen.
    dealt : DataFrame
        The rows, one partition a worker.
    model : keras.Model
        The driver's copy, compiled; it is what the user gets in the end.
    archive : bytes
        The same model as workers get it.
    custom_objects : mapping of str to object
        The user's own classes and functions.
    center : ndarray
        The initial weights.
    observer : EpochObserver
        Acts at each epoch's end.
    network : callable
        Gives the `NetworkNeed` for the measured ``window_seconds``.
    history : History
        Filled while the run goes on.
    description : dict
        For ``run.json``.
    notes : sequence of str
        Said before the run starts.
    began : float
        When the preparation began, Unix seconds.
    centers : list of ndarray
        The centers of all workers when the run has ended, where each has its own; else empty.
    """

    settings: ServerSettings
    dealt: DataFrame
    model: keras.Model
    archive: bytes
    custom_objects: Mapping[str, Any]
    center: Vector
    observer: EpochObserver
    network: Callable[..., NetworkNeed]
    history: History
    description: dict[str, Any]
    notes: Sequence[str]
    began: float
    centers: list[Vector] = field(default_factory=list)

    @property
    def spec(self) -> RunSpec:
        """The run as a value."""
        return self.settings.spec

    def plan(self, address: ServerAddress, key: bytes) -> WorkerPlan:
        """Return what the workers are told, once the server listens; `key` is theirs."""
        return WorkerPlan(
            run=self.settings.run,
            spec=self.spec,
            key=key,
            address=address,
            model=self.archive,
            custom_objects=self.custom_objects,
        )

    def execute(self, progress: RunProgress) -> keras.Model:
        """Run to the end, showing progress, and return the trained model."""
        key, spec = new_key(), self.spec
        progress.update(
            total_samples=spec.rows * spec.epochs, epochs=spec.epochs, workers=spec.workers
        )
        for note in self.notes:
            progress.note(note)
        with ServerProcess(self.settings, self.center, key) as server:
            if moved := port_note(self.settings.port, server.address.port):
                progress.note(moved)
            plan = self.plan(server.address, workers_key(key))
            launch = Launch(
                self.dealt, partial(run_worker, plan), SUMMARY_SCHEMA, self.settings.run
            )
            run = Run(server, launch, spec, self.history, progress, self.observer, self.network)
            rate = self.observer.begin().learning_rate
            if rate is not None:
                server.command(learning_rate=rate)
            center, summaries = run.execute()
            if plan.rule.traits.own_center:
                self.centers = [server.center(seat=number) for number in range(spec.workers)]
        if spec.compression:
            progress.note(compression_sentence(self.history, spec.size))
        self.observer.end(center)
        if spec.algorithm.statistics == "recalibrate":
            self._recalibrate(plan, progress)
        self._describe(summaries)
        return self.model

    def _recalibrate(self, plan: WorkerPlan, progress: RunProgress) -> None:
        try:
            recalibrate(self.model, self.dealt, plan, progress)
        except GridError as error:
            progress.note(
                "All is trained, but the statistics of batch normalization stay the workers' "
                f"averages: {error}"
            )
            averaged = "own" if self.spec.workers == 1 else "average"
            for told in (self.description, self.history.params):
                told["statistics"] = averaged

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
        The first thing that does not fit, with what was received and what to do.
    """
    began = time.time()
    request = replace(
        request,
        seed=checked_whole("seed", request.seed, least=0),
        class_weight=checked_class_weight(request.class_weight),
    )
    return _lay_out(trainer, request, check(trainer, request, resources), began)


def _lay_out(
    trainer: Trainer, request: TrainRequest, checked: Checked, began: float
) -> PreparedRun:
    history, arguments = History(), settled(trainer)
    observer = EpochObserver(
        checked.model,
        history,
        request.callbacks,
        checked.validation,
        arguments.epochs,
        checked.layout,
    )
    conf = checked.spark.sparkContext.getConf()
    spec = run_spec(
        trainer,
        checked.rule,
        checked.compile_settings,
        checked.layout,
        {
            "rows": checked.rows,
            "workers": checked.workers,
            "shuffle": bool(request.shuffle),
            "seed": request.seed,
            "snapshots_per_epoch": 1 if observer.needs_center else 0,
        },
        checked.window,
        data_spec(request, checked.columns, trainer.seats_hold),
        threads=int(conf.get("spark.task.cpus", "1") or 1),
    )
    settings = _settings(checked, spec)
    description = describe_run(
        settings.run,
        spec,
        checked.rule,
        request,
        str(checked.spark.sparkContext.master),
        arguments.custom_objects,
    )
    history.params.update(description)
    return PreparedRun(
        settings=settings,
        dealt=deal(
            checked.frame,
            checked.columns,
            checked.summary,
            spec.workers,
            shuffle=spec.schedule.shuffle,
            seed=spec.schedule.seed,
            copies=spec.data.share != "partition",
        ),
        model=checked.model,
        archive=model_to_bytes(checked.model),
        custom_objects=arguments.custom_objects,
        center=get_flat_weights(checked.model, checked.layout),
        observer=observer,
        network=_network(trainer, checked),
        history=history,
        description=description,
        notes=[
            *([trainer.introduction] if trainer.introduction else []),
            *announce_run(spec, checked.rule, checked.window),
            *compression_notes(arguments.compression, arguments.epochs),
            *checked.warnings,
        ],
        began=began,
    )


def _settings(checked: Checked, spec: RunSpec) -> ServerSettings:
    """Return what the server is told; it gives the run its name."""
    place = checked.place
    return ServerSettings(
        run=f"{spec.algorithm.trainer}-{secrets.token_hex(4)}",
        spec=spec,
        bind_host=place.bind_host,
        advertised_host=place.advertised_host,
        port=place.port,
        port_retries=place.port_retries,
    )


def _network(trainer: Trainer, checked: Checked) -> partial[NetworkNeed]:
    """Return what the run asks of the network, but for the time of a window."""
    rows, workers, arguments = checked.rows, checked.workers, settled(trainer)
    seat = largest_seat(rows, workers)
    return partial(
        NetworkNeed,
        vector_bytes=vector_bytes(arguments.compression, checked.layout, workers),
        # Seats without rows exchange nothing.
        workers=min(workers, rows),
        window=checked.window.longest(seat, arguments.batch_size, arguments.epochs),
        available=link_speed(checked.place.bind_host),
        empty_reply=not checked.rule.traits.answers,
    )
