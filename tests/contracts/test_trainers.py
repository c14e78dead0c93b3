"""What holds for every trainer."""

import ast
import inspect
import json
import re

import numpy as np
import pytest

import distkeras_grid
from distkeras_grid.errors import ConfigurationError, UnknownArgumentError
from distkeras_grid.rules import RULES, build_rule
from distkeras_grid.spec import DraftSpec
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
    assert trainer.arguments().keys() == extras_of(type(trainer)).keys()
    rebuilt = build(name, model, **trainer.arguments())
    assert rebuilt.build_rule(WORKERS, "SGD") == trainer.build_rule(WORKERS, "SGD")


@pytest.mark.parametrize("name", [*TRAINERS, *sorted(MODEL_PARALLEL)])
def test_every_argument_is_documented_with_its_default(name):
    trainer = getattr(distkeras_grid, name)
    check_documented(trainer, extras_of(trainer))
    text = " ".join((inspect.getdoc(trainer) or "").split())
    assert name == "SingleTrainer" or "The window is" in text or "their window is" in text


def test_the_common_arguments_are_documented_with_their_defaults():
    from distkeras_grid.trainers.base import CommonArguments, Trainer

    parameters = inspect.signature(Trainer.__init__).parameters
    check_documented(Trainer, {name: parameters[name] for name in CommonArguments.__annotations__})


def check_documented(trainer, parameters):
    """Each has a line of its own, ``name : type, default value``, or ``optional`` for None."""
    lines = (inspect.getdoc(trainer) or "").splitlines()
    for name, parameter in parameters.items():
        (line,) = [
            line for line in lines if " : " in line and name in line.split(" : ")[0].split(", ")
        ]
        if parameter.default is None:
            assert line.endswith("optional"), line
        else:
            assert ast.literal_eval(line.split(" default ")[1]) == parameter.default, line


def extras_of(trainer):
    """The keyword arguments that a trainer's own constructor adds; it may have none."""
    from distkeras_grid.trainers.base import Trainer

    if trainer.__init__ is Trainer.__init__:
        return {}
    own = inspect.signature(trainer.__init__).parameters.values()
    return {p.name: p for p in own if p.kind is inspect.Parameter.KEYWORD_ONLY}


def test_the_table_of_the_guide_has_every_trainer(project):
    text = (project / "distkeras_grid/trainers/README.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"\| trainer \| what the center does .*?\n(.*?)\n\n", text, re.DOTALL)
    assert {*re.findall(r"^\| `(\w+)", table, re.MULTILINE)} == {*TRAINERS, *MODEL_PARALLEL}


def test_the_table_of_the_guide_has_every_argument(project):
    from distkeras_grid.trainers.base import CommonArguments

    text = (project / "distkeras_grid/trainers/README.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"\| argument \| default \|\n(.*?)\n\n", text, re.DOTALL)
    names = {*TRAINERS, *MODEL_PARALLEL}
    extras = {extra for name in names for extra in extras_of(getattr(distkeras_grid, name))}
    for argument in {*CommonArguments.__annotations__, *extras}:
        assert f"`{argument}`" in table, argument


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
    method = build("DOWNPOUR", net).request("tiles").method
    assert rule_for(method, WORKERS, net).parameters() == {"commit_scale": scale}


# Of each argument a value of its own kind, and an object that is nobody else's.
GIVEN = {
    **{name: np.int32(1) for name in ("num_workers", "num_servers", "batch_size", "num_epoch")},
    **{"master_port": np.int32(1)},
    **{name: np.float64(7.25) for name in ("start_timeout", "round_timeout")},
    **{"worker_optimizer": "".join(["a", "dam"]), "loss": ["mse"], "metrics": ["mae"]},
    **{"loss_weights": [1.0], "features_col": ["features"], "label_col": ["label"]},
    **{"communication_window": np.int64(3), "learning_rate": np.float32(0.5)},
    **{"custom_objects": {"mine": object()}, "master_host": "".join(["loc", "alhost"])},
    **{"compression": "".join(["d", "gc"]), "optimizer_state": "".join(["res", "et"])},
    **{"quorum": np.float64(0.75)},
    **{"momentum": np.float64(0.25), "gamma": np.float64(0.125), "alpha": np.float64(0.0625)},
    **{"commit_scale": np.float64(0.5), "kappa": np.float64(1.5), "largest_scale": 3.5},
    **{"data": "".join(["partiti", "on"]), "initial": "".join(["giv", "en"])},
    **{"combine": "".join(["vo", "te"])},
}


@pytest.mark.parametrize("name", TRAINERS)
def test_several_servers_are_taken_where_workers_go_on_from_the_center(name, model):
    """Others refuse them, and so do arguments that look at whole commits, or save a server."""
    if name not in ("DOWNPOUR", "ADAG", "DynSGD", "StalenessADAG", "GEM", "AEASGD", "EAMSGD"):
        with pytest.raises(ConfigurationError, match=f"num_servers=2 for {name}"):
            build(name, model, num_servers=2)
        return
    trainer = build(name, model, num_servers=np.int64(2), optimizer_state="reset")
    assert trainer.draft().exchange.servers == 2
    for given in ({"validate": distkeras_grid.Outliers()}, {"on_nonfinite": "skip"}):
        with pytest.raises(ConfigurationError, match=next(iter(given))):
            build(name, model, num_servers=2, **given)
    with pytest.raises(ConfigurationError, match="num_servers"):
        trainer.simulate((np.zeros((8, 3)), np.zeros((8, 2))), distkeras_grid.Cluster(workers=2))


@pytest.mark.parametrize("given", ["outliers", 7, distkeras_grid.Outliers])
def test_validate_is_outliers_or_a_function(given, model):
    with pytest.raises(ConfigurationError, match="validate is Outliers"):
        build("DOWNPOUR", model, validate=given)


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_keeps_the_very_objects_that_it_was_given(name, model):
    """As scikit-learn asks of estimators: the constructor checks, and stores what came."""
    parameters = inspect.signature(getattr(distkeras_grid, name)).parameters
    given = {each: GIVEN[each] for each in parameters if each in GIVEN}
    trainer = build(name, model, **given)
    for each, value in given.items():
        assert getattr(trainer, each) is value, each
    assert trainer.get_params().keys() == parameters.keys()


@pytest.mark.parametrize("name", TRAINERS)
def test_arguments_that_are_not_given_are_kept_as_their_defaults(name, model):
    parameters = inspect.signature(getattr(distkeras_grid, name)).parameters
    trainer = build(name, model)
    for each, parameter in parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            assert getattr(trainer, each) is parameter.default, each


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_shows_all_its_arguments(name):
    from distkeras_grid.trainers.base import CommonArguments

    kind = getattr(distkeras_grid, name)
    shown = set(inspect.signature(kind).parameters)
    assert shown == {"keras_model", *CommonArguments.__annotations__, *extras_of(kind)}


@pytest.mark.parametrize("name", TRAINERS)
def test_numbers_of_numpy_are_numbers(name, model):
    counts = ("batch_size", "num_epoch", "num_workers", "communication_window", "master_port")
    found = build(name, model, **{count: np.int32(1) for count in counts}).request(
        "tiles", seed=np.int64(7)
    )
    pace = found.draft.pace
    numbers = pace.batch_size, pace.num_epoch, pace.num_workers, pace.communication_window
    assert {type(n) for n in (*numbers, found.server.port, found.data.seed)} == {int}
    assert json.loads(json.dumps(found.draft.to_json())) == found.draft.to_json()
    momentum = {"EAMSGD": "momentum", "GEM": "momentum", "StalenessADAG": "gamma"}.get(name)
    if momentum:
        build(name, model, **{momentum: np.float32(0.5)})


@pytest.mark.parametrize("name", TRAINERS)
def test_the_draft_of_a_run_follows_the_arguments_and_nothing_else(name, model):
    trainer, same = (build(name, model, batch_size=8) for _ in range(2))
    assert trainer.draft() == same.draft() == DraftSpec.from_json(trainer.draft().to_json())
    assert trainer.draft().algorithm.trainer == name
    same.num_epoch = 7
    assert same.draft().pace.num_epoch == 7
    assert same.draft() != trainer.draft()
    same.num_epoch = 0
    with pytest.raises(ConfigurationError, match="num_epoch"):
        same.train("tiles")


def test_a_rate_without_an_optimizer_that_takes_it_is_refused_at_once(model):
    with pytest.raises(ConfigurationError, match="learning_rate"):
        build("ADAG", model, learning_rate=0.1)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"batch_size": value} for value in (0, 2.0, True, "8")),
        *({"num_workers": 0}, {"num_epoch": -1}, {"learning_rate": 0.0}, {"jit": "yes"}),
        *({"start_timeout": 0}, {"start_timeout": float("nan")}, {"round_timeout": "1"}),
        *({"communication_window": value} for value in (0, -1, 2.5, True, "day")),
        *({"optimizer_state": "forget"}, {"gpu_sharing": 1}),
        *({"master_port": -1}, {"master_port": 65536}, {"master_port": 1.5}),
    ],
)
def test_values_out_of_range_are_refused_at_once(wrong, model):
    (name,) = wrong
    with pytest.raises(ConfigurationError, match=f"{name} must be"):
        build("ADAG", model, **wrong)


def test_the_ports_of_all_servers_must_exist(model):
    build("ADAG", model, num_servers=3, master_port=65533)
    with pytest.raises(ConfigurationError, match=r"master_port must be.* 65533.*65534"):
        build("ADAG", model, num_servers=3, master_port=65534)


def test_an_argument_of_the_constructor_that_train_is_given_is_told(model):
    with pytest.raises(UnknownArgumentError, match="'num_epoch' of ADAG"):
        build("ADAG", model).train("tiles", epochs=3)
    with pytest.raises(UnknownArgumentError, match="'batch_size' of ADAG"):
        build("ADAG", model).train("tiles", batch_size=3)
    with pytest.raises(UnknownArgumentError, match="'shuffle'"):
        build("ADAG", model).train("tiles", shufle=False)


def test_features_and_labels_apart_are_refused(model):
    x, y = np.zeros((4, 3)), np.zeros((4, 2))
    with pytest.raises(ConfigurationError, match="label_col"):
        build("ADAG", model).train(x, y)
    with pytest.raises(ConfigurationError, match="Cluster"):
        build("ADAG", model).simulate(x, y)


@pytest.mark.parametrize("name", ["AveragingTrainer", "SynchronousSGD"])
@pytest.mark.parametrize("quorum", [0.49, 1.01, "all", float("nan")])
def test_a_quorum_is_half_of_the_workers_or_more(name, quorum, model):
    with pytest.raises(ConfigurationError, match="quorum must be"):
        build(name, model, quorum=quorum)


def test_a_rate_of_the_server_needs_its_optimizer(model):
    with pytest.raises(ConfigurationError, match="server_learning_rate needs"):
        build("DOWNPOUR", model, server_learning_rate=0.1)
    with pytest.raises(ConfigurationError, match="server_learning_rate must be"):
        build("DOWNPOUR", model, server_optimizer="adagrad", server_learning_rate=0)
    rule = build("DOWNPOUR", model, server_optimizer="adagrad").build_rule(WORKERS, "SGD")
    assert rule.parameters()["rate"] == 0.01


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
