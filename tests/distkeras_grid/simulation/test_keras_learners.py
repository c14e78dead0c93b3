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


def learners(rule, optimizer="adam", count=WORKERS):
    from distkeras_grid.simulation.keras_learners import keras_learners

    return keras_learners(engine(rule, optimizer), count, seed=11)


def seats():
    rng = np.random.default_rng(0)
    return [
        ArraySource([rng.normal(size=(ROWS, 5)).astype(np.float32)], [rng.integers(0, 3, ROWS)])
        for _ in range(WORKERS)
    ]


def simulation(rule, each, **cluster):
    rows, terms = seats(), {"batch_seconds": 1.0, "times": "exponential", **cluster}
    spec = simulated_spec(rule, each, rows, batch_size=4, window=2, epochs=2, seed=3, shuffle=True)
    return Simulation(Cluster(WORKERS, **terms), spec, each, rows)


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
    shared = simulation(rule, learners(rule, optimizer))
    shared.run()
    apart = [learners(rule, optimizer)[number] for number in range(WORKERS)]
    own = simulation(rule, apart)
    own.run()
    np.testing.assert_array_equal(shared.center, own.center)
    assert shared.history.to_jsonl_text() == own.history.to_jsonl_text()
    assert (shared.center != engine(rule, optimizer).weights()).mean() > 0.9


def test_workers_draw_dropout_masks_of_their_own():
    first, second, *_ = learners(AccumulatedGradientRule())
    states = [learner.state() for learner in (first, second)]
    assert any((states[0][name] != states[1][name]).any() for name in states[0])


def test_another_attempt_begins_with_a_new_optimizer_at_its_place():
    first, second, *_ = learners(AccumulatedGradientRule())
    rows = seats()[0]
    window = next(policy_of(ScheduleSpec(rows=ROWS, batch_size=4, window=2), ROWS, 0).windows())
    after = np.empty(first.layout.size, np.float32)
    fresh = first.state()
    first.run(first.weights(), rows.blocks(window.blocks), after)
    second.run(second.weights(), rows.blocks(window.blocks), after)
    first.restore(fresh)
    first.set_schedule_offset(5)
    state = first.state()
    changed = [name for name, array in state.items() if (array != fresh[name]).any()]
    # Nothing but where schedules go on, which comes last.
    assert changed == list(state)[-1:]
    assert state[changed[0]].tolist() == 5


def test_a_rate_is_the_learners_own():
    first, second, *_ = learners(AccumulatedGradientRule())
    first.set_learning_rate(0.5)
    assert 0.5 in [array.tolist() for array in first.state().values()]
    assert 0.5 not in [array.tolist() for array in second.state().values()]
