"""What holds for the PyTorch engine alone; `test_keras_engine.py` has what holds for all."""

import numpy as np
import pytest

from distkeras_grid.engine.registry import configured_backend
from distkeras_grid.errors import ConfigurationError
from tests.distkeras_grid.engine.test_keras_engine import compiled, engine_for, images, train
from tests.engines import keras

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(
        configured_backend() != "torch",
        reason="Keras does not run on PyTorch here (tests/contracts/test_backends.py starts it)",
    ),
]


def random_net(seed=None):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(8, "relu"),
            layers.Dropout(0.3, seed=seed),
            layers.Dense(3, "softmax"),
        ]
    )


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_recorded_step_has_the_bits_of_kerass_own(optimizer):
    recorded = engine_for(compiled(random_net, optimizer))
    own = engine_for(compiled(random_net, optimizer), jit=False)
    assert recorded.jit
    assert not own.jit
    arrays = images(rows=200)
    (weights, results), (expected, told) = (train(engine, arrays) for engine in (recorded, own))
    np.testing.assert_array_equal(weights, expected)
    assert results == told
    assert len(recorded._recorded) == 1  # a shorter batch is not recorded
    for one, other in zip(recorded.state().values(), own.state().values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_each_window_drops_other_units_and_leaves_the_generator_of_the_process():
    import torch

    def net():
        layers = [keras.Input((6, 6, 1)), keras.layers.Flatten(), keras.layers.Dropout(0.5)]
        return keras.Sequential([*layers, keras.layers.Dense(3, "softmax")])

    engine = engine_for(compiled(net, keras.optimizers.SGD(0.0)))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    x, y = images(rows=56)
    losses = [train(engine, (x, y))[1][0].loss for _ in range(3)]
    assert len(set(losses)) == 3
    assert torch.equal(torch.get_rng_state(), before)


def test_a_layer_that_reads_its_seed_is_not_recorded():
    assert not engine_for(compiled(lambda: random_net(3), "sgd")).jit
    engine = engine_for(compiled(lambda: random_net(3), "sgd"), jit=True)
    start = engine.weights()
    state = {name: array.copy() for name, array in engine.state().items()}
    with pytest.raises(ConfigurationError, match="jit=False"):
        train(engine, images(rows=60))
    np.testing.assert_array_equal(engine.weights(), start)
    for name, array in engine.state().items():
        np.testing.assert_array_equal(array, state[name])
    assert "apply" not in vars(engine.model.optimizer)
