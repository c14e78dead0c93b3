"""What holds for every trainer."""

import inspect

import numpy as np
import pytest

import distkeras_grid
from distkeras_grid.errors import UnknownArgumentError
from distkeras_grid.rules import RULES, build_rule
from distkeras_grid.trainers import TRAINERS

pytestmark = pytest.mark.tensorflow

WORKERS = 4


@pytest.fixture(scope="module")
def model():
    import keras

    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    net.compile("sgd", "mse")
    return net


def build(name, model, *positional, **arguments):
    return getattr(distkeras_grid, name)(model, *positional, **arguments)


def test_the_package_exports_every_trainer_and_no_other():
    from distkeras_grid.trainers.base import Trainer

    exported = {
        name
        for name in distkeras_grid.__all__
        if inspect.isclass(found := getattr(distkeras_grid, name)) and issubclass(found, Trainer)
    }
    assert exported == set(TRAINERS)


def test_every_rule_but_that_of_adagrad_has_a_trainer_by_default(model):
    rules = {build(name, model).build_rule(WORKERS, "SGD").name for name in TRAINERS}
    assert rules == set(RULES) - {"adagrad"}
    downpour = build("DOWNPOUR", model, server_optimizer="adagrad")
    assert downpour.build_rule(WORKERS, "SGD").name == "adagrad"


@pytest.mark.parametrize("name", TRAINERS)
def test_the_common_arguments_are_taken_and_a_misspelt_one_is_told(name, model):
    trainer = build(name, model, "adam", "mse", batch_size=8, num_epoch=2, master_port=7077)
    assert (trainer.worker_optimizer, trainer.loss, trainer.batch_size) == ("adam", "mse", 8)
    with pytest.raises(UnknownArgumentError, match="did you mean 'batch_size'"):
        build(name, model, batchsize=8)


@pytest.mark.parametrize("name", TRAINERS)
def test_the_extras_are_what_the_constructor_adds_and_what_the_run_keeps(name, model):
    trainer = build(name, model)
    own = inspect.signature(type(trainer).__init__).parameters.values()
    extras = {p.name for p in own if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert set(trainer.arguments()) == extras
    rebuilt = build(name, model, **trainer.arguments())
    assert rebuilt.build_rule(WORKERS, "SGD") == trainer.build_rule(WORKERS, "SGD")


@pytest.mark.parametrize("name", TRAINERS)
def test_every_argument_is_documented_with_its_default(name, model):
    text = " ".join((inspect.getdoc(type(build(name, model))) or "").split())
    for extra in build(name, model).arguments():
        assert extra in text, f"{name} does not document {extra}"
    assert name == "SingleTrainer" or "The window is" in text or "their window is" in text


@pytest.mark.parametrize("name", TRAINERS)
def test_the_rule_travels_as_json(name, model):
    rule = build(name, model).build_rule(WORKERS, "SGD")
    assert build_rule(rule.name, rule.parameters()) == rule
    assert np.isfinite([v for v in rule.parameters().values() if isinstance(v, float)]).all()
