from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from distkeras_grid.engine import names
from distkeras_grid.engine.names import KERAS, NAMES, SPECIAL_METRICS, check_names
from distkeras_grid.errors import ConfigurationError, EnvironmentMismatchError

# A model that was compiled with names of its own.
COMPILED = SimpleNamespace(
    _compile_config=SimpleNamespace(config={"loss": "msee", "metrics": ["mae"]})
)


@pytest.fixture(params=["table", pytest.param("keras", marks=pytest.mark.tensorflow)])
def _source(request, monkeypatch):
    """Look names up in the table, and in Keras itself: both say the same."""
    if request.param == "table":
        monkeypatch.delitem(sys.modules, "keras", raising=False)
    else:
        import keras  # noqa: F401


@pytest.mark.usefixtures("_source")
@pytest.mark.parametrize(
    "given",
    [
        {"loss": "mse"},
        {"loss": ["mse", None, "hinge"]},
        {"loss": {"a": "mse"}, "metrics": [["accuracy"], {"b": "mae"}]},
        {"optimizer": "Adam"},
        {"optimizer": {"class_name": "of_mine"}},
        {"loss": "charbonnier", "custom_objects": {"charbonnier": print}},
        {"loss": print},
        {},
    ],
)
def test_what_keras_may_know_passes(given):
    check_names(None, **given)


@pytest.mark.usefixtures("_source")
def test_what_the_model_was_compiled_with_is_looked_at_where_nothing_else_is_given():
    check_names(COMPILED, loss="mse")
    with pytest.raises(ConfigurationError, match="'msee'"):
        check_names(COMPILED)


@pytest.mark.usefixtures("_source")
@pytest.mark.parametrize(
    "given",
    [
        {"loss": "msee"},
        {"loss": "Adam"},
        {"metrics": ["acuracy"]},
        {"metrics": [{"a": ["mae", "nope"]}]},
        {"optimizer": "adamm"},
    ],
)
def test_a_name_that_keras_does_not_know_is_refused(given):
    with pytest.raises(ConfigurationError):
        check_names(None, **given)


def test_what_is_registered_under_a_package_passes_the_table(monkeypatch):
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    check_names(None, loss="mine>charbonnier")


def test_another_version_of_keras_is_not_imported_for_a_name_in_the_table(monkeypatch):
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setattr(names, "KERAS", "2.0.0")
    check_names(None, optimizer="Adam", loss=["mse", "mine>charbonnier"], metrics=["accuracy"])
    assert "keras" not in sys.modules


@pytest.mark.tensorflow
def test_another_version_of_keras_is_asked_for_a_name_that_is_not_in_the_table():
    """It may know more names, and it knows which are misspelt."""
    code = (
        "import sys\n"
        "from distkeras_grid.engine import names\n"
        "from distkeras_grid.errors import ConfigurationError\n"
        "names.KERAS = '2.0.0'\n"
        "names.NAMES = {**names.NAMES, 'loss': frozenset(['mae'])}\n"
        "names.check_names(None, loss='mae')\n"
        "early = 'keras' in sys.modules\n"
        # What the user registers is registered when the model is loaded, after this check.
        "names.check_names(None, loss='mse', metrics=['mine>charbonnier'])\n"
        "try: names.check_names(None, loss='maee')\n"
        "except ConfigurationError as error: sys.exit(early or \"'mae'\" not in str(error))\n"
        "sys.exit('not refused')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_keras_without_its_backend_is_told_in_words(monkeypatch):
    """As where another backend than the installed one is configured."""
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setattr(names, "KERAS", "2.0.0")

    class NoBackend:
        def find_spec(self, name, *_):
            if name == "keras":
                raise ModuleNotFoundError("No module named 'abacus'", name="abacus")

    monkeypatch.setattr(sys, "meta_path", [NoBackend(), *sys.meta_path])
    with pytest.raises(EnvironmentMismatchError, match="abacus"):
        check_names(None, loss="of_the_future")


def test_names_are_refused_without_importing_keras():
    code = (
        "import sys\n"
        "from distkeras_grid import ADAG\n"
        "from distkeras_grid.errors import ConfigurationError\n"
        "class Model: get_config = fit = None\n"
        "try: ADAG(Model(), loss='msee')\n"
        "except ConfigurationError: sys.exit('keras' in sys.modules)\n"
        "sys.exit('not refused')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("module", "kind"), [("losses", "loss"), ("metrics", "metric"), ("optimizers", "optimizer")]
)
def test_the_table_is_that_of_keras(module, kind):
    import keras

    if keras.__version__ != KERAS:
        pytest.skip(f"the table is of Keras {KERAS}, this is {keras.__version__}")
    public = getattr(keras, module)
    by_keras = getattr(keras.src, module).ALL_OBJECTS_DICT
    table, special = NAMES[kind], SPECIAL_METRICS if kind == "metric" else set()
    assert table == set(by_keras) | special

    def found(name):
        try:
            return public.get(name) is not None
        except (KeyError, TypeError, ValueError):
            return False  # Many functions and classes take arguments.

    folded = (lambda name: name.lower()) if module == "optimizers" else str
    assert {name for name in dir(public) if found(name) and folded(name) not in table} == set()
