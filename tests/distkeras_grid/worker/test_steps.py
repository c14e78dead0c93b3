"""Workers whose own optimizers step by the rounds' mean gradients: real engines, real server."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress

import numpy as np
import pyarrow as pa
import pytest

from distkeras_grid.feeding.batches import EpochSampler
from distkeras_grid.feeding.row_cache import RowCache
from distkeras_grid.feeding.schema import Field
from distkeras_grid.parameter_server.auth import driver_key, new_key, seat_key
from distkeras_grid.parameter_server.client import WorkerClient
from distkeras_grid.parameter_server.driver_client import DriverClient
from distkeras_grid.parameter_server.service import Service
from distkeras_grid.records import LateRecord, WindowRecord
from distkeras_grid.rules import LocalSteps, MeanGradientRule
from distkeras_grid.worker.loop import train
from distkeras_grid.worker.worker_core import WorkerCore
from tests.engines import engine_of
from tests.policies import Chosen
from tests.specs import make_settings

pytestmark = pytest.mark.tensorflow

ROWS, BATCH, EPOCHS, WIDTH = 80, 4, 2, 5
SEAT_ROWS = ROWS // 2
FIELD = Field("x", (WIDTH,), dtype="float32")
LABEL = Field("label", (), "int64")


def data():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


def build(optimizer):
    import keras

    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [keras.Input((WIDTH,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(2)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.get(optimizer), loss=loss)
    return model


def engine(optimizer):

    return engine_of(build(optimizer), local_steps=LocalSteps.NONE)


class Run:
    """A server and its two workers, each with half of the rows."""

    def __init__(self, stack, tmp_path, optimizer, quorum=1.0):
        self.optimizer, self._stack, self._path = optimizer, stack, tmp_path
        own = engine(optimizer)
        layout, self.state_size = own.layout, own.step_section.nbytes
        self.size, self.key = layout.size, new_key()
        settings = make_settings(
            rule="mean_gradient",
            seats=2,
            trainable_size=layout.trainable_size,
            state=own.step_section.variables,
            rows=ROWS,
            epochs=EPOCHS,
            snapshots_per_epoch=1,
            quorum=quorum,
            round_timeout=20.0,
        )
        center = engine(optimizer).weights()
        self._service = Service(settings, center, self.key)
        stack.callback(self._service.close)
        self.driver = DriverClient.connect(
            self._service.address, driver_key(self.key), "test", self.size, 5
        )
        stack.callback(self.driver.close)
        self.engines, self.cores = {}, {}

    def join(self, number, attempt=0):
        address = self._service.address
        key = seat_key(self.key, number)
        return WorkerClient.connect(
            address, key, "test", number, attempt, self.size, 5, state_size=self.state_size
        )

    def seat(self, number, attempt=0, most=None, break_before=None, paced=iter):
        """Train a seat's windows; die before one of them, or lose the connection for a while.

        `paced` hands the windows on when it likes.
        """
        with self.join(number, attempt) as client:
            start = client.ready(SEAT_ROWS)
            self.train(number, client, start, most, break_before, paced)

    def train(self, number, client, start, most=None, break_before=None, paced=iter):
        x, y = data()
        spool = self._stack.enter_context(RowCache((FIELD,), (LABEL,), self._path))
        rows = np.arange(number, ROWS, 2)
        features = pa.array(list(x[rows]), pa.list_(pa.float32()))
        columns = {"row": pa.array(rows), "features_0": features, "label_0": pa.array(y[rows])}
        spool.append(pa.record_batch(columns))
        spool.seal()
        own = self.engines[number] = engine(self.optimizer)
        self.cores[number] = core_of(
            number, own, lambda plan: troubled(paced(plan), client, most, break_before)
        )
        with suppress(Death):
            train(self.cores[number], own, client, start, spool)


def core_of(number, own, chosen=iter):
    policy = EpochSampler(
        rows=SEAT_ROWS, batch_size=BATCH, window=1, epochs=EPOCHS, seat=number, shuffle=False
    )
    return WorkerCore(number, MeanGradientRule(), own.layout, Chosen(policy, chosen))


class Death(Exception):
    """The worker's process is gone."""


def troubled(plan, client, most, break_before):
    for number, window in enumerate(plan):
        if number == most:
            raise Death
        if number == break_before:
            client.close()
        yield window


def both(*calls):
    """Run calls at once; raise what one of them raised."""
    errors = []

    def guarded(call):
        try:
            call()
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


def fitted(optimizer, epochs=EPOCHS):
    """One model, trained on both seats' batches together."""
    from distkeras_grid.engine.keras_model import get_flat_weights

    x, y = data()
    model = build(optimizer)
    for _ in range(epochs):
        for start in range(0, SEAT_ROWS, BATCH):
            rows = [np.arange(seat, ROWS, 2)[start : start + BATCH] for seat in (0, 1)]
            model.train_on_batch(x[np.concatenate(rows)], y[np.concatenate(rows)])
    return get_flat_weights(model)


FULL = [pytest.param(name, marks=pytest.mark.full) for name in ("sgd", "rmsprop")]


@pytest.mark.full
@pytest.mark.parametrize("optimizer", ["adam", *FULL])
def test_Q5_two_workers_are_one_model_with_twice_the_batch(stack, tmp_path, optimizer):
    run = Run(stack, tmp_path, optimizer)
    both(lambda: run.seat(0), lambda: run.seat(1))
    np.testing.assert_allclose(run.driver.center(), fitted(optimizer), rtol=0, atol=2e-5)
    np.testing.assert_allclose(run.driver.center(1), fitted(optimizer, 1), rtol=0, atol=2e-5)
    first, second = (
        [np.asarray(v) for v in run.engines[seat]._steps.own.variables] for seat in (0, 1)
    )
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


#: Steps in an epoch, after which the server asks for weights; it also does so after 16 steps.
STEPS = SEAT_ROWS // BATCH


@pytest.mark.full
@pytest.mark.parametrize("most", [0, 7, STEPS, STEPS + 4, 2 * STEPS - 1])
@pytest.mark.parametrize("optimizer", ["adam", FULL[0]])
def test_a_later_attempt_gets_weights_and_slots_and_the_run_ends_the_same(
    stack, tmp_path, optimizer, most
):
    whole = Run(stack, tmp_path, optimizer)
    both(lambda: whole.seat(0), lambda: whole.seat(1))
    broken = Run(stack, tmp_path, optimizer)

    def twice():
        broken.seat(1, attempt=0, most=most)
        broken.seat(1, attempt=1)

    both(lambda: broken.seat(0), twice)
    np.testing.assert_array_equal(broken.driver.center(), whole.driver.center())
    np.testing.assert_array_equal(broken.driver.center(1), whole.driver.center(1))


def beside_a_whole_run(run, visit):
    """Train seat 0 to its end; call `visit` at once with a wait for that end."""
    over = threading.Event()

    def first():
        run.seat(0)
        over.set()

    def wait():
        assert over.wait(30)

    both(first, lambda: visit(wait))


def test_a_worker_that_was_lost_for_a_while_goes_on_where_the_others_are(stack, tmp_path):
    """With a quorum of one in two the other goes on; the steps between are not kept."""
    run = Run(stack, tmp_path, "adam", quorum=0.5)

    def second(wait):
        run.seat(1, most=1, break_before=0, paced=lambda plan: after(wait, plan))

    beside_a_whole_run(run, second)
    core = run.cores[1]
    assert core.version == EPOCHS * STEPS
    np.testing.assert_array_equal(core.before, run.driver.center())


def after(wait, plan):
    wait()
    yield from plan


@pytest.mark.full
def test_a_connection_that_breaks_before_the_state_has_come_is_opened_anew(stack, tmp_path):
    run = Run(stack, tmp_path, "adam", quorum=0.5)

    def second(wait):
        with run.join(1) as client:
            client.ready(SEAT_ROWS)
            wait()
        with run.join(1, attempt=1) as client:
            start = client.ready(SEAT_ROWS)
            assert start.has_state
            client.close()
            run.train(1, client, start, most=0)

    beside_a_whole_run(run, second)
    core = run.cores[1]
    assert core.version == EPOCHS * STEPS
    np.testing.assert_array_equal(core.before, run.driver.center())


@pytest.mark.full
def test_a_connection_that_breaks_changes_nothing(stack, tmp_path):
    run = Run(stack, tmp_path, "adam")
    both(lambda: run.seat(0), lambda: run.seat(1, break_before=STEPS + 4))
    whole = Run(stack, tmp_path, "adam")
    both(lambda: whole.seat(0), lambda: whole.seat(1))
    np.testing.assert_array_equal(run.driver.center(), whole.driver.center())


def test_with_a_quorum_of_one_in_two_all_end_where_the_server_is(stack, tmp_path):
    """The second worker's first window is late by a round, and comes before the run ends."""
    run = Run(stack, tmp_path, "adam", quorum=0.5)
    folded_once, came_late = threading.Event(), threading.Event()

    def first(windows):
        for number, window in enumerate(windows):
            if number == 1:
                folded_once.set()
                assert came_late.wait(20)
            yield window

    def second(windows):
        assert folded_once.wait(20)
        for window in windows:
            yield window
            came_late.set()

    both(lambda: run.seat(0, paced=first), lambda: run.seat(1, paced=second))
    update = run.driver.poll(5)
    late = [event for event in update.events if isinstance(event, LateRecord)]
    folded = [event for event in update.events if isinstance(event, WindowRecord)]
    assert (late[0].worker, late[0].staleness, late[0].version) == (1, 1, 1)
    assert len(folded) + len(late) <= 2 * EPOCHS * SEAT_ROWS // BATCH
    assert {seat.status for seat in update.seats} == {"finished"}
    assert np.isfinite(run.driver.center()).all()
