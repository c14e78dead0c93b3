"""The worker's loop between a real spool and a real server; the engine counts visits of rows."""

from __future__ import annotations

import math
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
import pytest

from distkeras_grid.errors import FencedError
from distkeras_grid.feeding.batches import EpochSampler
from distkeras_grid.feeding.row_cache import RowCache
from distkeras_grid.feeding.schema import Field
from distkeras_grid.records import LocalRecord, LocalSet, SkippedRecord, WindowRecord, WindowResult
from distkeras_grid.rules import DownpourRule
from distkeras_grid.spec import LocalSpec
from distkeras_grid.weights import Variable, WeightLayout
from distkeras_grid.worker.engine_actions import first_state
from distkeras_grid.worker.loop import train
from distkeras_grid.worker.worker_core import WorkerCore
from tests.distkeras_grid.parameter_server.conftest import Bench
from tests.specs import make_settings

ROWS, EPOCHS = 7, 3
FIELD = Field("x", (1,), dtype="float32")


class CountingEngine:
    """One weight per row; a step adds each sample's weight to the weights of its rows.

    It also says what it was asked to do, and which loss to report.
    """

    def __init__(self, loss=0.5):
        self.layout = WeightLayout((Variable("counts", (ROWS,)),), ())
        self.learning_rate = 1.0
        self.loss = loss
        self.windows = 0

    def weights(self):
        return np.zeros(ROWS, np.float32)

    def run(self, before, blocks, after):
        np.copyto(after, before)
        steps = samples = 0
        for block in blocks:
            weight = np.ones(block.shape) if block.weight is None else block.weight
            np.add.at(after, block.x[0][..., 0].astype(int), weight * self.learning_rate)
            steps, samples = steps + block.steps, samples + block.samples
        self.windows += 1
        loss = self.loss if isinstance(self.loss, float) else self.loss[self.windows - 1]
        return WindowResult(steps, samples, loss, {"accuracy": 0.25})

    def set_learning_rate(self, value):
        self.learning_rate = value

    def set_schedule_offset(self, steps):
        self.done = steps

    def state(self):
        return {"rate": np.array(self.learning_rate)}

    def restore(self, state):
        self.learning_rate = float(state["rate"])


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def spool(stack, tmp_path):
    return filled(stack.enter_context(RowCache((FIELD,), (Field("label", (), "int64"),), tmp_path)))


def filled(spool):
    """Rows 0 to 6 with their number as feature and labels 0, 1, 0, 1, ..., in another order."""
    order = np.array([3, 0, 6, 1, 5, 2, 4])
    columns = {
        "row": pa.array(order),
        "hash": pa.array(order),
        "features_0": pa.array([[float(row)] for row in order], pa.list_(pa.float32())),
        "label_0": pa.array(order % 2),
    }
    spool.append(pa.record_batch(columns))
    spool.seal()
    return spool


class Server(Bench):
    """A server of one seat, in this process."""

    def __init__(self, stack, **changes):
        settings = make_settings(trainable_size=ROWS, rows=ROWS, epochs=EPOCHS, **changes)
        super().__init__(stack, settings)

    def train(self, engine, rows, *, plan=None, after_window=None, **options):
        client = self.worker()
        start, core = client.ready(ROWS), core_of(engine, plan, **options)
        first = first_state(engine)
        return train(core, engine, client, start, rows, after_window, first=first)

    def window_events(self):
        return [event for event in self.driver().poll(5).events if isinstance(event, WindowRecord)]


def core_of(engine, plan=None, **options):
    return WorkerCore(0, DownpourRule(), engine.layout, plan or planned(), **options)


def planned(window=2):
    return EpochSampler(rows=ROWS, batch_size=2, window=window, epochs=EPOCHS, seed=1)


@pytest.mark.parametrize("window", [1, 2, 3, None])
def test_every_row_of_every_epoch_reaches_the_center_once(stack, spool, window):
    server = Server(stack)
    assert server.train(CountingEngine(), spool, plan=planned(window=window)) == ROWS * EPOCHS
    np.testing.assert_array_equal(server.driver().center(), np.full(ROWS, EPOCHS))


def test_what_is_told_of_a_local_set_goes_with_the_window_after_which_it_was_found(stack, spool):
    def after_window(done):
        seen.append(done.after.copy())
        if done.window.window == 0:
            return None
        return LocalSet(train=ROWS, test=0, digest=f"{done.window.epoch:016x}", read_seconds=0.0)

    seen, server = [], Server(stack, local=LocalSpec(local_train=ROWS))
    server.train(CountingEngine(), spool, plan=planned(window=2), after_window=after_window)
    told = [each for each in server.driver().poll(5).events if isinstance(each, LocalRecord)]
    found = [(each.iteration, int(each.local.digest, 16)) for each in told]
    assert found == [(1, 1), (2, 2), (3, 3)]
    np.testing.assert_array_equal(seen[-1], server.driver().center())


def test_an_attempt_that_lost_its_seat_ends_with_nothing_folded(stack, spool):
    server = Server(stack)
    engine = CountingEngine()
    client = server.worker(attempt=1)
    start = client.ready(ROWS)
    server.worker(attempt=2)
    with pytest.raises(FencedError, match="newer connection, of Spark task 2"):
        train(core_of(engine), engine, client, start, spool)
    assert engine.windows == 1
    assert not server.window_events()


def test_a_skipped_window_is_left_out_and_the_next_one_begins_at_the_center(stack, spool):
    """Each row is trained once an epoch; those of the window that went wrong are missing."""
    server = Server(stack, on_nonfinite="skip")
    engine = CountingEngine(loss=[0.5, math.nan, *[0.5] * 4])
    assert server.train(engine, spool, sends_nonfinite=True) == EPOCHS * ROWS
    counts = server.driver().center()
    events = server.driver().poll(5).events
    (skipped,) = (event for event in events if isinstance(event, SkippedRecord))
    assert (skipped.epoch, skipped.window) == (1, 1)
    assert sum(counts) == EPOCHS * ROWS - skipped.samples
    assert sum(isinstance(event, WindowRecord) for event in events) == 5
    assert engine.done == 4
