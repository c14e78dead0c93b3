"""A worker's part of a run on local sets: its tiles, its windows, and its tests."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self, TypeAlias

from distkeras_grid.feeding.batches import BLOCK_STEPS, Window, blocks_of
from distkeras_grid.local_sets.policy import LocalSetSampler
from distkeras_grid.local_sets.rows import LocalRows, ReadStatistics
from distkeras_grid.local_sets.sampler import digest_of
from distkeras_grid.local_sets.store import LocalPlan
from distkeras_grid.local_sets.tile_index import Numbers
from distkeras_grid.records import LocalSet
from distkeras_grid.rows import RowBlock
from distkeras_grid.spec import ScheduleSpec

#: Returns loss and metrics of a worker's model on blocks of rows.
Evaluate: TypeAlias = Callable[[Iterator[RowBlock]], dict[str, float]]
#: `WorkerSampler.report`.
Report: TypeAlias = Callable[[Window, Evaluate], LocalSet | None]


class WorkerSampler:
    """What one worker trains and tests on; a context manager."""

    def __init__(self, plan: LocalPlan, schedule: ScheduleSpec, seat: int) -> None:
        self._reader = plan.store.open(seat)
        self.rows = LocalRows(plan.store, self._reader)
        self.policy = LocalSetSampler.of(plan.drawing, schedule, seat)
        self._tests = LocalRows(plan.store, self._reader)
        self._drawing = plan.drawing
        # Tiles fetched for the warm-up count as fetched for the first iteration.
        self._readings = self._begin()
        steps = math.ceil(self.policy.rows / self.policy.batch_size)
        self._last = math.ceil(steps / (self.policy.window or steps)) - 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.rows.close()
        self._tests.close()
        self._reader.close()

    @property
    def digest(self) -> str:
        """Identity of the data set, so that a run goes on with the same data only."""
        sha256 = hashlib.sha256()
        for pool in (self._drawing.training, self._drawing.held_out):
            for column in (pool.starts, pool.tiles, pool.images, pool.labels):
                sha256.update(column.astype("<i8").tobytes())
        return sha256.hexdigest()[:16]

    @property
    def read_seconds(self) -> float:
        """Time spent fetching tiles so far [s]."""
        return self.rows.seconds + self._tests.seconds

    def test_after(self, window: Window) -> Numbers | None:
        """Return the test set that is due after a window; None before the end of an iteration."""
        if window.window < self._last:
            return None
        return self._drawing.test(window.epoch - 1, self.policy.seat)

    def report(self, window: Window, evaluate: Evaluate) -> LocalSet | None:
        """Test the model if the window was the last of its iteration; return the record of that."""
        test = self.test_after(window)
        if test is None:
            return None
        train = self._drawing.train(window.epoch - 1, self.policy.seat)
        metrics: dict[str, float] = {}
        seconds = 0.0
        if len(test):
            # Fetched before the clock starts, so that the test's time does not include the fetch.
            blocks = self._tests.blocks(blocks_of(test, self.policy.batch_size, BLOCK_STEPS))
            clock = time.perf_counter()
            metrics = evaluate(blocks)
            seconds = time.perf_counter() - clock
        readings, self._readings = self._readings, self._begin()
        return LocalSet(
            train=len(train),
            test=len(test),
            digest=digest_of(train),
            read_seconds=readings.seconds,
            bytes_read=readings.bytes_read,
            failures=readings.failures,
            test_seconds=seconds,
            metrics=metrics,
        )

    def _begin(self) -> ReadStatistics:
        return ReadStatistics(self._reader, self.rows, self._tests)
