"""The workers' backend: a named one, the fastest, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from distkeras_grid.engine.registry import BACKENDS
from distkeras_grid.errors import ClusterError, ConfigurationError
from distkeras_grid.rows import Block
from distkeras_grid.trainers import arguments, checking, engines
from tests.distkeras_grid.trainers.small import WIDTH, build, trained
from tests.specs import make_spec


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
    assert trainer.history.params["engines"] == []
    assert other in trainer.run["versions"]
    assert trainer.model.evaluate(*arrays, verbose=0)[0] < before


def refuse_on_jax(x):
    import keras

    if keras.backend.backend() == "jax":
        raise NotImplementedError("not on JAX")
    return x


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.tensorflow
@pytest.mark.parametrize("able", [True, False])
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


def measured_without_spark(monkeypatch, dies):
    """Speeds of all backends; tasks of some of them end with their Python process."""

    class Job:
        def __init__(self, _frame, task, _schema, _name):
            self.backend = task.args[0].spec.algorithm.backend

        def start(self):
            pass

        def wait(self, _seconds):
            return True

        def cancel(self):
            pass

        def result(self):
            if self.backend in dies:
                raise ClusterError("The Python worker exited unexpectedly (crashed).")
            return [{"seconds": 0.5, "problem": None}]

    monkeypatch.setattr(engines, "Launch", Job)
    monkeypatch.setattr(engines, "package_versions", dict.fromkeys)
    monkeypatch.setattr(engines, "training_packages", lambda _: ())
    for name in ("check_executors", "ship_backend"):
        monkeypatch.setattr(engines, name, lambda *_: None)
    spark = SimpleNamespace(range=lambda *_: None)
    x, y = np.zeros((1, 4, WIDTH), np.float32), np.zeros((1, 4), np.int32)
    return engines.measure_backends(spark, make_spec(), b"", {}, Block((x,), (y,), None))


def test_a_backend_whose_process_dies_is_no_choice(monkeypatch):
    """As of an instruction that the processor has not, or for its memory."""
    *able, dead = measured_without_spark(monkeypatch, dies={"jax"})
    assert {speed.backend for speed in able} == {*BACKENDS} - {"jax"}
    assert all(speed.samples_per_second == 8.0 for speed in able)
    assert (dead.backend, dead.samples_per_second) == ("jax", None)
    assert "exited unexpectedly" in dead.problem


def test_the_run_ends_only_if_no_backend_is_left(monkeypatch):
    with pytest.raises(ConfigurationError, match="jax: The Python worker"):
        measured_without_spark(monkeypatch, dies={*BACKENDS})


@pytest.mark.tensorflow
def test_an_engine_that_is_not_there_is_refused_at_once():
    import distkeras_grid

    with pytest.raises(ConfigurationError, match="'abacus'"):
        distkeras_grid.DOWNPOUR(build(), engine="abacus")


class AnyModel:
    """What a trainer needs of a model to check its other arguments, as on the command line."""

    get_config = fit = None


@pytest.mark.parametrize("engine", ["auto", "jax"])
def test_a_trainer_whose_workers_exchange_the_optimizers_state_stays_on_the_drivers(
    monkeypatch, engine
):
    import distkeras_grid

    monkeypatch.setattr(arguments, "configured_backend", lambda: "tensorflow")
    for fine in (None, "tensorflow"):
        distkeras_grid.SynchronousSGD(AnyModel(), engine=fine)
    with pytest.raises(ConfigurationError, match=f"driver's backend.*engine='{engine}'"):
        distkeras_grid.SynchronousSGD(AnyModel(), engine=engine)


@pytest.mark.tensorflow
def test_local_sets_have_no_rows_to_measure_with_and_are_refused_before_spark(monkeypatch):
    import distkeras_grid

    def spark():
        raise AssertionError("Spark has been asked")

    monkeypatch.setattr(checking, "active_session", spark)
    sets = distkeras_grid.LocalSets("tiles", iterations=1, local_train=8)
    request = distkeras_grid.DOWNPOUR(build(), engine="auto").request(sets)
    with pytest.raises(ConfigurationError, match=r"local sets.*engine='auto'"):
        checking.check(request, None, None, None)


@pytest.mark.tensorflow
def test_a_simulation_trains_in_this_process(arrays):
    import keras

    import distkeras_grid

    other = next(name for name in BACKENDS if name != keras.backend.backend())
    trainer = distkeras_grid.DOWNPOUR(build(), engine=other)
    with pytest.raises(ConfigurationError, match=f"engine='{other}'"):
        trainer.simulate(arrays, distkeras_grid.Cluster(workers=2))
