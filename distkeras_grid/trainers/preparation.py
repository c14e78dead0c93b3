"""A run on Spark, from the request to its end."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from distkeras_grid.engine.keras_model import get_flat_weights, weight_layout
from distkeras_grid.errors import GridError
from distkeras_grid.history import History
from distkeras_grid.parameter_server.auth import new_key, workers_key
from distkeras_grid.parameter_server.process import ServerProcess
from distkeras_grid.parameter_server.settings import ServerAddress, ServerSettings
from distkeras_grid.rules import compression_of, rule_of
from distkeras_grid.spark.addresses import port_note
from distkeras_grid.spark.launch import Launch
from distkeras_grid.spark.seats import deal
from distkeras_grid.trainers.callbacks import EpochObserver
from distkeras_grid.trainers.capacity import NetworkNeed, link_speed
from distkeras_grid.trainers.checking import Checked, check
from distkeras_grid.trainers.compressing import vector_bytes
from distkeras_grid.trainers.description import compression_sentence, describe_run
from distkeras_grid.trainers.recalibration import recalibrate
from distkeras_grid.trainers.run import Run
from distkeras_grid.trainers.run_status import RunProgress
from distkeras_grid.worker.task import SUMMARY_SCHEMA, WorkerPlan, run_worker

if TYPE_CHECKING:
    import keras
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from distkeras_grid.spec import RunSpec
    from distkeras_grid.trainers.request import RunRequest
    from distkeras_grid.weights import Vector, WeightLayout


# A pass over the rows for the statistics takes about as long as an epoch. So many it may take, and
# the time to start the workers once more.
MEASURING_EPOCHS = 5


@dataclass
class PreparedRun:
    """A run that is ready to start; `execute` starts it.

    Parameters
    ----------
    settings : ServerSettings
        Settings of the server: the run, and where to listen.
    checked : Checked
        The model, the data and the other results of the checks.
    objects : mapping of str to object
        The user's own classes and functions.
    observer : EpochObserver
        Called at the end of each epoch.
    history : History
        Filled during the run.
    description : dict
        For ``run.json``.
    began : float
        When the preparation began, Unix seconds.
    centers : list of ndarray
        The centers of all workers when the run has ended, if each has its own; otherwise empty.
    """

    settings: ServerSettings
    checked: Checked
    objects: Mapping[str, Any]
    observer: EpochObserver
    history: History
    description: dict[str, Any]
    began: float
    centers: list[Vector] = field(default_factory=list)
    _measuring: Callable[[float], None] | None = None

    @property
    def spec(self) -> RunSpec:
        """The run as a value."""
        return self.settings.spec

    def execute(
        self,
        progress: RunProgress,
        serve: Callable[..., ServerProcess] = ServerProcess,
        work: Callable[..., Iterator[pa.RecordBatch]] = run_worker,
    ) -> keras.Model:
        """Run to the end, and return the trained model.

        Parameters
        ----------
        progress : RunProgress
            Shown during the run.
        serve : callable, default ServerProcess
            Builds the server from settings, center and key.
        work : callable, default run_worker
            What each task runs, with the `WorkerPlan` and its rows.
        """
        key, spec, model = new_key(), self.spec, self.checked.compiled.model
        center = get_flat_weights(model, layout_of(spec, model))
        progress.update(
            total_samples=spec.rows * spec.epochs, epochs=spec.epochs, workers=spec.workers
        )
        for note in self.checked.notes:
            progress.note(note)
        dealt = self._deal()
        with serve(self.settings, center, key) as server:
            if moved := port_note(self.settings.place.port, server.address.port):
                progress.note(moved)
            plan = self._plan(server.address, workers_key(key))
            launch = Launch(dealt, partial(work, plan), SUMMARY_SCHEMA, self.settings.run)
            parts = self.history, progress, self.observer, self.network()
            run = Run(server, launch, spec, *parts)
            rate = self.observer.begin().learning_rate
            if rate is not None:
                server.command(learning_rate=rate)
            center, summaries = run.execute()
            if plan.rule.traits.own_center:
                self.centers = [server.center(seat=number) for number in range(spec.workers)]
        if spec.compression:
            progress.note(compression_sentence(self.history, spec.size))
        self.observer.end(center)
        self._describe(summaries)
        self._measuring = partial(recalibrate, model, dealt, plan, progress)
        return model

    def recalibrate(self, progress: RunProgress) -> None:
        """Measure the statistics of batch normalization on all rows, where the run asks for it.

        The model keeps the workers' averages if that fails or is interrupted.

        Parameters
        ----------
        progress : RunProgress
            Told what is done.
        """
        if self.spec.algorithm.statistics != "recalibrate" or self._measuring is None:
            return
        epoch = self.history.training_seconds() / self.spec.epochs
        # That is what the model has until everything is measured, and after an interrupt.
        self._tell_statistics("own" if self.spec.workers == 1 else "average")
        try:
            self._measuring(self.spec.limits.start_timeout + MEASURING_EPOCHS * epoch)
        except GridError as error:
            progress.note(
                "Training is complete, but the statistics of batch normalization are still the "
                f"workers' averages: {error}"
            )
        else:
            self._tell_statistics("recalibrate")
        self.description["total_seconds"] = time.time() - self.began

    def network(self) -> partial[NetworkNeed]:
        """Return the run's `NetworkNeed`, still without the time of a window."""
        spec, layout = self.spec, layout_of(self.spec, self.checked.compiled.model)
        return partial(
            NetworkNeed,
            vector_bytes=vector_bytes(
                compression_of(spec.exchange.compression), layout, spec.workers
            ),
            # Seats without rows exchange nothing.
            workers=min(spec.workers, spec.rows),
            window=spec.steps_per_window(),
            available=link_speed(self.settings.place.bind_host),
            empty_reply=not rule_of(spec.rule).traits.answers,
        )

    def _deal(self) -> DataFrame:
        """Return the rows, one partition for each worker."""
        spec, data = self.spec, self.checked.data
        return deal(
            data.frame,
            data.columns,
            data.summary,
            spec.workers,
            shuffle=spec.schedule.shuffle,
            seed=spec.schedule.seed,
            copies=spec.data.share != "partition",
        )

    def _plan(self, address: ServerAddress, key: bytes) -> WorkerPlan:
        """Return the plan of the workers, after the server has started; `key` is theirs."""
        return WorkerPlan(
            run=self.settings.run,
            spec=self.spec,
            key=key,
            address=address,
            model=self.checked.compiled.archive,
            custom_objects=self.objects,
        )

    def _tell_statistics(self, value: str) -> None:
        for told in (self.description, self.history.params):
            told["statistics"] = value

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


def prepare(
    request: RunRequest, callbacks: Sequence[keras.callbacks.Callback], resources: ExitStack
) -> PreparedRun:
    """Check model, data, executors and slots, and lay out the run.

    Parameters
    ----------
    request : RunRequest
        What is asked for.
    callbacks : sequence of keras.callbacks.Callback
        Called at each epoch's end.
    resources : ExitStack
        Gets what must be given back when the run has ended.

    Raises
    ------
    GridError
        The first thing that does not fit, with what was received and what to do.
    """
    began, history = time.time(), History()
    checked = check(request, resources)
    spec, model = checked.spec, checked.compiled.model
    observer = EpochObserver(
        model, history, callbacks, checked.validation, spec.epochs, layout_of(spec, model)
    )
    if observer.needs_center:
        spec = spec.change(snapshots_per_epoch=1)
    name = f"{spec.algorithm.trainer}-{secrets.token_hex(4)}"
    settings = ServerSettings(run=name, spec=spec, place=checked.place)
    description = describe_run(
        name,
        spec,
        callbacks,
        str(checked.data.frame.sparkSession.sparkContext.master),
        request.source.objects,
    )
    history.params.update(description)
    return PreparedRun(
        settings, checked, request.source.objects, observer, history, description, began
    )


def layout_of(spec: RunSpec, model: keras.Model) -> WeightLayout:
    """Return the layout of a model's vectors in a run."""
    return weight_layout(model, slots=spec.algorithm.optimizer_state == "average")
