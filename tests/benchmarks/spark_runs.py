"""Training by two workers on two cores under Spark, and what its history tells."""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import msgspec

import distkeras_grid
from distkeras_grid.feeding.schema import Field
from distkeras_grid.history import History
from distkeras_grid.parameter_server.messages import CenterUpdate
from distkeras_grid.parameter_server.process import ServerProcess
from distkeras_grid.parameter_server.settings import ServerSettings
from distkeras_grid.progress import SILENT
from distkeras_grid.spark.session import build_session
from distkeras_grid.trainers.base import training_data
from distkeras_grid.trainers.preparation import TrainingJob, prepare
from distkeras_grid.trainers.run_status import run_progress
from distkeras_grid.weights import Vector
from tests.benchmarks import fashion
from tests.benchmarks.local import ANSWER_SECONDS, Point
from tests.benchmarks.nets import NETS
from tests.benchmarks.processes import Side

WORKERS = 2
MASTER = f"local[{WORKERS},4]"


@dataclass(frozen=True)
class Choice:
    """A trainer and its settings."""

    trainer: str  # Name of its class
    batch: int  # Rows in a batch of each worker
    # Further ones of the trainer; its own defaults hold for all others
    arguments: dict[str, Any] = field(default_factory=dict)

    def build(self, net: str, seed: int, epochs: int) -> Any:
        """Return the trainer of a new model."""
        return getattr(distkeras_grid, self.trainer)(
            NETS[net].build(seed),
            batch_size=self.batch,
            num_epoch=epochs,
            features_col=Field("image", NETS[net].shape, scale=1 / 255),
            progress=False,
            **self.arguments,
        )


@dataclass(frozen=True)
class Trained:
    """What one run took [s]."""

    epoch_seconds: float  # First batch to last fold, divided by the epochs
    start_seconds: float  # From the call to the first batch
    points: list[Point] = field(default_factory=list, repr=False)  # The center at each mark


class OnBackend(Side):
    """The same in a process whose Keras runs on another backend, since a process has one."""

    def __init__(self, folder: Path, backend: str) -> None:
        environment = {
            "KERAS_BACKEND": backend,
            "JAX_PLATFORMS": "cpu",
            # Executors need what this environment has; .venv has no PyTorch.
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        super().__init__(partial(_started, folder), environment)

    def train(self, choice: Choice, net: str, *, epochs: int, seed: int) -> Trained:
        """Run ``train()`` as a user does."""
        self.ask("train", choice, net, epochs, seed)
        trained: Trained = self.answer(ANSWER_SECONDS)
        return trained


class Cluster:
    """A local Spark session and the training rows as Parquet; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.start_seconds = 0.0

    def _write(self, split: str) -> Path:
        """Return the Parquet of a split, written when it is first asked for."""
        data = Path(self._scratch.name) / split
        if not data.exists():
            fashion.write_parquet(fashion.read(self._folder, split), data)
        return data

    def __enter__(self) -> Self:
        self._scratch = tempfile.TemporaryDirectory(prefix="dkg-bench-")
        began = time.perf_counter()
        self._session = build_session("benchmark", master=MASTER)
        self.start_seconds = time.perf_counter() - began
        return self

    def __exit__(self, *exception: object) -> None:
        self._session.stop()
        self._scratch.cleanup()

    def train(self, choice: Choice, net: str, epochs: int = 1, seed: int = 0) -> Trained:
        """Run ``train()`` as a user does."""
        trainer = choice.build(net, seed, epochs)
        data = str(self._write("train"))
        began = time.time()
        trainer.train(data, seed=seed)
        return _trained(trainer.history, began, epochs)

    def curve(self, choice: Choice, net: str, *, epochs: int, seed: int, marks: int) -> Trained:
        """Run with `marks` snapshots of the center in each epoch."""
        trainer = choice.build(net, seed, epochs)
        began = time.time()
        data = training_data(str(self._write("fitting")), shuffle=True, seed=seed)
        with ExitStack() as resources:
            prepared = prepare(trainer.checked(), data, (), resources, run_progress(to=SILENT))
            spec = prepared.spec.change(snapshots_per_epoch=marks)
            prepared.settings = msgspec.structs.replace(prepared.settings, spec=spec)
            centers = _execute(prepared)
        trained = _trained(prepared.history, began, epochs)
        rows = prepared.settings.spec.rows
        due = [-(-rows * number // marks) for number in range(1, len(centers) + 1)]
        times = _times_of(prepared.history, due)
        points = [(*time, center) for time, center in zip(times, centers, strict=True)]
        return replace(trained, points=points)


class SnapshotServer(ServerProcess):
    """Fetches each snapshot when the driver's loop asks for news."""

    def __init__(self, settings: ServerSettings, *parts: Any, **more: Any) -> None:
        super().__init__(settings, *parts, **more)
        self._marks = settings.spec.snapshots_per_epoch
        self._rows = settings.spec.rows
        self.centers: list[Vector] = []

    def poll(self, *parts: Any, **more: Any) -> CenterUpdate:
        """Return the news, after the snapshots that they tell of."""
        update = super().poll(*parts, **more)
        while len(self.centers) < update.samples_folded * self._marks // self._rows:
            self.centers.append(super().center(len(self.centers) + 1))
        return update

    def center(self, snapshot: int | None = None, seat: int = 0) -> Vector:
        """Return the present center, or a snapshot, which has been fetched."""
        if snapshot is None:
            return super().center(None, seat)
        return self.centers[snapshot - 1]


def _execute(prepared: TrainingJob) -> list[Vector]:
    """Run to the end with a server that keeps its snapshots, and return them."""
    servers: list[SnapshotServer] = []

    def serve(*parts: Any, **more: Any) -> SnapshotServer:
        servers.append(SnapshotServer(*parts, **more))
        return servers[0]

    prepared.execute(run_progress(SILENT), serve)
    return servers[0].centers


def _started(folder: Path) -> Cluster:
    # Its session ends with the process.
    return Cluster(folder).__enter__()


def _trained(history: History, began: float, epochs: int) -> Trained:
    first = min(record.started for record in history.records)
    last = max(record.folded_at for record in history.records)
    return Trained((last - first) / epochs, first - began)


def _times_of(history: History, marks: list[int]) -> list[tuple[int, float]]:
    """Return samples and seconds of the commits that reached each mark."""
    first = min(record.started for record in history.records)
    records = history.records
    folded = list(accumulate(record.samples for record in records))
    found = []
    for mark in marks:
        place = next(place for place, samples in enumerate(folded) if samples >= mark)
        found.append((folded[place], records[place].folded_at - first))
    return found
