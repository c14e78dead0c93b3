"""A model goes to the workers once, compiled: what they load is what the trainer was asked for."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError

pytestmark = pytest.mark.tensorflow


def build(cls=None, **compiled):
    import keras

    keras.utils.set_random_seed(3)
    layers = [keras.Input((4,)), keras.layers.Dense(3, activation="softmax")]
    net = (cls or keras.Sequential)(layers)
    if compiled:
        net.compile(**compiled)
    return net


def travelled(model, **arguments):
    """The model that the driver keeps, and the one that a worker loads."""
    from distkeras_grid import ADAG
    from distkeras_grid.engine.keras_model import model_from_bytes
    from distkeras_grid.engine.model_loader import load_engine
    from distkeras_grid.trainers.model_bundle import compiled_copy

    config = ADAG(model, **arguments).checked()
    compiled = compiled_copy(config)
    load_engine(compiled.archive, custom_objects=compiled.objects)
    worker = model_from_bytes(compiled.archive, compiled.objects)
    assert worker.get_compile_config() == compiled.model.get_compile_config()
    return compiled.model, worker


def test_objects_and_schedules_travel_and_stay_the_users():
    import keras

    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.5)
    optimizer = keras.optimizers.SGD(schedule, momentum=0.5)
    loss = keras.losses.CategoricalCrossentropy(label_smoothing=0.25)
    metric = keras.metrics.MeanSquaredError(name="mine")
    driver, worker = travelled(
        build(optimizer="adam", loss="mse"), worker_optimizer=optimizer, loss=loss, metrics=[metric]
    )
    for model in (driver, worker):
        assert model.optimizer is not optimizer
        assert model.optimizer.get_config() == optimizer.get_config()
        assert model.loss.get_config() == loss.get_config()
    assert not optimizer.built


def test_the_state_of_the_models_own_optimizer_travels_and_a_given_one_begins():
    net = build(optimizer="adam", loss="mse")
    net.fit(np.ones((8, 4)), np.ones((8, 3)), batch_size=2, verbose=0)
    for arguments, steps in (({}, 4), ({"worker_optimizer": "adam"}, 0)):
        for model in travelled(net, **arguments):
            assert int(model.optimizer.iterations) == steps


def doubled(true, predicted):
    import keras

    return 2 * keras.losses.mean_squared_error(true, predicted)


def test_a_loss_of_the_users_own_travels_by_its_name():
    given = {"loss": doubled, "worker_optimizer": "sgd"}
    driver, worker = travelled(build(), custom_objects={"doubled": doubled}, **given)
    x, y = np.ones((2, 4), np.float32), np.zeros((2, 3), np.float32)
    losses = [float(m.compute_loss(x, y, m(x))) for m in (driver, worker)]
    assert losses[0] == losses[1] == pytest.approx(float(np.mean(doubled(y, driver(x)))))
    # Not on an executor, minutes later.
    with pytest.raises(ConfigurationError):
        travelled(build(), **given)


def test_what_is_registered_travels_though_workers_register_nothing():
    import keras

    from distkeras_grid import ADAG
    from distkeras_grid.trainers.model_bundle import compiled_copy

    config = ADAG(build(), loss=doubled, worker_optimizer="sgd").checked()
    with keras.saving.custom_object_scope({"doubled": doubled}):
        assert compiled_copy(config).objects == {"doubled": doubled}


def net_class(*, described):
    """A class with its own ``compile``, which Keras does or does not know how to repeat."""
    import keras

    class Own(keras.Sequential):
        def compile(self, optimizer="sgd", loss="mse", **options):
            super().compile(optimizer=optimizer, loss=loss, **options)

    class Described(Own):
        def get_compile_config(self):
            return {"optimizer": keras.saving.serialize_keras_object(self.optimizer)}

        def compile_from_config(self, config):
            self.compile(optimizer=keras.saving.deserialize_keras_object(config["optimizer"]))

    return Described if described else Own


def test_a_compile_of_the_users_own_travels_if_its_class_describes_it():
    kind = net_class(described=True)
    given = {"custom_objects": {"Described": kind}}
    for model in travelled(build(kind, optimizer="adam"), **given):
        assert type(model.optimizer).__name__ == "Adam"
    for model in travelled(build(kind, optimizer="adam"), worker_optimizer="rmsprop", **given):
        assert type(model.optimizer).__name__ == "RMSprop"


def test_a_compile_that_would_not_arrive_is_refused_on_the_driver():
    kind = net_class(described=False)
    given = {"custom_objects": {"Own": kind}, "worker_optimizer": "adam", "loss": "mse"}
    with pytest.raises(ConfigurationError, match="compile_from_config"):
        travelled(build(kind), **given)
