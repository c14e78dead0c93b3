"""The command line as a whole: verbs, help texts."""

from __future__ import annotations

import importlib
from importlib import metadata

import pytest

from distkeras_grid.cli.main import DESCRIPTIONS, main

MODULES = {
    "train": "distkeras_grid.cli.train",
    "predict": "distkeras_grid.cli.predict",
    "evaluate": "distkeras_grid.cli.evaluate",
    "retrain": "distkeras_grid.cli.retrain",
    "tile": "data_prep.command",
    "ingest": "data_prep.ingest.command",
}


def test_help_names_the_verbs_and_the_exit_codes(capsys):
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    for verb, description in DESCRIPTIONS.items():
        assert verb in told
        assert description in told
    assert "130  interrupted" in told


def test_no_verb_is_a_usage_error_that_shows_the_help(capsys):
    assert main([]) == 2
    assert "usage: distkeras-grid VERB" in capsys.readouterr().out


def test_an_unknown_verb_is_answered_with_the_nearest(capsys):
    assert main(["evalute"]) == 2
    told = capsys.readouterr().err
    assert "no verb 'evalute' (did you mean 'evaluate'?)" in told
    assert "Known: tile, ingest, train, retrain, predict, evaluate, " in told


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"distkeras_grid {metadata.version('distkeras_grid')}\n"


def test_a_verb_gets_the_rest_of_the_line(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", "--help"])
    assert ended.value.code == 0
    assert "usage: distkeras-grid train" in capsys.readouterr().out


@pytest.mark.parametrize("verb", MODULES)
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


@pytest.mark.parametrize("verb", MODULES)
def test_each_flag_is_explained(verb):
    parser = importlib.import_module(MODULES[verb]).build_parser()
    assert [action.option_strings for action in parser._actions if not action.help] == []


@pytest.mark.parametrize("verb", MODULES)
def test_an_unknown_flag_is_a_usage_error(verb, capsys):
    with pytest.raises(SystemExit) as ended:
        main([verb, "--no-such-flag"])
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err
