"""A model function is imported as the driver will import it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from distkeras_grid.cli.model_functions import load_function
from distkeras_grid.errors import ConfigurationError


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current directory has a module, a package, and a package of no file of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    net = "def net(): pass\n"
    for file, text in {
        "my_module.py": "globals()['net'] = print\n",
        "my_package/__init__.py": "",
        "my_package/nets.py": net,
        "my_space/nets.py": net,
    }.items():
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_text(text)
    yield
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]


@pytest.mark.parametrize("source", ["my_module:net", "my_package.nets:net", "my_space.nets:net"])
def test_a_function_beside_the_user_is_found(here, source):
    assert callable(load_function(source))


@pytest.mark.parametrize(
    "source",
    [
        *("my_package.nets:nett", "my_package.netts:net", "my_pakage.nets:net"),
        *("my_package.nets.net:net", "my_package:net", "my_space.nets:nett"),
        *("my_package.:net", ".nets:net", "my_package..nets:net", "my_package.nets:", "net"),
    ],
)
def test_a_misspelt_function_is_refused(here, source):
    with pytest.raises(ConfigurationError, match="--model"):
        load_function(source)
