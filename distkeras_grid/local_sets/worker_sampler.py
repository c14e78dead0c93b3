"""A worker's part of a run on local sets: its tiles, its windows, and its tests."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self, TypeAlias

from distkeras_grid.feeding.batches import BLOCK_STEPS, EpochSampler, Window, blocks_of
from distkeras_grid.local_sets.rows import LocalRows
from distkeras_grid.local_sets.sampler import TileSampler, digest_of
from distkeras_grid.local_sets.store import LocalPlan
from distkeras_grid.local_sets.tile_index import Numbers
from distkeras_grid.records import LocalSet
from distkeras_grid.rows import RowBlock
from distkeras_grid.spec import ScheduleSpec

#: Returns loss and metrics of a worker's model on blocks of rows.
Evaluate: TypeAlias = Callable[[Iterator[RowBlock]], dict[str, float]]
#: `WorkerSampler.report`.
Report: TypeAlias = Callable[[Window, Evaluate], LocalSet | None]


@dataclass(frozen=True, kw_only=True)
class LocalSetSampler(EpochSampler):
    """Windows with one local training set in each epoch; an epoch is an iteration.

    Positions are tile numbers in the pool. They may exceed `rows`, which is the size of a set.
    """

    drawing: TileSampler  # The local sets of the run

    @classmethod
    def of(cls, drawing: TileSampler, schedule: ScheduleSpec, seat: int) -> Self:
        """Return the policy of a seat according to a run's schedule."""
        return cls(
            rows=drawing.spec.local_train,
            batch_size=schedule.batch_size,
            window=schedule.window,
            epochs=schedule.epochs,
            seed=schedule.seed,
            seat=seat,
            drawing=drawing,
        )

    def _order(self, sample: Numbers | None, epoch: int) -> Numbers:  # noqa: ARG002
        return self.drawing.train(epoch - 1, self.seat)


class WorkerSampler:
    """What one worker trains and tests on; a context manager."""

    def __init__(self, plan: LocalPlan, schedule: ScheduleSpec, seat: int) -> None:
        self._reader = plan.store.open(seat)
        self.rows = LocalRows(plan.store, self._reader)
        self.policy = LocalSetSampler.of(plan.drawing, schedule, seat)
        self._tests = LocalRows(plan.store, self._reader)
        self._drawing = plan.drawing
        # Tiles fetched for the warm-up count as fetched for the first iteration.
        self._read = self._read_so_far()
        steps = math.ceil(self.policy.rows / self.policy.batch_size)
        self._last = math.ceil(steps / (self.policy.window or steps)) - 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
        (began, bytes_before, failures_before), self._read = self._read, self._read_so_far()
        until, bytes_read, failures = self._read
        return LocalSet(
            train=len(train),
            test=len(test),
            digest=digest_of(train),
            read_seconds=until - began,
            bytes_read=dict(bytes_read - bytes_before),
            failures=dict(failures - failures_before),
            test_seconds=seconds,
            metrics=metrics,
        )

    def _read_so_far(self) -> tuple[float, Counter[str], Counter[str]]:
        """Return seconds, and bytes and failed reads by location."""
        return self.read_seconds, Counter(self._reader.bytes_read), Counter(self._reader.failures)
