import numpy as np
import pytest

from distkeras_grid.engine.keras_model import (
    get_flat_weights,
    initial_weights,
    model_from_bytes,
    model_to_bytes,
    seed_generators,
    set_flat_weights,
    weight_layout,
)
from distkeras_grid.errors import ConfigurationError
from tests.engines import keras

pytestmark = pytest.mark.tensorflow


def net(**options):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(3, name="first", **options),
            layers.BatchNormalization(name="norm"),
            layers.Dropout(0.5),
            layers.Dense(2, name="last"),
        ]
    )


def frozen():
    model = net()
    model.trainable = False
    return model


def names(variables):
    return ["/".join(v.path.split("/")[-2:]) for v in variables]


def test_vector_holds_trainable_variables_then_statistics():
    layout = weight_layout(net())
    assert names(layout.trainable) == [
        "first/kernel",
        "first/bias",
        "norm/gamma",
        "norm/beta",
        "last/kernel",
        "last/bias",
    ]
    assert names(layout.statistics) == ["norm/moving_mean", "norm/moving_variance"]
    assert (layout.trainable_size, layout.statistics_size) == (29, 6)


def test_frozen_layers_are_not_in_the_vector_at_any_depth():
    model = keras.Sequential([keras.Input((4,)), frozen(), keras.layers.Dense(1, name="head")])
    layout = weight_layout(model)
    assert names(layout.trainable) == ["head/kernel", "head/bias"]
    assert layout.statistics == ()


def test_flat_weights_come_back():
    model = net()
    vector = np.random.default_rng(0).normal(size=35).astype(np.float32)
    set_flat_weights(model, vector)
    assert np.array_equal(get_flat_weights(model), vector)
    assert np.array_equal(model.get_layer("first").kernel.numpy().ravel(), vector[:12])
    assert np.array_equal(model.get_layer("norm").moving_variance.numpy(), vector[-3:])


def test_model_comes_back_from_bytes_with_its_compile_optimizer_and_random_generators():
    model = net()
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(np.ones((4, 4)), np.ones((4, 2)), verbose=0)
    back = model_from_bytes(model_to_bytes(model))
    assert np.array_equal(get_flat_weights(back), get_flat_weights(model))
    assert back.loss == "mse"
    assert int(back.optimizer.iterations) == 1
    pairs = zip(model.optimizer.variables, back.optimizer.variables, strict=True)
    assert all(np.array_equal(ours.numpy(), theirs.numpy()) for ours, theirs in pairs)
    (ours,), (theirs,) = seed_generators(model), seed_generators(back)
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_own_layers_travel_by_custom_objects():
    class Twice(keras.layers.Layer):
        def call(self, x):
            return 2 * x

    model = keras.Sequential([keras.Input((4,)), Twice(), keras.layers.Dense(1)])
    archive = model_to_bytes(model)
    assert isinstance(model_from_bytes(archive, {"Twice": Twice}).layers[0], Twice)
    with pytest.raises(ConfigurationError, match=r"Twice[\s\S]*custom_objects=\[\]"):
        model_from_bytes(archive)


def test_classes_that_keras_would_build_otherwise_are_refused_by_name():
    class Halved(keras.Model):
        def __init__(self, factor=0.5, **options):
            super().__init__(**options)
            self.factor, self.dense = factor, keras.layers.Dense(1)

        def call(self, x):
            return self.factor * self.dense(x)

    class Told(Halved):
        def get_config(self):
            return {**super().get_config(), "factor": self.factor}

    class Bare(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

    class Functional(keras.Model):
        def __init__(self, *args, rate=0.1, **options):
            super().__init__(*args, **options)
            self.rate = rate

    class Dense(keras.layers.Dense):
        def __init__(self, units, factor=1.0, **options):
            super().__init__(units, **options)
            self.factor = factor

    halved, told, bare = Halved(0.1), Told(0.1), Bare()
    for model in (halved, told, bare):
        model(np.ones((1, 4)))
    inputs = keras.Input((4,))
    functional = Functional(inputs, keras.layers.Dense(1)(inputs), rate=0.7)
    with pytest.raises(ConfigurationError, match=r"rate Functional.*get_config"):
        model_to_bytes(functional)
    with pytest.raises(ConfigurationError, match=r"factor Dense.*get_config"):
        model_to_bytes(keras.Sequential([inputs, Dense(1, 2.0)]))
    assert model_from_bytes(model_to_bytes(told), {"Told": Told}).factor == 0.1
    with pytest.raises(ConfigurationError, match=r"factor Halved.*get_config"):
        model_to_bytes(halved)
    with pytest.raises(ConfigurationError, match=r"\*\*kwargs.*get_config"):
        model_from_bytes(model_to_bytes(bare), {"Bare": Bare})


def test_a_sequential_model_that_makes_its_own_layers_is_refused():
    """Keras told of an argument `name`, or of a second input; get_config() helps in no case."""
    import keras

    class Made(keras.Sequential):
        def __init__(self):
            super().__init__([keras.Input((4,)), keras.layers.Dense(1)])

    class Rebuilt(Made):
        @classmethod
        def from_config(cls, _):
            return cls()

    class Passed(keras.Sequential):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)

    class Given(keras.Sequential):
        def __init__(self, layers=None, name=None):
            super().__init__(layers, name=name)

    class Scaled(Given):
        def __init__(self, layers=None, name=None, factor=1.0):
            super().__init__(layers, name)
            self.factor = factor

    with pytest.raises(ConfigurationError, match=r"Made again by its name.*function"):
        model_to_bytes(Made())
    with pytest.raises(ConfigurationError, match=r"which factor Scaled was built"):
        model_to_bytes(Scaled([keras.Input((4,)), keras.layers.Dense(1)]))
    for kind in (Passed, Given):
        archive = model_to_bytes(kind([keras.Input((4,)), keras.layers.Dense(1)]))
        assert len(model_from_bytes(archive, {kind.__name__: kind}).layers) == 1
    assert len(model_from_bytes(model_to_bytes(Rebuilt()), {"Rebuilt": Rebuilt}).layers) == 1


def test_damaged_archive_is_refused():
    model = net()
    with pytest.raises(ConfigurationError, match="cannot load"):
        model_from_bytes(model_to_bytes(model)[:500])


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: keras.Sequential([keras.layers.Dense(2)]), "no weights yet"),
        (lambda: net(dtype="float16"), "float16"),
        (frozen, "no trainable weights"),
    ],
)
def test_models_whose_weights_cannot_be_trained_are_refused(build, words):
    with pytest.raises(ConfigurationError, match=words):
        weight_layout(build())


def test_a_fresh_start_leaves_what_was_adapted_and_resets_what_was_learned():
    layers = keras.layers
    scale = layers.Normalization(name="scale")
    scale.adapt(np.array([[100.0], [120.0]], np.float32))
    model = keras.Sequential(
        [keras.Input((1,)), scale, layers.Dense(2), layers.BatchNormalization(name="norm")]
    )
    model.get_layer("norm").moving_mean.assign([5.0, 5.0])
    member = model_from_bytes(model_to_bytes(model))
    set_flat_weights(member, initial_weights(model, (7, 1)))
    assert np.abs(np.subtract(member.layers[1].kernel, model.layers[1].kernel)).max() > 0
    assert np.all(member.get_layer("norm").moving_mean == 0)
    x = np.array([[90.0], [130.0]], np.float32)
    sent = model_from_bytes(model_to_bytes(member))
    np.testing.assert_array_equal(sent.predict(x, verbose=0), member.predict(x, verbose=0))
    np.testing.assert_array_equal(member.get_layer("scale").adapt_mean, scale.adapt_mean)
