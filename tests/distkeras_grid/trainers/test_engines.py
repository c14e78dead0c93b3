"""The workers' backend: a named one, the fastest, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from distkeras_grid.engine.registry import BACKENDS
from distkeras_grid.errors import ConfigurationError
from tests.distkeras_grid.trainers.small import WIDTH, build, trained


@pytest.mark.spark
@pytest.mark.tensorflow
def test_workers_train_on_a_named_backend(frame, arrays):
    import keras

    other = next(name for name in ("jax", "tensorflow") if name != keras.backend.backend())
    before = build().evaluate(*arrays, verbose=0)[0]
    trainer = trained(
        "DOWNPOUR",
        build(),
        frame,
        worker_optimizer="sgd",
        learning_rate=0.2,
        batch_size=8,
        num_epoch=3,
        engine=other,
    )
    assert trainer.spec.algorithm.backend == other
    assert trainer.history.params["engines"] == []
    assert other in trainer.run["versions"]
    assert trainer.model.evaluate(*arrays, verbose=0)[0] < before


def refuse_on_jax(x):
    import keras

    if keras.backend.backend() == "jax":
        raise NotImplementedError("not on JAX")
    return x


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.tensorflow
@pytest.mark.parametrize("able", [True, pytest.param(False, marks=pytest.mark.full)])
def test_auto_takes_the_fastest_that_can_train_the_model_and_tells_the_figures(frame, able, capsys):
    import keras

    model, objects = build(), {}
    if not able:
        layer = keras.layers.Activation(refuse_on_jax)
        model = keras.Sequential([keras.Input((WIDTH,)), *model.layers, layer])
        model.compile("sgd", "sparse_categorical_crossentropy")
        objects = {"refuse_on_jax": refuse_on_jax}
    trainer = trained(
        "DOWNPOUR",
        model,
        frame,
        worker_optimizer="sgd",
        learning_rate=0.2,
        batch_size=8,
        num_epoch=1,
        engine="auto",
        custom_objects=objects,
    )
    told = trainer.history.params["engines"]
    by_name = {each["backend"]: each for each in told}
    assert set(by_name) == set(BACKENDS)
    rates = [each["samples_per_second"] for each in told if each["samples_per_second"] is not None]
    assert rates == sorted(rates, reverse=True)
    assert min(rates) > 0
    assert trainer.spec.algorithm.backend == told[0]["backend"]
    assert (by_name["jax"]["samples_per_second"] is None) is not able
    assert all(bool(each["problem"]) is (each["samples_per_second"] is None) for each in told)
    assert np.isfinite(trainer.history.records[-1].loss)


@pytest.mark.tensorflow
def test_an_engine_that_is_not_there_is_refused_at_once():
    import distkeras_grid

    with pytest.raises(ConfigurationError, match="'abacus'"):
        distkeras_grid.DOWNPOUR(build(), engine="abacus")


@pytest.mark.spark
@pytest.mark.tensorflow
@pytest.mark.parametrize("engine", ["auto", "jax"])
def test_a_trainer_whose_workers_exchange_the_optimizers_state_stays_on_the_drivers(frame, engine):
    with pytest.raises(ConfigurationError, match="driver's backend"):
        trained("SynchronousSGD", build(), frame, engine=engine)


@pytest.mark.tensorflow
def test_a_simulation_trains_in_this_process(arrays):
    import keras

    import distkeras_grid

    other = next(name for name in BACKENDS if name != keras.backend.backend())
    trainer = distkeras_grid.DOWNPOUR(build(), engine=other)
    with pytest.raises(ConfigurationError, match=f"engine='{other}'"):
        trainer.simulate(arrays, distkeras_grid.Cluster(workers=2))
