"""A run on Spark, from the request to its end."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from distkeras_grid.array_tree import unpack
from distkeras_grid.engine.jit import decide_jit
from distkeras_grid.engine.keras_model import get_flat_weights, weight_layout
from distkeras_grid.engine.optimizers import averages_weights
from distkeras_grid.engine.outcome import AVERAGES, TrainOutcome, take_outcomes
from distkeras_grid.errors import GridError
from distkeras_grid.history import History
from distkeras_grid.parameter_server.auth import new_key, seat_key
from distkeras_grid.parameter_server.process import ServerProcess
from distkeras_grid.parameter_server.settings import ServerAddress, ServerSettings
from distkeras_grid.parameter_server.sharded_process import AnyServer, ShardedProcess
from distkeras_grid.rules import SynchronousRule, rule_of
from distkeras_grid.spark.addresses import port_note
from distkeras_grid.spark.checkpoints import CheckpointStore
from distkeras_grid.spark.dataframes import version_of
from distkeras_grid.spark.materialized_rows import materialized
from distkeras_grid.spark.row_partitioner import partition_rows
from distkeras_grid.spark.session import (
    active_session,
    lacks_executors,
    planned_for,
    read_parallelism,
    this_driver,
    wait_for_executors,
)
from distkeras_grid.spark.storage import Storage, rename_note
from distkeras_grid.spark.worker_jobs import WorkerJobs
from distkeras_grid.trainers.callback_checks import check_callbacks
from distkeras_grid.trainers.callbacks import CallbackRunner
from distkeras_grid.trainers.checkpoint_writer import (
    Checkpointer,
    ResumedRun,
    RunFingerprint,
)
from distkeras_grid.trainers.description import compression_sentence, describe_run
from distkeras_grid.trainers.local_data import describe_local
from distkeras_grid.trainers.preflight import PreparedData, check
from distkeras_grid.trainers.resume import (
    check_same_run,
    going_on_notes,
    points_of,
    recompile,
    resumed_spec,
    with_saved_settings,
)
from distkeras_grid.trainers.run import Run
from distkeras_grid.trainers.run_status import RunProgress
from distkeras_grid.trainers.validation import prepare_metrics
from distkeras_grid.worker.task import SUMMARY_SCHEMA, WorkerPlan, run_worker, with_key

if TYPE_CHECKING:
    import keras
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from distkeras_grid.array_tree import Packed
    from distkeras_grid.spec import RunSpec
    from distkeras_grid.trainers.config import TrainerConfig, TrainingData
    from distkeras_grid.weights import Vector


@dataclass
class TrainingJob:
    """A run that is ready to start; `execute` starts it."""

    config: TrainerConfig
    settings: ServerSettings  # Settings of the server: the run, and where to listen
    data: PreparedData
    notes: list[str]  # Lines to show before it starts
    observer: CallbackRunner  # Called at the end of each epoch
    history: History  # Filled during the run
    description: dict[str, Any]  # The description of the run for ``run.json``
    began: float  # When the preparation began, Unix seconds
    # The centers of all workers when the run has ended, if each has its own; otherwise empty
    centers: list[Vector] = field(default_factory=list)
    left: keras.Model | None = None  # The model with the center at the moment when the run failed
    store: CheckpointStore | None = None  # Where checkpoints are; None for a run without any
    resumed: ResumedRun | None = None  # The checkpoint from which the run goes on
    xla: bool = False  # Whether XLA compiles the workers' windows
    checkpointer: Checkpointer | None = None  # What has written the run's checkpoints
    # Whether the run has ended because its server has died or does not answer
    lost_server: bool = False

    @property
    def spec(self) -> RunSpec:
        """The run as a value."""
        return self.settings.spec

    def execute(
        self,
        progress: RunProgress,
        serve: Callable[..., ServerProcess] = ServerProcess,
        work: Callable[..., Iterator[pa.RecordBatch]] = run_worker,
        model: bytes | None = None,
        tasks: int | None = None,
    ) -> keras.Model:
        """Run to the end, and return the trained model.

        `model`: what tasks receive in place of the model's archive, for `work` that needs less.
        `tasks`: number of tasks of the only worker, if it is a group; see `WorkerJobs`.
        """
        key, spec, trained = new_key(), self.spec, self.data.compiled.model
        center = get_flat_weights(trained)
        progress.update(
            total_samples=spec.schedule.samples, epochs=spec.epochs, workers=spec.workers
        )
        for note in self.notes:
            progress.note(note)
        rows = self._deal(tasks)
        resumed = self.resumed
        saved = () if resumed is None else resumed.parts_for(spec)
        before = len(self.history.records)
        self.checkpointer = checkpointer = self._checkpointer(progress)
        with (
            self._serve(serve, center, key, saved) as server,
            self._leaving(server),
        ):
            if moved := port_note(self.settings.place.port, server.address.port):
                progress.note(moved)
            plan = self._plan(server.addresses)
            sent = plan if model is None else replace(plan, model=model)
            launch = WorkerJobs(
                rows,
                partial(with_key, work, sent),
                SUMMARY_SCHEMA,
                self.settings.run,
                key_of=partial(seat_key, key),
                tasks=tasks,
            )
            parts = self.history, progress, self.observer
            since = 0 if resumed is None else resumed.manifest.version
            run = Run(server, launch, spec, *parts, checkpointer, since)
            saved_observer = None if resumed is None else resumed.driver.observer
            rate = self.observer.begin(saved_observer).learning_rate
            server.command(learning_rate=rate, epochs=len(self.history.epoch_records))
            try:
                center, summaries = run.execute()
            finally:
                self.lost_server = run.lost_server
            self._fetch_centers(server)
        self._conclude(center, summaries, before, progress)
        return trained

    def _deal(self, tasks: int | None) -> DataFrame:
        """Return the rows, one partition for each worker, or for each task of the only one."""
        spec, data = self.spec, self.data
        if data.local is not None:
            # Its rows say nothing.
            return data.frame if tasks is None else active_session().range(0, tasks, 1, tasks)
        return partition_rows(
            data.frame,
            data.columns,
            data.summary,
            spec.workers,
            shuffle=spec.schedule.shuffle,
            seed=spec.schedule.seed,
            copies=spec.data.share != "partition",
            partitions=tasks,
        )

    def _serve(
        self,
        serve: Callable[..., ServerProcess],
        center: Vector,
        key: bytes,
        saved: Sequence[Packed],
    ) -> AnyServer:
        """Return the run's servers, not started yet."""
        if self.spec.exchange.servers > 1:
            return ShardedProcess(self.settings, center, key, saved, serve)
        return serve(self.settings, center, key, saved)

    def _plan(self, addresses: tuple[ServerAddress, ...]) -> WorkerPlan:
        """Return the plan of the workers, without their keys, after the servers have started."""
        return WorkerPlan(
            run=self.settings.run,
            spec=self.spec,
            address=addresses[0],
            model=self.data.compiled.archive,
            custom_objects=self.data.compiled.objects,
            local=self.data.local,
            others=addresses[1:],
            validate=self.config.validate_function,
        )

    def _checkpointer(self, progress: RunProgress) -> Checkpointer | None:
        """Return what writes the run's checkpoints."""
        if self.store is None:
            return None
        rows = None if self.data.stored is None else self.data.stored.name
        identity = RunFingerprint(
            self.settings.run, self.spec, self.xla, self.data.compiled.archive, rows
        )
        return Checkpointer(
            self.store,
            identity,
            self.config.checkpoint_every,
            self.history,
            self.observer.to_saved,
            progress.note,
        )

    def _fetch_centers(self, server: AnyServer) -> None:
        if rule_of(self.spec.rule).traits.own_center:
            self.centers = [server.center(seat=number) for number in range(self.spec.workers)]

    def _conclude(
        self,
        center: Vector,
        summaries: list[dict[str, Any]],
        before: int,
        progress: RunProgress,
    ) -> None:
        """Keep the trained model, and only then report how the run ended."""
        # It is kept even if a callback fails or a figure cannot be computed.
        self.left = self.observer.finalize(center)
        self._take_outcomes(self.left, summaries, progress)
        if self.spec.compression:
            progress.note(compression_sentence(self.history, self.spec.size))
        self.observer.end()
        self._describe(summaries, before)

    def _take_outcomes(
        self, model: keras.Model, summaries: list[dict[str, Any]], progress: RunProgress
    ) -> None:
        """Complete the model with what the workers' training has left beside the weights."""
        outcomes = [
            TrainOutcome(each["worker"], each["rows"], unpack(np.frombuffer(packed, np.uint8)))
            for each in summaries
            if (packed := each.pop("outcome")) is not None
        ]
        averages = {o.worker: o.state[AVERAGES] for o in outcomes if AVERAGES in o.state}
        if len(averages) < self.spec.workers and averages_weights(model.optimizer):
            progress.note(
                "The averages that use_ema asks for did not arrive from every worker: the model "
                "has the mean of those that did, or the last weights."
            )
        take_outcomes(model, outcomes)
        # Empty, unless each worker has a center of its own.
        for worker, center in enumerate(self.centers):
            if worker in averages:
                center[: averages[worker].size] = averages[worker]

    @contextmanager
    def _leaving(self, server: AnyServer) -> Iterator[None]:
        """Keep the center at the moment when the run is interrupted or fails."""
        try:
            yield
        except BaseException as error:
            if self.history.records and not self.lost_server:
                try:
                    server.reconnect()
                    self._fetch_centers(server)
                    self.left = self.observer.load_state(server.center())
                except GridError as second:
                    error.add_note(f"The center could not be fetched: {second}")
            raise

    def _describe(self, summaries: list[dict[str, Any]], before: int) -> None:
        """Add the run's figures to its description; `before` records are of earlier executions."""
        records = self.history.records[before:]
        started = min((record.started for record in records), default=self.began)
        self.description.update(
            {
                "start_up_seconds": started - self.began,
                "training_seconds": self.history.training_seconds(),
                "total_seconds": time.time() - self.began,
                "samples": self.history.samples,
                "num_updates": self.history.num_updates,
                "workers": sorted(map(self._of_whole_run, summaries), key=itemgetter("worker")),
            }
        )
        if "resumed" in self.history.params:
            self.description["resumed"] = self.history.params["resumed"]
        local = self.data.local
        if local is not None:
            facts = describe_local(local, self.spec.epochs, self.history.local_sets)
            self.description["local_sets"] = self.history.params["local_sets"] = facts

    def _of_whole_run(self, summary: dict[str, Any]) -> dict[str, Any]:
        """Return a worker's summary with its samples of the run, not of its last attempt."""
        windows = self.history.records
        every = zip(windows.column("worker"), windows.column("samples"), strict=True)
        samples = sum(count for worker, count in every if worker == summary["worker"])
        return {**summary, "samples": samples}


def _await_executors(seconds: float, progress: RunProgress) -> None:
    """Say that executors are waited for, as long as there are none."""
    spark, phase = active_session(), progress.state.phase
    if lacks_executors(spark):
        progress.update(phase="waiting for executors")
        wait_for_executors(spark, seconds)
        progress.update(phase=phase)


def prepare(
    config: TrainerConfig,
    request: TrainingData,
    callbacks: Sequence[keras.callbacks.Callback],
    resources: ExitStack,
    progress: RunProgress,
    lost_samples: int | None = None,
) -> TrainingJob:
    """Check model, data, executors and slots, and lay out the run.

    `lost_samples`: samples in the history of this driver's run when its server died, if one has.
    """
    began, history = time.time(), History()
    executors = partial(_await_executors, config.start_timeout, progress)
    notes = check_callbacks(callbacks, config.optimizer_in_use)
    store, resumed = _newest_checkpoint(config, notes)
    if resumed is not None:
        config, request = with_saved_settings(config, request, resumed)
        # Its rows keep their numbers, if it goes on with more or fewer cores.
        resources.enter_context(planned_for(active_session(), resumed.driver.read_parallelism))
    rows = None if store is None or resumed is None else store.rows_of(resumed.manifest)
    materialize = partial(materialized, checkpoints=store, earlier=rows, say=progress.note)
    spec, data, place, lines = check(config, request, materialize, resources, executors)
    if resumed is not None:
        data = replace(data, compiled=recompile(data.compiled, resumed))
        check_same_run(spec, resumed)
        prepare_metrics(data.compiled.model, data.columns)
    if store is not None:
        newer = store.settle(0 if resumed is None else resumed.manifest.number, notes.append)
        resumed = resumed if newer is None else ResumedRun.of(newer)
    lines.extend(notes)
    if resumed is not None:
        spec = resumed_spec(spec, resumed)
        resumed.fill(history)
    model = data.compiled.model
    xla = decide_jit(model, spec.algorithm.jit)
    if resumed is not None and xla != resumed.manifest.xla:
        xla = resumed.manifest.xla
        spec = spec.change(jit=xla)
    observer = CallbackRunner(
        *(model, history, callbacks, data.validation, spec.epochs),
        math.ceil(spec.largest_share() / spec.batch_size),
        *(weight_layout(model), rule_of(spec.rule)),
    )
    if observer.needs_center:
        spec = spec.change(snapshots_per_epoch=1, epoch_barrier=bool(callbacks) and _in_step(spec))
    name = f"{spec.algorithm.trainer}-{secrets.token_hex(4)}"
    settings = ServerSettings(run=name, spec=spec, place=place)
    spark = data.frame.sparkSession
    description = describe_run(
        name,
        spec,
        callbacks,
        str(spark.sparkContext.master),
        this_driver(spark),
        data.compiled.objects,
        version_of(data.frame),
    )
    description["read_parallelism"] = read_parallelism(spark)
    if data.stored is not None:
        description["stored_rows"] = data.stored.to_json()
    if points := points_of(spec, resumed, lost_samples):
        description["resumed"] = points
        lines.extend(going_on_notes(spec, history, points[-1]))
    history.params.update(description)
    parts = config, settings, data, lines, observer, history, description, began
    return TrainingJob(*parts, store=store, resumed=resumed, xla=xla)


def _newest_checkpoint(
    config: TrainerConfig, notes: list[str]
) -> tuple[CheckpointStore | None, ResumedRun | None]:
    """Return the store and the checkpoint to go on from; `notes` receives torn ones."""
    folder = config.checkpoint_dir
    if folder is None:
        return None, None
    spark = active_session()
    storage = Storage(spark)
    if note := rename_note(storage.resolve(folder)):
        notes.append(note)
    store = CheckpointStore(storage, folder, this_driver(spark))
    newest = store.look(resume=config.resume is not None, tell=notes.append)
    return store, None if newest is None else ResumedRun.of(newest)


def _in_step(spec: RunSpec) -> bool:
    """Whether all workers end an epoch together, so that they can wait there for callbacks."""
    alone = spec.workers == 1 and spec.exchange.servers == 1
    in_rounds = isinstance(rule_of(spec.rule), SynchronousRule)
    return alone or (in_rounds and spec.quorum_of(spec.workers) == spec.workers)
