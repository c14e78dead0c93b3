"""What the package promises as a whole."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest

import data_prep
import distkeras_grid
from distkeras_grid import errors
from tests.processes import python_output

# The examples of these use Keras, which costs seconds (TensorFlow is behind it).
HEAVY = (
    "distkeras_grid.trainers",
    "distkeras_grid.engine.combination",
    "distkeras_grid.engine.schedules",
    "distkeras_grid.model_parallel.towers_engine",
)


def modules():
    for package in (distkeras_grid, data_prep):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                yield found.name


def light(name):
    return not name.startswith(HEAVY)


def run_doctests(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


@pytest.mark.parametrize("name", sorted(filter(light, modules())))
def test_examples_in_docstrings_run(name):
    run_doctests(name)


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", sorted(name for name in modules() if not light(name)))
def test_examples_with_keras_run(name):
    run_doctests(name)


@pytest.mark.tensorflow
def test_every_public_name_is_there_and_documented():
    for name in distkeras_grid.__all__:
        thing = getattr(distkeras_grid, name)
        assert inspect.getdoc(thing), name
    assert set(dir(distkeras_grid)) == {*distkeras_grid.__all__, "__version__"}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Trainer3000"):
        _ = distkeras_grid.Trainer3000


@pytest.mark.parametrize(
    ("names", "more"),
    [
        ("distkeras_grid, data_prep, distkeras_grid.cli.main", "matplotlib pandas"),
        ("distkeras_grid.simulation.run", "pyarrow"),
        ("distkeras_grid.progress", "IPython numpy"),
        ("distkeras_grid.webhdfs.operations", "hdfs requests numpy"),
    ],
)
def test_importing_the_package_imports_no_framework(names, more):
    code = (
        f"import {names}, sys; heavy = {{'tensorflow', 'keras', 'pyspark'}};"
        f"heavy = (heavy | set('{more}'.split())) & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    assert python_output(code) == []


def test_every_exception_is_drawn_in_the_tree():
    kinds = [
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.GridError)
    ]
    drawn = re.findall(r"^ *(?:[│├└─ ]+ )?(\w+Error)\b", errors.__doc__ or "", re.MULTILINE)
    assert sorted(drawn) == sorted(kinds)
