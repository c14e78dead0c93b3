"""Several workers on one engine, against engines of their own."""

import numpy as np
import pytest

from distkeras_grid.feeding.batches import policy_of
from distkeras_grid.feeding.source import ArraySource
from distkeras_grid.rules import AccumulatedGradientRule, ElasticMomentumRule
from distkeras_grid.simulation.cluster import Cluster
from distkeras_grid.simulation.run import Simulation
from distkeras_grid.spec import ScheduleSpec
from tests.engines import engine_of
from tests.specs import simulated_spec

pytestmark = pytest.mark.tensorflow

WORKERS, ROWS = 3, 24


def compiled(optimizer="adam"):
    import keras

    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model


def engine(rule, optimizer="adam"):

    return engine_of(
        compiled(optimizer),
        block_shape=(2, 4),
        jit=False,
        local_steps=rule.traits.local_steps,
        momentum=rule.local_momentum,
    )


def shared(rule, optimizer="adam"):
    from distkeras_grid.simulation.shared_engine import SharedEngine

    return SharedEngine(engine(rule, optimizer), WORKERS, seed=11)


def seats():
    rng = np.random.default_rng(0)
    return [
        ArraySource([rng.normal(size=(ROWS, 5)).astype(np.float32)], [rng.integers(0, 3, ROWS)])
        for _ in range(WORKERS)
    ]


def simulated(rule, engine_of):
    rows = seats()
    terms = {"batch_size": 4, "window": 2, "epochs": 2, "seed": 3, "shuffle": True}
    spec = simulated_spec(rule, [engine_of(0)], rows, **terms)
    cluster = Cluster(WORKERS, batch_seconds=1.0, times="exponential")
    found = Simulation(cluster, spec, engine_of, rows)
    found.run()
    return found


@pytest.mark.full
@pytest.mark.parametrize(
    ("rule", "optimizer"),
    [
        (AccumulatedGradientRule(), "adam"),
        pytest.param(ElasticMomentumRule(0.25, momentum=0.5), "sgd", marks=pytest.mark.full),
    ],
)
def test_a_shared_engine_is_as_good_as_one_each(rule, optimizer):
    """Optimizer slots, dropout masks and all, bit for bit."""
    together = simulated(rule, shared(rule, optimizer).of)
    apart = [shared(rule, optimizer).of(worker) for worker in range(WORKERS)]
    own = simulated(rule, apart.__getitem__)
    np.testing.assert_array_equal(together.center, own.center)
    assert [*together.history.lines()] == [*own.history.lines()]
    assert (together.center != engine(rule, optimizer).weights()).mean() > 0.9


def test_workers_draw_dropout_masks_of_their_own():
    each = shared(AccumulatedGradientRule())
    states = [each.of(worker).state() for worker in (0, 1)]
    assert any((states[0][name] != states[1][name]).any() for name in states[0])


def test_another_attempt_begins_with_a_new_optimizer_at_its_place():
    each, rows = shared(AccumulatedGradientRule()), seats()[0]
    window = next(policy_of(ScheduleSpec(rows=ROWS, batch_size=4, window=2), ROWS, 0).windows())
    fresh = each.of(0).state()
    for worker in (0, 1):
        one = each.of(worker)
        after = np.empty(one.layout.size, np.float32)
        one.run(one.weights(), rows.blocks(window.blocks), after)
    each.of(0).restore(fresh)
    each.of(0).set_schedule_offset(5)
    state = each.of(0).state()
    changed = [name for name, array in state.items() if (array != fresh[name]).any()]
    # Nothing but where schedules go on, which comes last.
    assert changed == list(state)[-1:]
    assert state[changed[0]].tolist() == 5


def test_a_rate_is_the_workers_own():
    each = shared(AccumulatedGradientRule())
    each.of(0).set_learning_rate(0.5)
    rates = [[array.tolist() for array in each.of(worker).state().values()] for worker in (0, 1)]
    assert [0.5 in values for values in rates] == [True, False]
