"""A mistake in a command line is reported in one line that names it."""

from __future__ import annotations

import argparse
import contextlib

import pytest

from distkeras_grid.cli.exit_codes import ExitCode
from distkeras_grid.cli.main import main
from distkeras_grid.cli.parser import Parser, verb_parser
from distkeras_grid.cli.verbs import VERBS
from distkeras_grid.errors import ConfigurationError


def build():
    parser = verb_parser("tile", "Cut images.")
    parser.add_argument("--input", required=True)
    parser.add_argument("--angles")
    parser.add_argument("--update", action="store_true")
    return parser


@pytest.mark.parametrize(
    "words",
    [
        ["tile", "--inptu", "images", "--output", "tiles"],
        ["train", "--data", "a", "--epohcs", "3"],
        ["submit", "--exectors", "3", "train"],
        ["submit", "train", "--dtaa", "tiles"],
        ["sandbox", "start", "--memroy", "3"],
    ],
    ids=lambda words: words[0],
)
def test_a_misspelt_flag_is_named_before_missing_ones(words, capsys):
    (wrong,) = [word for word in words if word in MISSPELT]
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert wrong in line
    assert MISSPELT[wrong] in line


MISSPELT = {
    "--inptu": "--input",
    "--epohcs": "--epochs",
    "--exectors": "--executors",
    "--dtaa": "--data",
    "--memroy": "--memory",
}


def test_a_mistake_is_one_line_without_the_list_of_flags(capsys):
    with pytest.raises(SystemExit):
        build().parse_args(["--update"])
    (line,) = capsys.readouterr().err.splitlines()
    assert "--input" in line
    assert "--help" in line


@pytest.mark.parametrize(
    "words",
    [
        ["--input", "images", "--angles=0"],
        ["--inp", "images"],
        ["--input", "a", "--update", "--angles", "-90"],
        ["--input", "a", "--", "--what"],
    ],
    ids=" ".join,
)
def test_flags_that_exist_are_taken(words):
    assert build().unknown_flag(words) is None


def test_what_follows_the_name_of_a_job_belongs_to_the_job():
    parser = Parser()
    parser.add_argument("--name")
    parser.add_argument("job")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    flags = parser.parse_args(["--name", "n", "train", "--data", "tiles"])
    assert flags.arguments == ["--data", "tiles"]
    assert parser.unknown_flag(["--nmae", "n", "train"]) == "--nmae"


def test_the_value_of_a_flag_is_no_flag():
    assert build().unknown_flag(["--input", "--weird"]) is None


@pytest.mark.parametrize("verb", VERBS)
def test_a_value_is_not_refused_by_the_name_of_a_function_of_ours(verb):
    """argparse tells a `ValueError` as "invalid _count value"; only int and float say enough."""
    for action in VERBS[verb].load().build_parser()._actions:
        if action.type not in (None, int, float, str):
            for text in ("x", "", "1,5", "nan"):
                with contextlib.suppress(argparse.ArgumentTypeError, ConfigurationError):
                    action.type(text)
