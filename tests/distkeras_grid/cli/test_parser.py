"""A mistake in a command line is reported in one line that names it."""

from __future__ import annotations

import argparse
import contextlib

import pytest

from distkeras_grid.cli.exit_codes import ExitCode
from distkeras_grid.cli.main import main
from distkeras_grid.cli.parser import verb_parser
from distkeras_grid.cli.verbs import VERBS
from distkeras_grid.errors import ConfigurationError


def build():
    parser = verb_parser("tile", "Cut images.")
    parser.add_argument("--input", required=True)
    parser.add_argument("--angles")
    parser.add_argument("--update", action="store_true")
    return parser


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["tile", "--input", "i", "--output", "o", "--anlges", "0"], "--angles"),
        (["evaluate", "--data", "a", "--lable", "b"], "--label"),
        (["submit", "--exectors", "3", "train"], "--executors"),
        (["submit", "evaluate", "--data", "tiles", "--lable=b"], "--label"),
    ],
    ids=lambda words: words[0],
)
def test_a_misspelt_flag_is_named_with_the_nearest(words, advice, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert f"(did you mean {advice}?)" in line


def test_a_mistake_is_one_line_without_the_list_of_flags(capsys):
    with pytest.raises(SystemExit):
        build().parse_args(["--update"])
    (line,) = capsys.readouterr().err.splitlines()
    assert "--input" in line
    assert "--help" in line


@pytest.mark.parametrize("verb", VERBS)
def test_a_value_is_not_refused_by_the_name_of_a_function_of_ours(verb):
    """argparse tells a `ValueError` as "invalid _count value"; only int and float say enough."""
    for action in VERBS[verb].load().build_parser()._actions:
        if action.type not in (None, int, float, str):
            for text in ("x", "", "1,5", "nan"):
                with contextlib.suppress(argparse.ArgumentTypeError, ConfigurationError):
                    action.type(text)
