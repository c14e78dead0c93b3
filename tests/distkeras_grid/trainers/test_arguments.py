"""Arguments that workers would trip over, refused on the driver."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rules import RULES, build_rule
from distkeras_grid.rules.parameters import checked_whole
from distkeras_grid.spec import Outliers
from distkeras_grid.trainers.arguments import (
    check_backend,
    check_servers,
    check_tensorflow,
    checked_class_weight,
)


@pytest.mark.parametrize("seed", [2**63, -1, np.int64(-1), 1.5, "3"])
def test_a_seed_is_a_whole_number_from_0_on(seed):
    with pytest.raises(ConfigurationError, match=r"seed must be .*Received"):
        checked_whole("seed", seed, least=0)


def test_a_seed_of_numpy_fits_json():
    assert json.dumps(checked_whole("seed", np.uint32(5), least=0)) == "5"


@pytest.mark.parametrize(
    ("class_weight", "match"),
    [
        ([1.0, 2.0], r"\[1.0, 2.0\]"),
        ("balance", "'balance'"),
        ({"dark": 2.0}, "class 'dark'"),
        ({1.5: 2.0}, "class 1.5"),
        ({math.nan: 2.0}, "class nan"),
        ({1: "2"}, "'2' for class 1"),
        ({1: -0.5}, "-0.5 for class 1"),
        ({1: math.nan}, "nan for class 1"),
        ({1: math.inf}, "inf for class 1"),
    ],
)
def test_class_weights_are_numbers_by_numbers(class_weight, match):
    with pytest.raises(ConfigurationError, match=match):
        checked_class_weight(class_weight)


def test_class_weights_of_numpy_and_pandas_become_plain():
    found = checked_class_weight({np.int64(0): np.float32(0.5), 1.0: 2})
    assert json.dumps(found) == '{"0": 0.5, "1": 2.0}'
    assert checked_class_weight(None) is None
    assert checked_class_weight("balanced") == "balanced"


#: Rules whose workers commit one by one, and begin their next window from the reply.
CUT = {
    "downpour": {},
    "adagrad": {"rate": 0.1},
    "accumulated_gradient": {},
    "dynamic_rate": {},
    "distance": {"gamma": 1.0},
    "energy_matching": {},
    "elastic": {"alpha": 0.5},
    "elastic_momentum": {"alpha": 0.5},
}
WHOLE = {name: {"alpha": 0.5} if "elastic" in name else {} for name in set(RULES) - set(CUT)}


@pytest.mark.parametrize("name", CUT)
def test_rules_that_fold_commit_by_commit_take_several_servers(name):
    rule = build_rule(name, CUT[name])
    check_servers("A", 3, rule, {"validate": None, "on_nonfinite": "stop"})


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_other_rules_need_one_server(name):
    rule = build_rule(name, WHOLE[name])
    check_servers("A", 1, rule, {"validate": Outliers()})
    with pytest.raises(ConfigurationError, match="num_servers=2 for A"):
        check_servers("A", 2, rule, {})


@pytest.mark.parametrize("given", [{"validate": Outliers()}, {"on_nonfinite": "skip"}])
def test_what_needs_one_server_is_named(given):
    rule = build_rule("downpour", {})
    check_servers("A", 1, rule, given)
    with pytest.raises(ConfigurationError, match=f"^{next(iter(given))} .*num_servers=2"):
        check_servers("A", 2, rule, given)


@pytest.mark.tensorflow
def test_another_backend_is_refused_with_what_to_set(monkeypatch):
    import keras

    check_backend()
    check_tensorflow("Towers")
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    check_backend()
    with pytest.raises(ConfigurationError, match=r"Towers .*'jax'.*KERAS_BACKEND=tensorflow"):
        check_tensorflow("Towers")
    monkeypatch.setattr(keras.backend, "backend", lambda: "openvino")
    with pytest.raises(ConfigurationError, match=r"'jax'.*'openvino'"):
        check_backend()
