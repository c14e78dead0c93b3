"""Towers on several devices equal the model that they are on one process: W1 to W4."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.array_tree import unpack
from distkeras_grid.engine.keras_model import model_from_bytes, model_to_bytes
from distkeras_grid.errors import ConfigurationError, RefusedError, ServerUnreachableError
from distkeras_grid.feeding.source import ArraySource
from distkeras_grid.model_parallel.tower_model import places, stack
from distkeras_grid.model_parallel.towers import Towers, check_separable
from distkeras_grid.spec import LimitsSpec
from tests.distkeras_grid.model_parallel.engines import towers_engine
from tests.distkeras_grid.model_parallel.helpers import again

pytestmark = pytest.mark.tensorflow

NAMES = ("left", "middle", "right")


def tower(name, width=6):
    import keras

    layers = [
        keras.Input((5,)),
        keras.layers.Dense(width, activation="relu", use_bias=False),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.2, seed=width),
        keras.layers.Dense(4, name=f"{name}_out"),
    ]
    return keras.Sequential(layers, name=name)


def head(inputs=12, several=0):
    import keras

    if several:
        given = [keras.Input((4,)) for _ in range(several)]
        outputs = keras.layers.Dense(3, activation="softmax")(keras.layers.Add()(given))
        return keras.Model(given, outputs, name="head")
    layers = [keras.Input((inputs,)), keras.layers.Dense(3, activation="softmax")]
    return keras.Sequential(layers, name="head")


def wide(optimizer="adam", count=3, several=False):
    import keras

    keras.utils.set_random_seed(3)
    names = NAMES[:count]
    towers = [tower(name, 5 + n) for n, name in enumerate(names)]
    model = stack(towers, head(4 * count, several=count if several else 0))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, names


@pytest.fixture(scope="module")
def blocks():
    random = np.random.default_rng(1)
    source = ArraySource([random.random((40, 5), np.float32)], [np.arange(40) % 3])
    return lambda: source.blocks([np.arange(32).reshape(4, 8), np.arange(32, 40).reshape(1, 8)])


def whole_engine(archive):
    from distkeras_grid.engine.tensorflow import TensorFlowEngine

    return TensorFlowEngine(model_from_bytes(archive), jit=False)


def trained(engine, blocks, windows=3):
    """The weights and the results of some windows, after a warm-up that leaves no trace."""
    engine.warm_up(next(blocks()))
    before, results = engine.weights(), []
    for _ in range(windows):
        after = np.empty_like(before)
        results.append(engine.run(before, blocks(), after))
        before = after
    return before, results


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"several": True}, marks=pytest.mark.full),
        pytest.param({"count": 1}, marks=pytest.mark.full),
        pytest.param({"optimizer": "adagrad", "count": 2}, marks=pytest.mark.full),
    ],
)
def test_windows_give_the_weights_and_metrics_of_one_process(settings, blocks):
    """W1 and W4, with normalization and dropout in the towers; W3 with a single tower."""
    model, names = wide(**settings)
    archive = model_to_bytes(model)
    weights, results = trained(whole_engine(archive), blocks)
    with towers_engine(archive, names) as engine:
        assert engine.layout.size == weights.size
        found, others = trained(engine, blocks)
        assert (engine.members.moved > 0) == (len(names) > 1)
    np.testing.assert_allclose(found, weights, rtol=1e-4, atol=1e-5)
    for one, other in zip(results, others, strict=True):
        assert (one.steps, one.samples) == (other.steps, other.samples)
        assert one.loss == pytest.approx(other.loss, rel=1e-4)
        assert one.metrics == pytest.approx(other.metrics)


@pytest.mark.full
def test_the_rate_that_is_set_is_that_of_all_towers(blocks):
    model, names = wide("sgd", count=2)
    archive = model_to_bytes(model)
    whole = whole_engine(archive)
    whole.set_learning_rate(0.5)
    weights, _ = trained(whole, blocks, windows=1)
    with towers_engine(archive, names) as engine:
        engine.set_learning_rate(0.5)
        found, _ = trained(engine, blocks, windows=1)
    np.testing.assert_allclose(found, weights, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_a_lost_tower_ends_the_attempt_and_the_next_goes_on_from_the_window_before(blocks):
    """With the state that the server keeps, the weights are those of an undisturbed run."""
    model, names = wide("adam", count=2)
    archive = model_to_bytes(model)
    weights, _ = trained(whole_engine(archive), blocks, windows=2)
    with towers_engine(archive, names) as engine:
        middle, _ = trained(engine, blocks, windows=1)
        state = engine.state()
        engine.members.drop(1, "a test")
        with pytest.raises(ServerUnreachableError, match="since the last window"):
            engine.run(middle, blocks(), np.empty_like(middle))
    with towers_engine(archive, names) as engine:
        engine.warm_up(next(blocks()))
        assert engine.state().keys() == state.keys()
        engine.restore(state)
        after = np.empty_like(middle)
        engine.run(middle, blocks(), after)
    np.testing.assert_allclose(after, weights, rtol=1e-4, atol=1e-5)


def test_where_schedules_go_on_the_optimizers_of_towers_stay_as_they_are(blocks):
    model, names = wide("adam", count=2)
    with towers_engine(model_to_bytes(model), names) as engine:
        trained(engine, blocks, windows=1)
        before = engine.state()
        engine.set_schedule_offset(5)
        after = engine.state()
        held, now = unpack(before["tower 1"]), unpack(after["tower 1"])
        changed = [key for key, array in held.items() if (array != now[key]).any()]
        # The place of schedules comes last.
        assert changed == list(held)[-1:]
        assert now[changed[0]] == 5


def test_tests_see_all_towers_and_the_training_goes_on_as_before(blocks):
    """Tests of other weights than those of the last window, too."""
    model, names = wide("sgd", count=2)
    archive = model_to_bytes(model)
    whole = whole_engine(archive)
    weights, _ = trained(whole, blocks, windows=1)
    tested = 0.5 * weights
    expected = whole.evaluate(tested, blocks())
    after, found = np.empty_like(weights), np.empty_like(weights)
    whole.run(weights, blocks(), after)
    with towers_engine(archive, names) as engine:
        middle, _ = trained(engine, blocks, windows=1)
        assert engine.evaluate(tested, blocks()) == pytest.approx(expected, rel=1e-4)
        engine.run(middle, blocks(), found)
    np.testing.assert_allclose(found, after, rtol=1e-4, atol=1e-5)


def test_a_window_that_fails_leaves_nothing_behind(blocks):
    """The same window is the same again, though the towers have taken steps."""
    model, names = wide("sgd", count=2)

    def broken():
        yield next(blocks())
        raise ZeroDivisionError

    with towers_engine(model_to_bytes(model), names) as engine:
        before, _ = trained(engine, blocks, windows=1)
        state, found = engine.state(), []
        with pytest.raises(ZeroDivisionError):
            engine.run(before, broken(), np.empty_like(before))
        for _ in range(2):
            engine.restore(state)
            found.append(np.empty_like(before))
            engine.run(before, blocks(), found[-1])
    np.testing.assert_array_equal(*found)


def test_a_tower_that_connects_again_does_not_go_on_with_its_first_weights(blocks):
    """Nothing was asked while it was away, so the master has no other sign of it."""
    model, names = wide("sgd", count=2)
    with towers_engine(model_to_bytes(model), names) as engine:
        before, _ = trained(engine, blocks, windows=1)
        state = engine.state()
        engine.members.drop(1, "a test")
        with pytest.raises(RefusedError):
            again(engine.members, 1, engine.computers[0])
        for act in (
            lambda: engine.run(before, blocks(), np.empty_like(before)),
            lambda: engine.warm_up(next(blocks())),
            engine.state,
            lambda: engine.restore(state),
            engine.weights,
            lambda: engine.set_schedule_offset(3),
            lambda: engine.set_learning_rate(0.1),
        ):
            with pytest.raises(ServerUnreachableError):
                act()


@pytest.mark.full
@pytest.mark.parametrize("at", [0, 1, 2, 10])
def test_a_tower_that_dies_within_a_window_ends_the_attempt(at, blocks):
    model, names = wide("sgd", count=2)
    with towers_engine(model_to_bytes(model), names) as engine:
        before, _ = trained(engine, blocks, windows=1)
        engine.computers[0].left = at
        with pytest.raises(ServerUnreachableError):
            engine.run(before, blocks(), np.empty_like(before))


def test_a_tower_that_hangs_after_the_warm_up_ends_the_attempt_within_the_time_of_a_window(blocks):
    model, names = wide("sgd", count=2)
    limits = LimitsSpec(start_timeout=60.0, round_timeout=0.1)
    with towers_engine(model_to_bytes(model), names, limits) as engine:
        engine.warm_up(next(blocks()))
        before = engine.weights()
        engine.computers[0].left, engine.computers[0].silent = 0, True
        with pytest.raises(ServerUnreachableError, match=r"device 1\b.*round_timeout"):
            engine.run(before, blocks(), np.empty_like(before))


def test_towers_may_change_places_with_their_rows_of_the_master(blocks):
    """W2."""
    model, names = wide()
    x = next(blocks()).x[0][0]
    expected = model(x)
    towers = [model.get_layer(name) for name in names]
    kernel, bias = model.get_layer("head").get_weights()
    order = (2, 0, 1)
    other = stack([towers[n] for n in order], head())
    rows = np.concatenate([kernel[4 * n : 4 * n + 4] for n in order])
    other.get_layer("head").set_weights([rows, bias])
    np.testing.assert_allclose(other(x), expected, rtol=1e-5, atol=1e-6)


def test_each_weight_has_one_place():
    model, names = wide()
    parts = [model.get_layer(name) for name in (*names, "head")]
    found = np.concatenate([places(model, part) for part in parts])
    assert sorted(found) == list(range(found.size))


@pytest.mark.parametrize(
    ("towers", "several"),
    [
        (lambda: [], 0),
        (lambda: [tower("same"), tower("same")], 0),
        (lambda: [tower("a"), tower("b")], 3),
        (lambda: [object()], 0),
    ],
)
def test_models_that_do_not_fit_each_other_are_refused(towers, several):
    with pytest.raises(ConfigurationError):
        stack(towers(), head(8, several=several))


def alone(*layers, name="a"):
    import keras

    return keras.Sequential([keras.Input((5,)), *layers], name=name)


@pytest.mark.parametrize("settings", [{"kernel_regularizer": "l2"}, {"activity_regularizer": "l2"}])
def test_a_tower_that_adds_losses_is_refused(settings):
    import keras

    with pytest.raises(ConfigurationError, match="adds losses"):
        stack([alone(keras.layers.Dense(4, **settings))], head(4))


def test_a_tower_with_add_loss_is_refused():
    import keras

    class Adds(keras.layers.Layer):
        def call(self, x, training=False):
            if training:
                self.add_loss(keras.ops.mean(x))
            return x

    with pytest.raises(ConfigurationError, match="adds losses"):
        stack([alone(keras.layers.Dense(4), Adds())], head(4))


def test_a_tower_whose_mask_would_not_travel_is_refused():
    """One that uses its mask up is not."""
    import keras

    layers = keras.layers

    def words():
        return layers.Embedding(9, 3, mask_zero=True)

    joins = keras.Sequential(
        [keras.Input((5, 3)), layers.GlobalAveragePooling1D(), layers.Dense(2)], name="head"
    )
    for tower in (alone(words()), alone(words(), layers.Dense(3), layers.Dropout(0.1))):
        with pytest.raises(ConfigurationError, match="mask"):
            stack([tower], joins)
    stack([alone(words(), layers.GlobalAveragePooling1D())], head(3))
    stack([alone(layers.Embedding(9, 3))], joins)


def test_models_that_share_a_layer_are_refused_by_its_name():
    """Each would train a copy of its own. A layer without variables may be shared."""
    import keras

    layers = keras.layers
    shared = layers.Dense(5, name="common")
    seeded = layers.Dropout(0.1, seed=1, name="common")
    nested = keras.Sequential([keras.Input((5,)), layers.Dense(5, name="common")])
    for each in (shared, seeded, nested):
        one, other = (alone(each, layers.Dense(5), name=name) for name in ("a", "b"))
        with pytest.raises(ConfigurationError, match=r"'a' and 'b'.*common"):
            stack([one, other], head(10))
    master = keras.Sequential([keras.Input((5,)), shared], name="head")
    with pytest.raises(ConfigurationError, match=r"'a' and 'head'.*common"):
        stack([alone(shared)], master)
    plain = layers.ReLU()
    stack([alone(layers.Dense(4), plain, name=name) for name in ("a", "b")], head(8))


def test_optimizers_that_look_at_all_gradients_are_refused():
    import keras

    with pytest.raises(ConfigurationError, match="global norm"):
        check_separable(keras.optimizers.Adam(global_clipnorm=1.0))
    with pytest.raises(ConfigurationError, match="holds others"):
        check_separable(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
    check_separable(keras.optimizers.Adam(clipnorm=1.0))


def test_the_trainer_takes_towers_and_tells_its_arguments():
    towers = [tower("a"), tower("b")]
    trainer = Towers(towers, head(8), "adam", "sparse_categorical_crossentropy")
    assert trainer.arguments() == {"towers": ["a", "b"], "master": "head"}
    assert "keras_model" not in trainer.get_params()
    assert trainer.workers_asked == 1
    with pytest.raises(ConfigurationError, match="num_workers"):
        Towers(towers, head(8), "adam", "mse", num_workers=3)


@pytest.mark.full
@pytest.mark.spark
def test_towers_on_workers_are_trained_as_fit_trains_the_whole(spark):
    import keras

    random = np.random.default_rng(2)
    x, y = random.random((96, 5), np.float32), np.arange(96) % 3
    keras.utils.set_random_seed(3)
    plain = [
        keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, "relu")], name=name)
        for name in ("a", "b")
    ]
    master = head(16)
    trainer = Towers(
        plain,
        master,
        keras.optimizers.SGD(0.1, momentum=0.9),
        "sparse_categorical_crossentropy",
        ["accuracy"],
        batch_size=16,
        num_epoch=2,
        features_col="x",
        progress=False,
    )
    expected = stack(plain, master)
    expected = keras.models.clone_model(expected)
    expected.set_weights(trainer.keras_model.get_weights())
    expected.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    history = expected.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    table = [(row.tolist(), int(label)) for row, label in zip(x, y, strict=True)]
    rows = spark.createDataFrame(table, "x array<float>, label int").coalesce(1)
    model = trainer.train(rows, shuffle=False, validation_data=rows, seed=1)
    for one, other in zip(expected.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert trainer.history.history["accuracy"] == pytest.approx(history.history["accuracy"])
    assert any("moved" in line for line in trainer.run["devices"])
