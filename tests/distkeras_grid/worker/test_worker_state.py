"""What workers keep beside the center, and attempts that go on from it: a real server, real rules.

The engine is the quadratic one with momentum: an attempt that begins with a new velocity ends
elsewhere.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from functools import partial

import numpy as np
import pytest

from distkeras_grid.array_tree import pack
from distkeras_grid.errors import DataError
from distkeras_grid.feeding.batches import EpochSampler
from distkeras_grid.feeding.source import ArraySource
from distkeras_grid.records import WorkerRecord
from distkeras_grid.rules import DeepGradientCompression, accumulators, build_rule
from distkeras_grid.spec import LayoutSpec
from distkeras_grid.worker.loop import train
from distkeras_grid.worker.worker_core import WorkerCore
from distkeras_grid.worker.worker_state import WorkerState, copy_checked
from tests.distkeras_grid.parameter_server.conftest import Bench
from tests.engines import engine_of
from tests.policies import Chosen
from tests.quadratic_learner import QuadraticLearner
from tests.specs import make_settings

ROWS, EPOCHS, SIZE = 10, 3, 4
PLAN = EpochSampler(rows=ROWS, batch_size=2, window=1, epochs=EPOCHS, seed=1)
WINDOWS = 15
TARGETS = np.random.default_rng(3).normal(size=(ROWS, SIZE)).astype(np.float32)
RULES = {"elastic": {"alpha": 0.5}}


class Death(Exception):
    """The worker's process is gone."""


def own(**changes):
    vector = np.arange(4, dtype=np.float32)
    fields = {"before": vector, "offset": 3, "residuals": None, "engine": {"0": np.array(7)}}
    return WorkerState(**{**fields, **changes})


def test_a_state_comes_back_as_it_was():
    held = {"residual": np.ones(3, np.float32), "velocity": np.empty(0, np.float32)}
    found = WorkerState.from_bytes(own(residuals=held).to_bytes())
    assert found.offset == 3
    np.testing.assert_array_equal(found.before, own().before)
    np.testing.assert_array_equal(found.residuals["residual"], held["residual"])
    assert found.engine["0"] == 7


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"before": [1.0], "offset": 0, "residuals": None, "engine": {}},
        {"before": np.ones(2), "offset": -1, "residuals": None, "engine": {}},
        {"before": np.ones(2), "offset": 0, "residuals": [], "engine": {}},
        {"before": np.ones(2), "offset": 0, "residuals": None, "engine": {"0": 3}},
        {"before": np.ones(2), "offset": 0, "residuals": None, "engine": {}, "more": 1},
    ],
)
def test_what_is_no_state_is_refused(tree):
    with pytest.raises(DataError):
        WorkerState.from_bytes(pack(tree))


@pytest.mark.parametrize(
    "source", [{}, {"a": np.ones(3)}, {"a": np.ones(2, np.float32)}, {"b": np.ones(2)}]
)
def test_arrays_of_another_model_are_refused_whole(source):
    target = {"a": np.zeros(2)}
    with pytest.raises(DataError):
        copy_checked(target, source)
    assert not target["a"].any()


class Seat(Bench):
    """A server of one seat and its workers; attempts share nothing but the server."""

    def __init__(self, stack, name, compression=None, engine=None):
        self.rule, self.compression = build_rule(name, RULES.get(name, {})), compression
        traits = self.rule.traits
        self.engine = engine or partial(
            QuadraticLearner,
            *(np.ones(SIZE, np.float32), 1.0, 0.1, 0.9),
            local_steps=traits.local_steps,
        )
        first = self.engine()
        settings = make_settings(
            rule=self.rule,
            layout=LayoutSpec.of(
                first.layout,
                first.step_section if traits.steps_on_workers else None,
                worker_state_limit=1 << 16,
            ),
            rows=ROWS,
            epochs=EPOCHS,
            compression=compression,
        )
        super().__init__(stack, settings, first.weights())
        self.watching = self.driver()

    def train(self, attempt=0, until=WINDOWS):
        """Train; the attempt dies in window `until`."""
        rows, current = ArraySource([TARGETS], [np.zeros(ROWS)]), []

        class Rows:
            def __len__(self):
                return ROWS

            def blocks(self, window):
                if current[-1] == until:
                    raise Death
                return rows.blocks(window)

        def windows(left):
            for window in left:
                current.append(window.sequence)
                yield window

        client, engine = self.worker(attempt=attempt), self.engine()
        start = client.ready(ROWS)
        held = accumulators(self.compression, engine.layout)
        plan = Chosen(PLAN, windows)
        core = WorkerCore(0, self.rule, engine.layout, plan, accumulator=held)
        with suppress(Death):
            train(core, engine, client, start, Rows())
        client.close()

    def continued(self):
        return [
            (event.windows, event.state_windows)
            for event in self.watching.poll(5).events
            if isinstance(event, WorkerRecord) and event.status == "continued"
        ]


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def always(monkeypatch):
    """Let the server ask in each reply."""
    monkeypatch.setattr("distkeras_grid.parameter_server.worker_state_store.SHARE", 1e9)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("rule", "compression"),
    [
        ("elastic", None),
        ("downpour", "bfloat16"),
        ("mean_gradient", DeepGradientCompression(0.5, 0.5, warm_up_epochs=0)),
    ],
)
def test_attempts_that_are_lost_leave_no_trace(stack, rule, compression):
    undisturbed, lost = (Seat(stack, rule, compression) for _ in range(2))
    undisturbed.train()
    for attempt, until in enumerate([1, 2, 7, 14, WINDOWS]):
        lost.train(attempt, until)
    np.testing.assert_array_equal(lost.watching.center(), undisturbed.watching.center())
    assert lost.continued() == [(1, 1), (2, 2), (7, 7), (14, 14)]


@pytest.mark.full
@pytest.mark.tensorflow
@pytest.mark.usefixtures("always")
def test_adam_dropout_and_batch_normalization_go_on_as_if_nothing_had_happened(stack):

    def engine():
        import keras

        keras.utils.set_random_seed(2)
        layers = [
            keras.Input((SIZE,)),
            keras.layers.Dense(6, "tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
        model = keras.Sequential(layers)
        rate = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.7)
        model.compile(optimizer=keras.optimizers.Adam(rate), loss="mse")
        return engine_of(model, block_shape=(1, 2))

    undisturbed, lost = (Seat(stack, "downpour", engine=engine) for _ in range(2))
    undisturbed.train()
    for attempt, until in enumerate([3, 8, WINDOWS]):
        lost.train(attempt, until)
    assert lost.continued() == [(3, 3), (8, 8)]
    np.testing.assert_array_equal(lost.watching.center(), undisturbed.watching.center())
