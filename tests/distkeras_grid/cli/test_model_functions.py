"""Names that a module's source tells, and sources from which nothing can be told."""

from __future__ import annotations

import importlib
import sys

import pytest

from distkeras_grid.cli import model_functions
from distkeras_grid.cli.model_functions import check_function
from distkeras_grid.errors import ConfigurationError


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a module `written` into the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def written(source):
        content = source if isinstance(source, bytes) else source.encode()
        (tmp_path / "written.py").write_bytes(content)
        importlib.invalidate_caches()

    yield written
    assert "written" not in sys.modules


@pytest.mark.parametrize(
    "source",
    [
        "net = lambda: 1",
        "def make(): pass\nnet: object = make()",
        "from x import y as net",
        "try:\n    from x import net\nexcept ImportError:\n    net = None",
        b"# -*- coding: latin-1 -*-\n# \xe9\ndef net(): pass\n",
        b"\xef\xbb\xbfdef net(): pass\n",
    ],
)
def test_a_name_may_come_into_a_module_in_any_way(write, source):
    write(source)
    check_function("written:net")
    with pytest.raises(ConfigurationError):
        check_function("written:nett")


@pytest.mark.parametrize(
    "source",
    [
        "globals()['net'] = print",
        "for name in ('net',):\n    vars()[name] = print",
        "exec('net = print')",
        "import sys\nsetattr(sys.modules[__name__], 'net', print)",
        "import sys\nsys.modules[__name__].net = print",
        "import sys\nsys.modules[__name__].__dict__.update(net=print)",
    ],
)
def test_a_module_that_makes_its_names_when_it_runs_is_left_to_the_import(write, source):
    write(source)
    check_function("written:net")


@pytest.mark.parametrize(
    "source",
    [
        "def net(:",
        b"x = 1\0",
        b"# -*- coding: nonsense -*-\n",
        # Both are too deep for Python's compiler.
        "x = " + "+".join(["1"] * 100_000),
        "x = " + "-" * 100_000 + "1",
    ],
)
def test_a_source_that_cannot_be_parsed_is_left_to_the_import(write, source):
    write(source)
    check_function("written:net")


def test_a_huge_source_is_not_parsed(write, monkeypatch):
    write("def net(): pass\n#")
    with pytest.raises(ConfigurationError):
        check_function("written:nett")
    monkeypatch.setattr(model_functions, "LONGEST", 10)
    check_function("written:nett")
