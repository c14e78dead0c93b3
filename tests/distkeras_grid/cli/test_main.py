"""The command line as a whole: verbs, help texts."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys

import pytest

import distkeras_grid
from distkeras_grid.cli.main import main
from distkeras_grid.cli.verbs import VERBS
from distkeras_grid.errors import ConfigurationError

# Spark jobs: flags, examples, exit codes of files.
JOBS = ("tile", "ingest", "train", "retrain", "predict", "evaluate")
TRANSFERS = ("put", "get", "ls", "rm")


def test_help_names_the_verbs_and_the_exit_codes(capsys):
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    for name, verb in VERBS.items():
        assert f"  {name} " in told
        assert verb.description in told
    assert "130  interrupted" in told


def test_no_verb_is_a_usage_error_that_shows_the_help(capsys):
    assert main([]) == 2
    assert "usage: distkeras-grid VERB" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"distkeras_grid {distkeras_grid.__version__}\n"


@pytest.mark.parametrize("verb", [*JOBS, *TRANSFERS])
def test_each_help_has_examples_defaults_and_exit_codes(verb, capsys):
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert f"usage: distkeras-grid {verb}" in told
    assert "examples:" in told
    assert f"distkeras-grid {verb} --" in told
    assert "exit codes:" in told
    assert "  4  a path cannot be read or written" in told


@pytest.mark.parametrize("verb", VERBS)
def test_each_flag_is_explained_and_names_no_function_of_ours(verb):
    """argparse tells a `ValueError` as "invalid _count value"; only int and float say enough."""
    for action in VERBS[verb].load().build_parser()._actions:
        assert action.help or not action.option_strings
        if action.type not in (None, int, float, str):
            for text in ("x", "", "1,5", "nan"):
                with contextlib.suppress(argparse.ArgumentTypeError, ConfigurationError):
                    action.type(text)


@pytest.mark.parametrize("verb", ["train", "submit", "put", "doctor"])
def test_a_help_text_imports_no_framework(verb):
    code = (
        "import sys\nfrom distkeras_grid.cli.main import main\n"
        f"try: main([{verb!r}, '--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('tensorflow', 'keras', 'pyspark') if name in sys.modules])"
    )
    # In a process of its own: here they may be imported already.
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines()[-1] == "[]"
