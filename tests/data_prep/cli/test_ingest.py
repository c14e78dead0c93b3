from __future__ import annotations

import pytest

from data_prep.cli import ingest
from data_prep.cli.ingest import main
from data_prep.ingest.job import IngestResult
from data_prep.ingest.settings import IngestSettings
from distkeras_grid.errors import ConfigurationError


@pytest.fixture
def called(monkeypatch):
    """The settings with which the job would have run, without Spark."""
    calls = []
    monkeypatch.setattr(ingest, "start_spark", lambda *_, **__: None)
    done = IngestResult({"rows": 0}, {})
    monkeypatch.setattr(
        ingest, "ingest_images", lambda settings, **_: calls.append(settings) or done
    )
    return calls


def test_every_flag_arrives(called):
    assert main(["--input", "i", "--output", "o", "--size", "9"]) == 0
    flags = (
        "--input i --output o --size 64 --gray --labels l.csv --group (?P<group>.) --split folder "
        "--seed 3 --allow-empty"
    )
    assert main(flags.split()) == 0
    assert called == [
        IngestSettings("i", "o", 9),
        IngestSettings("i", "o", 64, True, "l.csv", "(?P<group>.)", "folder", 3, True),
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"input": ""}, "input and output must be paths"),
        ({"size": 0}, r"size must be at least 1 pixel.*Received: 0"),
        ({"split": "half"}, "split must be"),
        ({"labels": "regex:("}, "not a regular expression"),
        ({"group": "a"}, "needs a group named 'group'"),
    ],
)
def test_settings_that_cannot_be_used(values, message):
    with pytest.raises(ConfigurationError, match=message):
        IngestSettings(**{"input": "i", "output": "o", "size": 8, **values})


def test_what_was_left_out_means_code_7(called, monkeypatch):
    done = IngestResult({"rows": 0}, {"lost+found": "this folder cannot be opened"})
    monkeypatch.setattr(ingest, "ingest_images", lambda *_, **__: done)
    assert main(["--input", "i", "--output", "o", "--size", "8"]) == 7
