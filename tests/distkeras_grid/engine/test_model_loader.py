import logging
import os
import subprocess
import sys

import numpy as np
import pytest

from distkeras_grid.engine import model_loader
from distkeras_grid.engine.keras_model import get_flat_weights, model_to_bytes
from distkeras_grid.engine.model_loader import load_engine
from distkeras_grid.engine.tensorflow import _without_notices, prepare_process
from distkeras_grid.rows import RowBlock
from distkeras_grid.rules import LocalSteps
from tests.engines import keras

pytestmark = pytest.mark.tensorflow

OPTIONS = {"scaling": ((0.5, 0.1),), "block_shape": (4, 3)}


@pytest.fixture
def model():
    model = keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(8, "relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5, seed=3),
            keras.layers.Dense(2),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    return model


@pytest.fixture
def archive(model):
    return model_to_bytes(model)


@pytest.fixture(autouse=True)
def empty_cache():
    model_loader._engines.clear()


def load(archive, **options):
    return load_engine(archive, **{**OPTIONS, **options})


def train(engine):
    rng = np.random.default_rng(1)
    block = RowBlock(
        (rng.normal(size=(4, 3, 5)),), (rng.normal(size=(4, 3, 2)).astype(np.float32),)
    )
    last = block.part(slice(1), slice(2))
    vector, after = engine.weights(), np.empty(engine.layout.size, np.float32)
    results = []
    for _ in range(3):
        results.append(engine.run(vector, [block, last], after))
        vector, after = after, vector
    return vector.copy(), results


@pytest.mark.full
@pytest.mark.parametrize("jit", [True, False])
def test_kept_engine_gives_the_same_bits_again(archive, jit):
    engine = load(archive, jit=jit)
    weights, results = train(engine)
    engine.set_learning_rate(0.5)
    train(engine)
    again = load(archive, jit=jit)
    assert again is engine
    assert int(again.model.optimizer.iterations) == 0
    weights_again, results_again = train(again)
    assert np.array_equal(weights_again, weights)
    assert results_again == results


def test_kept_engine_takes_the_weights_and_the_optimizer_of_the_new_archive(model, archive):
    engine = load(archive)
    model.fit(np.ones((4, 5)), np.ones((4, 2)), verbose=0)
    assert load(model_to_bytes(model)) is engine
    assert int(engine.model.optimizer.iterations) == 1
    assert np.array_equal(engine.weights(), get_flat_weights(model))


@pytest.mark.parametrize(
    "change",
    [
        {"scaling": ((0.25, 0.1),)},
        {"block_shape": (5, 3)},
        {"jit": False},
        {"local_steps": LocalSteps.NONE},
    ],
)
def test_other_settings_are_another_engine(archive, change):
    engine = load(archive)
    assert load(archive, **change) is not engine
    assert load(archive) is engine


@pytest.mark.parametrize("change", [{"optimizer": "sgd"}, {"metrics": ["mse"]}])
def test_a_model_that_is_compiled_otherwise_is_another_engine(model, archive, change):
    engine = load(archive)
    model.compile(**{"optimizer": "adam", "loss": "mse", "metrics": ["mae"], **change})
    assert load(model_to_bytes(model)) is not engine
    assert load(archive) is engine


def adapted(kind, data):
    layers = keras.layers
    if kind == "Normalization":
        layer, after, dtype = layers.Normalization(name="adapted"), [], "float32"
    else:
        layer = layers.IntegerLookup(max_tokens=6, name="adapted")
        after, dtype = [layers.Embedding(6, 2), layers.Flatten()], "int64"
    layer.adapt(np.array(data, dtype))
    model = keras.Sequential(
        [keras.Input((1,), dtype=dtype), layer, *after, layers.Dense(1, name="out")], name="net"
    )
    model.compile(keras.optimizers.SGD(0.1, name="sgd"), "mse")
    return model


@pytest.mark.parametrize("kind", ["Normalization", "IntegerLookup"])
def test_a_layer_that_is_adapted_anew_is_not_that_of_a_kept_engine(kind):
    model = adapted(kind, [[1], [1], [2], [3]])
    options = {"scaling": (), "block_shape": (1, 4)}
    engine = load(model_to_bytes(model), **options)
    x, y = np.array([30, 20, 10, 30], "int64"), np.arange(4, dtype=np.float32)
    if kind == "Normalization":
        x = x.astype(np.float32)
    block = RowBlock((x.reshape(1, 4, 1),), (y.reshape(1, 4, 1),))
    engine.run(engine.weights(), [block], np.empty(engine.layout.size, np.float32))
    model.get_layer("adapted").adapt(np.array([[30], [30], [20], [10]], x.dtype))
    again = load(model_to_bytes(model), **options)
    result = again.run(again.weights(), [block], np.empty(engine.layout.size, np.float32))
    fitted = model.fit(x[:, None], y[:, None], batch_size=4, verbose=0).history
    assert result.loss == pytest.approx(fitted["loss"][0], rel=1e-6)


def test_engines_with_the_users_own_code_are_not_kept(archive):
    engine = load(archive, custom_objects={"mine": object})
    assert load(archive, custom_objects={"mine": object}) is not engine


def test_the_oldest_engine_goes(archive):
    engine = load(archive, scaling=((1.0, 0.1),))
    load(archive, scaling=((2.0, 0.1),))
    load(archive, scaling=((3.0, 0.1),))
    assert load(archive, scaling=((1.0, 0.1),)) is not engine


def test_other_threads_in_a_running_process_are_a_warning(caplog):
    import tensorflow as tf

    tf.constant(0) + 1
    in_force = tf.config.threading.get_intra_op_parallelism_threads()
    with caplog.at_level(logging.WARNING):
        assert prepare_process(in_force + 3) == in_force
    assert f"{in_force + 3} were asked for" in caplog.text
    caplog.clear()


@pytest.mark.full
def test_threads_are_in_force_in_a_fresh_process_and_the_same_number_goes_on():
    code = """
from distkeras_grid.engine.tensorflow import prepare_process
assert prepare_process(1) == 1
import os, tensorflow as tf
tf.constant(0) + 1
assert prepare_process(1) == 1
print(tf.config.threading.get_intra_op_parallelism_threads(), os.environ["OMP_NUM_THREADS"])
"""
    environment = {
        k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "TF_CPP_MIN_LOG_LEVEL")
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment,
    )
    assert done.stdout.split() == ["1", "1"], done.stderr
    assert "were asked for" not in done.stderr
    assert "oneDNN" not in done.stderr


def test_only_notices_are_held_back_while_tensorflow_is_imported(capfd, monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    with _without_notices():
        os.write(2, b"I0000 00:00:17 1 port.cc:153] oneDNN custom operations are on.\nE0000 bad\n")
    assert capfd.readouterr().err == "E0000 bad\n"
