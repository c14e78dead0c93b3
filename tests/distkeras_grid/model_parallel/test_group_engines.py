"""Towers, and stages, on several devices equal the model that they are on one process."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.array_tree import unpack
from distkeras_grid.engine.keras_model import model_from_bytes, model_to_bytes
from distkeras_grid.errors import ServerUnreachableError
from distkeras_grid.feeding.source import ArraySource
from distkeras_grid.spec import LimitsSpec
from tests.distkeras_grid.model_parallel.engines import placed_engine, towers_engine
from tests.distkeras_grid.model_parallel.helpers import PATIENT, wide

pytestmark = pytest.mark.tensorflow


def deep(optimizer="adam", normalized=False):
    import keras

    keras.utils.set_random_seed(3)
    layers = [keras.Input((5,)), keras.layers.Dense(7, activation="relu", name="one")]
    if normalized:
        layers += [keras.layers.BatchNormalization(name="norm"), keras.layers.Dropout(0.2, seed=1)]
    layers += [
        keras.layers.Dense(6, activation="tanh", name="two"),
        keras.layers.LayerNormalization(name="three"),
        keras.layers.Dense(3, activation="softmax", name="four"),
    ]
    model = keras.Sequential(layers)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def residual():
    import keras

    keras.utils.set_random_seed(4)
    given = keras.Input((5,))
    h = keras.layers.Dense(6, name="stem")(given)
    for number in range(2):
        side = keras.layers.Dense(6, activation="relu", name=f"side{number}")(h)
        h = keras.layers.Add(name=f"add{number}")([h, side])
    model = keras.Model(given, keras.layers.Dense(3, activation="softmax", name="out")(h))
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


class Stages:
    """A model cut after two layers; the device that is lost is the second one."""

    device = 2
    build = staticmethod(deep)

    @staticmethod
    def open(model, limits=PATIENT, dies=None):
        return placed_engine(model, ("one", "two"), limits=limits, dies=dies)


class TwoTowers:
    """A model of two towers, with normalization and dropout; one is on another device."""

    device = 1

    @staticmethod
    def build(optimizer="adam"):
        return wide(optimizer, count=2)[0]

    @staticmethod
    def open(model, limits=PATIENT, dies=None):
        return towers_engine(model_to_bytes(model), ("left", "middle"), limits, dies)


@pytest.fixture(params=[Stages, TwoTowers])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def blocks():
    random = np.random.default_rng(1)
    source = ArraySource([random.random((47, 5), np.float32)], [np.arange(47) % 3])
    # The last batch has fewer rows, which are not a multiple of the micro-batches.
    return lambda: source.blocks([np.arange(40).reshape(4, 10), np.arange(40, 47).reshape(1, 7)])


def whole_engine(model):
    from distkeras_grid.engine.tensorflow import TensorFlowEngine

    return TensorFlowEngine(model_from_bytes(model_to_bytes(model)), jit=False)


def trained(engine, blocks, windows=2):
    """The weights and the results of some windows, after a warm-up that leaves no trace."""
    engine.warm_up(next(blocks()))
    before, results = engine.weights(), []
    for _ in range(windows):
        after = np.empty_like(before)
        results.append(engine.run(before, blocks(), after))
        before = after
    return before, results


def check_same(model, opened, blocks, moves=True):
    whole = whole_engine(model)
    whole.set_learning_rate(0.02)
    weights, results = trained(whole, blocks)
    with opened as engine:
        assert engine.layout.size == weights.size
        engine.set_learning_rate(0.02)
        found, others = trained(engine, blocks)
        assert (engine.group.moved > 0) == moves
        # Also of other weights than those of the last window.
        tested = 0.5 * weights
        expected = whole.evaluate(tested, blocks())
        assert engine.evaluate(tested, blocks()) == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(found, weights, rtol=1e-4, atol=1e-5)
    for one, other in zip(results, others, strict=True):
        assert (one.steps, one.samples) == (other.steps, other.samples)
        assert one.loss == pytest.approx(other.loss, rel=1e-4)
        assert one.metrics == pytest.approx(other.metrics)


@pytest.mark.parametrize("optimizer", ["adam", pytest.param("sgd", marks=pytest.mark.full)])
def test_windows_give_the_weights_and_metrics_of_one_process(kind, optimizer, blocks):
    model = kind.build(optimizer)
    check_same(model, kind.open(model), blocks)


@pytest.mark.full
@pytest.mark.parametrize(
    "settings", [{"several": True}, {"count": 1}, {"optimizer": "adagrad", "count": 3}]
)
def test_other_towers_too(settings, blocks):
    model, names = wide(**settings)
    opened = towers_engine(model_to_bytes(model), names)
    check_same(model, opened, blocks, moves=len(names) > 1)


@pytest.mark.full
@pytest.mark.parametrize(
    ("model", "names", "micro_batches"),
    [
        (deep, (), 4),
        (lambda: deep("adagrad"), ("one",), 1),
        (lambda: deep(normalized=True), ("norm", "two"), 1),
        (residual, ("stem", "add0", "add1"), 5),
        (residual, ("add0",), 16),
    ],
)
def test_other_stages_too(model, names, micro_batches, blocks):
    """One stage; normalization and dropout with whole batches; more micro-batches than rows."""
    built = model()
    check_same(built, placed_engine(built, names, micro_batches), blocks, moves=bool(names))


@pytest.mark.full
def test_weights_of_samples_count_as_in_one_process():
    random = np.random.default_rng(1)
    weight = random.random(24).astype(np.float32)
    arrays = [random.random((24, 5), np.float32)], [np.arange(24) % 3]
    source = ArraySource(*arrays, weight)
    model, window = deep("sgd"), [np.arange(24).reshape(3, 8)]
    check_same(model, placed_engine(model, ("one",), 3), lambda: source.blocks(window))


def test_a_lost_device_ends_the_attempt_and_the_next_goes_on_from_the_window_before(kind, blocks):
    """With the state that the server keeps, as an undisturbed run, bit for bit."""
    model = kind.build("adam")
    with kind.open(model) as engine:
        weights, _ = trained(engine, blocks)
    with kind.open(model) as engine:
        middle, _ = trained(engine, blocks, windows=1)
        state = engine.state()
        engine.group._devices[1].drop("a test")
        with pytest.raises(ServerUnreachableError, match="since the last window"):
            engine.run(middle, blocks(), np.empty_like(middle))
    with kind.open(model) as engine:
        engine.warm_up(next(blocks()))
        assert engine.state().keys() == state.keys()
        engine.restore(state)
        after = np.empty_like(middle)
        engine.run(middle, blocks(), after)
    np.testing.assert_array_equal(after, weights)


@pytest.mark.parametrize("at", [2, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 3, 6))])
def test_a_device_that_dies_within_a_window_is_one_error_at_once(kind, at, blocks):
    """Whatever is asked afterwards is that error, too."""
    with kind.open(kind.build(), dies=kind.device) as engine:
        before, _ = trained(engine, blocks, windows=1)
        state = engine.state()
        engine.modules[-1].left = at
        for act in (
            lambda: engine.run(before, blocks(), np.empty_like(before)),
            lambda: engine.evaluate(before, blocks()),
            lambda: engine.warm_up(next(blocks())),
            engine.state,
            lambda: engine.restore(state),
            engine.weights,
            lambda: engine.set_schedule_offset(3),
            lambda: engine.set_learning_rate(0.1),
        ):
            with pytest.raises(ServerUnreachableError, match=rf"Device {kind.device} is lost"):
                act()


def test_a_window_that_fails_leaves_nothing_behind(kind, blocks):
    """The same window is the same again, though the devices have taken steps."""

    def broken():
        yield next(blocks())
        raise ZeroDivisionError

    with kind.open(kind.build("sgd")) as engine:
        before, _ = trained(engine, blocks, windows=1)
        state, found = engine.state(), []
        with pytest.raises(ZeroDivisionError):
            engine.run(before, broken(), np.empty_like(before))
        for _ in range(2):
            engine.restore(state)
            found.append(np.empty_like(before))
            engine.run(before, blocks(), found[-1])
    np.testing.assert_array_equal(*found)


def test_a_device_that_hangs_after_the_warm_up_ends_the_attempt_within_the_time_of_a_window(
    kind, blocks
):
    limits = LimitsSpec(start_timeout=60.0, round_timeout=0.1)
    with kind.open(kind.build("sgd"), limits) as engine:
        engine.warm_up(next(blocks()))
        before = engine.weights()
        engine.modules[-1].left, engine.modules[-1].silent = 0, True
        with pytest.raises(ServerUnreachableError, match=rf"Device {kind.device}\b.*round_timeout"):
            engine.run(before, blocks(), np.empty_like(before))


@pytest.mark.parametrize(("kind", "part"), [(Stages, "stage 0"), (TwoTowers, "tower 1")])
def test_where_schedules_go_on_the_optimizers_of_devices_stay_as_they_are(kind, part, blocks):
    with kind.open(kind.build("adam")) as engine:
        trained(engine, blocks, windows=1)
        before = engine.state()
        engine.set_schedule_offset(5)
        held, now = unpack(before[part]), unpack(engine.state()[part])
        changed = [key for key, array in held.items() if (array != now[key]).any()]
        # The place of schedules comes last.
        assert changed == list(held)[-1:]
        assert now[changed[0]] == 5
