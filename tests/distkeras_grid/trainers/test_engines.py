"""The workers' backend: a named one, and what is refused."""

from __future__ import annotations

import pytest

from distkeras_grid.engine.registry import BACKENDS
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.trainers import arguments
from tests.distkeras_grid.trainers.small import build, trained


@pytest.mark.full
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
    assert other in trainer.run["versions"]
    assert trainer.model.evaluate(*arrays, verbose=0)[0] < before


@pytest.mark.tensorflow
def test_an_engine_that_is_not_there_is_refused_at_once():
    import distkeras_grid

    with pytest.raises(ConfigurationError, match="'abacus'"):
        distkeras_grid.DOWNPOUR(build(), engine="abacus")


class AnyModel:
    """What a trainer needs of a model to check its other arguments, as on the command line."""

    get_config = fit = None


def test_a_trainer_whose_workers_exchange_the_optimizers_state_stays_on_the_drivers(monkeypatch):
    import distkeras_grid

    monkeypatch.setattr(arguments, "configured_backend", lambda: "tensorflow")
    for fine in (None, "tensorflow"):
        distkeras_grid.SynchronousSGD(AnyModel(), engine=fine)
    with pytest.raises(ConfigurationError, match=r"driver's backend.*engine='jax'"):
        distkeras_grid.SynchronousSGD(AnyModel(), engine="jax")


@pytest.mark.tensorflow
def test_a_simulation_trains_in_this_process(arrays):
    import keras

    import distkeras_grid

    other = next(name for name in BACKENDS if name != keras.backend.backend())
    trainer = distkeras_grid.DOWNPOUR(build(), engine=other)
    with pytest.raises(ConfigurationError, match=f"engine='{other}'"):
        trainer.simulate(arrays, distkeras_grid.Cluster(workers=2))
