import json

import numpy as np
import pytest

from distkeras_grid.engine.compile_settings import CompileSettings, compile_model
from distkeras_grid.errors import ConfigurationError, UnknownArgumentError
from tests.engines import keras

pytestmark = pytest.mark.tensorflow


def model(regularizer=None, **compile_arguments):
    net = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(2, kernel_regularizer=regularizer)]
    )
    if compile_arguments:
        net.compile(**compile_arguments)
    return net


def half_squares(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_true - y_pred)) / 2


def test_settings_survive_json():
    settings = CompileSettings(
        optimizer=keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)),
        loss=half_squares,
        metrics=["mae", keras.metrics.AUC(num_thresholds=50)],
        loss_weights=[0.5],
    )
    text = json.dumps(settings.to_json())
    read = json.loads(text)
    back = CompileSettings.from_json(read, {"half_squares": half_squares})
    assert json.dumps(back.to_json()) == text
    assert json.dumps(read) == text
    assert back.loss is half_squares


def test_names_stay_names():
    settings = CompileSettings(optimizer="adam", loss="mse", learning_rate=0.5)
    assert settings.to_json()["optimizer"] == "adam"
    assert CompileSettings.from_json(settings.to_json()) == settings


def test_own_function_without_custom_objects_is_refused():
    data = CompileSettings(optimizer="sgd", loss=half_squares).to_json()
    with pytest.raises(ConfigurationError, match=r"half_squares[\s\S]*custom_objects"):
        CompileSettings.from_json(data)


def test_unknown_setting_is_refused():
    with pytest.raises(UnknownArgumentError, match="did you mean 'optimizer'"):
        CompileSettings.from_json({"optimiser": "sgd"})


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_learning_rate_must_be_positive(rate):
    with pytest.raises(ConfigurationError, match="above 0"):
        CompileSettings(optimizer="sgd", learning_rate=rate)


def test_learning_rate_beside_an_instance_or_no_optimizer_is_refused():
    for optimizer in (keras.optimizers.SGD(), None):
        with pytest.raises(ConfigurationError, match="given by name"):
            CompileSettings(optimizer=optimizer, learning_rate=0.1)


def test_learning_rate_sets_the_rate_of_a_named_optimizer():
    net = model()
    compile_model(net, CompileSettings(optimizer="sgd", loss="mse", learning_rate=0.25))
    assert type(net.optimizer).__name__ == "SGD"
    assert float(net.optimizer.learning_rate) == 0.25


def test_empty_settings_leave_the_model_and_its_optimizer_alone():
    net = model(optimizer="adam", loss="mse")
    net.fit(np.zeros((4, 4)), np.zeros((4, 2)), verbose=0)
    optimizer = net.optimizer
    compile_model(net, CompileSettings())
    compile_model(net)
    assert net.optimizer is optimizer
    assert int(optimizer.iterations) == 1


def test_what_is_not_given_comes_from_the_models_own_compile():
    net = model(optimizer="adam", loss=half_squares, weighted_metrics=["mse"], run_eagerly=True)
    settings = CompileSettings(metrics=["mae"])
    compile_model(net, settings, {"half_squares": half_squares})
    assert type(net.optimizer).__name__ == "Adam"
    assert net.loss is half_squares
    assert net.run_eagerly
    logs = net.train_on_batch(np.ones((2, 4)), np.ones((2, 2)), return_dict=True)
    assert set(logs) == {"loss", "mae", "mse"}


def test_loss_of_a_layer_is_a_loss():
    inputs = keras.Input((4,))
    net = keras.Model(inputs, keras.layers.ActivityRegularization(l2=1.0)(inputs))
    net.compile("sgd")
    compile_model(net)


@pytest.mark.parametrize(
    ("compiled", "settings", "says"),
    [
        ({}, {}, "is not compiled"),
        ({"optimizer": "sgd"}, {}, "has no loss"),
        ({"optimizer": "sgd", "regularizer": "l2"}, {}, "has no loss"),
        ({}, {"optimizer": "adamm", "loss": "mse"}, "adamm"),
    ],
)
def test_a_model_that_cannot_be_compiled_is_refused(compiled, settings, says):
    with pytest.raises(ConfigurationError, match=says):
        compile_model(model(**compiled), CompileSettings(**settings))
