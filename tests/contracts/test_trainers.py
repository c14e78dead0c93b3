"""What holds for every trainer."""

import inspect
import json
import math
import re
from typing import get_type_hints

import msgspec
import numpy as np
import pytest
from numpydoc.docscrape import NumpyDocString

import distkeras_grid
from distkeras_grid.errors import ConfigurationError, UnknownArgumentError
from distkeras_grid.rules import RULES, build_rule
from distkeras_grid.spec import RunSpec
from distkeras_grid.trainers import TRAINERS
from distkeras_grid.trainers.config import TrainerConfig
from tests.contracts import argument_table

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


#: Trainers of one model over several devices; they have tests of their own.
MODEL_PARALLEL = {"ConvolutionSplit", "PlacedLayers", "Towers"}


def test_the_package_exports_every_trainer_and_no_other():
    from distkeras_grid.trainers.base import Trainer

    exported = {
        name
        for name in distkeras_grid.__all__
        if inspect.isclass(found := getattr(distkeras_grid, name)) and issubclass(found, Trainer)
    }
    assert exported == set(TRAINERS) | MODEL_PARALLEL


def test_every_rule_but_that_of_adagrad_has_a_trainer_by_default(model):
    rules = {build(name, model).build_rule(WORKERS, "SGD").name for name in TRAINERS}
    assert rules == set(RULES) - {"adagrad"}
    rule = build("DOWNPOUR", model, server_optimizer="adagrad").build_rule(WORKERS, "SGD")
    assert (rule.name, rule.parameters()["rate"]) == ("adagrad", 0.01)


@pytest.mark.parametrize("name", TRAINERS)
def test_the_common_arguments_are_taken_and_a_misspelt_one_is_told(name, model):
    trainer = build(name, model, "adam", "mse", batch_size=8, num_epoch=2, master_port=7077)
    assert (trainer.worker_optimizer, trainer.loss, trainer.batch_size) == ("adam", "mse", 8)
    with pytest.raises(UnknownArgumentError, match="did you mean 'batch_size'"):
        build(name, model, batchsize=8)


@pytest.mark.parametrize("name", TRAINERS)
def test_the_extras_are_what_the_constructor_adds_and_what_the_run_keeps(name, model):
    trainer = build(name, model)
    assert trainer.arguments().keys() == extras_of(type(trainer)).keys()
    rebuilt = build(name, model, **trainer.arguments())
    assert rebuilt.build_rule(WORKERS, "SGD") == trainer.build_rule(WORKERS, "SGD")


@pytest.mark.parametrize("name", [*TRAINERS, *sorted(MODEL_PARALLEL)])
def test_every_argument_is_documented_with_its_default(name):
    trainer = getattr(distkeras_grid, name)
    section = NumpyDocString(inspect.getdoc(trainer))["Parameters"]
    assert [each.name for each in section] == list(inspect.signature(trainer).parameters)
    for each in section:
        default = trainer.parameters[each.name].default_text.removeprefix(", ")
        assert each.type.endswith(default), each
        assert " ".join(each.desc).endswith("."), each
    text = " ".join(inspect.getdoc(trainer).split())
    assert "The window is" in text


def extras_of(trainer):
    """The keyword arguments that only this trainer has, or a few."""
    common = TrainerConfig.parameters
    return {n: p for n, p in trainer.parameters.items() if p.kw_only and n not in common}


def test_the_table_of_the_guide_has_every_trainer(project):
    text = (project / "distkeras_grid/trainers/README.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"\| trainer \| what the center does .*?\n(.*?)\n\n", text, re.DOTALL)
    assert {*re.findall(r"^\| `(\w+)", table, re.MULTILINE)} == {*TRAINERS, *MODEL_PARALLEL}


def test_the_page_of_arguments_is_that_of_the_classes():
    assert argument_table.PAGE.read_text(encoding="utf-8") == argument_table.page()


@pytest.mark.parametrize(
    ("name", "window"),
    [
        *((name, 5) for name in ("DOWNPOUR", "DynSGD")),
        *((name, WORKERS) for name in ("ADAG", "StalenessADAG")),
        *((name, 32) for name in ("AEASGD", "EAMSGD", "EASGD")),
        *((name, 16) for name in ("SingleTrainer", "AveragingTrainer", "EnsembleTrainer")),
        *((name, 1) for name in ("GEM", "SynchronousSGD")),
    ],
)
def test_windows_by_default_and_as_given(name, window, model):
    assert build(name, model).choose_window(10**6, WORKERS).batches == window
    given = build(name, model, communication_window=np.int64(7))
    assert given.choose_window(10, WORKERS).batches == 7
    epoch = build(name, model, communication_window="epoch")
    assert epoch.choose_window(10**6, WORKERS).batches is None


def test_of_two_workers_or_one_the_window_of_adag_is_two(model):
    assert build("ADAG", model).choose_window(10**6, 1).batches == 2


@pytest.mark.parametrize(
    ("optimizer", "scale"),
    [
        (lambda keras: keras.optimizers.Adam(), 1 / WORKERS),
        (lambda keras: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), 1 / WORKERS),
        (lambda keras: keras.optimizers.ScheduleFreeAdamW(), 1 / WORKERS),
        (lambda keras: type("Mine", (keras.optimizers.Adam,), {})(), 1 / WORKERS),
        (lambda keras: type("Lamb", (keras.optimizers.Optimizer,), {})(0.1), 1 / WORKERS),
        (lambda keras: keras.optimizers.SGD(), 1),
        (lambda keras: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), 1),
    ],
)
def test_commits_of_whatever_is_adam_are_scaled(optimizer, scale):
    import keras

    from distkeras_grid.trainers.preflight import rule_for

    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    net.compile(optimizer(keras), "mse")
    assert rule_for(build("DOWNPOUR", net), WORKERS, net).parameters() == {"commit_scale": scale}


@pytest.mark.parametrize("name", TRAINERS)
def test_several_servers_are_taken_where_workers_go_on_from_the_center(name, model):
    """Others refuse them, and so do arguments that look at whole commits, or save a server."""
    if name not in ("DOWNPOUR", "ADAG", "DynSGD", "StalenessADAG", "GEM", "AEASGD", "EAMSGD"):
        with pytest.raises(ConfigurationError, match=f"num_servers=2 for {name}"):
            build(name, model, num_servers=2)
        return
    trainer = build(name, model, num_servers=np.int64(2))
    assert trainer.checked().num_servers == 2
    for given in ({"validate": distkeras_grid.Outliers()}, {"on_nonfinite": "skip"}):
        with pytest.raises(ConfigurationError, match=next(iter(given))):
            build(name, model, num_servers=2, **given)
    with pytest.raises(ConfigurationError, match="num_servers"):
        trainer.simulate((np.zeros((8, 3)), np.zeros((8, 2))), distkeras_grid.Cluster(workers=2))


@pytest.mark.parametrize("name", TRAINERS)
def test_numbers_of_numpy_are_numbers(name, model):
    from distkeras_grid.trainers.base import training_data

    counts = ("batch_size", "num_epoch", "num_workers", "communication_window", "master_port")
    config = build(name, model, **{count: np.int32(1) for count in counts}).checked()
    seed = training_data("tiles", shuffle=True, seed=np.int64(7)).seed
    assert {type(n) for n in (seed, *(getattr(config, count) for count in counts))} == {int}
    fields = {**config.spec_fields(), **config.arguments()}
    assert json.loads(json.dumps(fields)) == fields
    momentum = {"EAMSGD": "momentum", "GEM": "momentum", "StalenessADAG": "gamma"}.get(name)
    if momentum:
        build(name, model, **{momentum: np.float32(0.5)})


@pytest.mark.parametrize("name", TRAINERS)
def test_arguments_are_checked_as_they_are_when_training_begins(name, model):
    trainer = build(name, model, batch_size=8)
    trainer.num_epoch = np.int64(7)
    config = trainer.checked()
    assert (config.num_epoch, config.batch_size, config.trainer_name) == (7, 8, name)
    trainer.num_epoch = 0
    with pytest.raises(ConfigurationError, match="num_epoch"):
        trainer.train("tiles")


@pytest.mark.parametrize("name", [*TRAINERS, *sorted(MODEL_PARALLEL)])
def test_a_parameter_becomes_a_field_of_the_specification_of_its_type(name):
    # Without the ranges, which a parameter says of its own.
    types = {
        name: kind
        for section in msgspec.structs.fields(RunSpec)
        for name, kind in get_type_hints(section.type).items()
    }
    for parameter in getattr(distkeras_grid, name).parameters.values():
        if parameter.field:
            assert types[parameter.field] == parameter.type, parameter


def wrong_values():
    """What is out of its range, of all trainers and of some."""
    ranges = {
        "ADAG": {
            "batch_size": (0, 2.0, True, "8"),
            **{"num_workers": (0,), "num_epoch": (-1,), "learning_rate": (0.0,), "jit": ("yes",)},
            **{"start_timeout": (0, math.nan), "round_timeout": ("1",), "gpu_sharing": (1,)},
            "communication_window": (0, -1, 2.5, True, "day"),
            "master_port": (-1, 65536, 1.5),
        },
        "DOWNPOUR": {"commit_scale": (None, "half", 0, -1.0, math.inf)},
        "AEASGD": {"alpha": (0.0, "0.5", math.nan)},
        "EASGD": {"rho": ("5",)},
        "GEM": {"kappa": ("1",), "exclude_own_commit": (0,)},
        "EnsembleTrainer": {"data": ("all",), "initial": ("all",)},
        "AveragingTrainer": {"quorum": (0.49, 1.01, "all", math.nan)},
        "SynchronousSGD": {"quorum": (0.49, 1.01, "all", math.nan)},
    }
    for name, arguments in ranges.items():
        for argument, values in arguments.items():
            yield from ((name, {argument: value}, f"{argument} must be") for value in values)


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        *wrong_values(),
        *(
            ("DOWNPOUR", {"validate": value}, "validate is Outliers")
            for value in ("outliers", 7, distkeras_grid.Outliers)
        ),
        ("ADAG", {"learning_rate": 0.1}, "learning_rate"),
        ("DOWNPOUR", {"server_learning_rate": 0.1}, "server_learning_rate needs"),
        (
            *("DOWNPOUR", {"server_optimizer": "adagrad", "server_learning_rate": 0}),
            "server_learning_rate must be",
        ),
    ],
)
def test_what_is_wrong_is_refused_at_once(name, wrong, words, model):
    with pytest.raises(ConfigurationError, match=words):
        build(name, model, **wrong)


def test_the_ports_of_all_servers_must_exist(model):
    build("ADAG", model, num_servers=3, master_port=65533)
    with pytest.raises(ConfigurationError, match=r"master_port must be.* 65533.*65534"):
        build("ADAG", model, num_servers=3, master_port=65534)


def test_with_rho_a_rate_sets_the_force_and_not_the_optimizer(model):
    trainer = build("AEASGD", model, rho=5, learning_rate=0.1)
    assert trainer.build_rule(WORKERS, "SGD").parameters() == {"alpha": 0.5}
    assert trainer.compile_settings().learning_rate is None
    rated = build("AEASGD", model, worker_optimizer="sgd", learning_rate=0.1)
    assert rated.compile_settings().learning_rate == 0.1


def test_a_force_that_drives_rounds_apart_is_refused(model):
    """As that of dist-keras' rho 5 and rate 0.1: 0.5 times 4 + 1 workers is more than 2."""
    trainer = build("EASGD", model, rho=5, learning_rate=0.1)
    assert trainer.build_rule(2, "SGD").parameters() == {"alpha": 0.5}
    with pytest.raises(ConfigurationError, match=r"below 0\.4 for rounds of 4 "):
        trainer.build_rule(WORKERS, "SGD")
    with pytest.raises(ConfigurationError, match=r"below 1 for rounds of 1 worker\(s\)"):
        build("EASGD", model, alpha=1)
    with pytest.raises(ConfigurationError, match=r"for rounds of 3 worker\(s\)"):
        build("EASGD", model, alpha=0.5, num_workers=3)


@pytest.mark.parametrize("name", TRAINERS)
def test_the_rule_travels_as_json(name, model):
    rule = build(name, model).build_rule(WORKERS, "SGD")
    assert build_rule(rule.name, rule.parameters()) == rule
    assert np.isfinite([v for v in rule.parameters().values() if isinstance(v, float)]).all()
