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
    monkeypatch.setattr(ingest.preflight, "check_input", lambda *_: None)
    monkeypatch.setattr(ingest, "start_spark", lambda *_, **__: None)
    done = IngestResult({"rows": 0}, {})
    monkeypatch.setattr(
        ingest, "ingest_images", lambda settings, **_: calls.append(settings) or done
    )
    return calls


def test_defaults(called):
    assert main(["--format", "idx", "--input", "i", "--output", "o"]) == 0
    assert called == [IngestSettings("idx", "i", "o")]


def test_every_flag_arrives(called):
    flags = (
        "--format images --input i --output o --size 64 --gray --standardise --pca "
        "--labels l.csv --group (?P<group>.) --split folder --seed 3 --allow-empty"
    )
    assert main(flags.split()) == 0
    (settings,) = called
    assert settings.to_json() == {
        "format": "images",
        "input": "i",
        "output": "o",
        "size": 64,
        "gray": True,
        "standardise": True,
        "pca": True,
        "labels": "l.csv",
        "group": "(?P<group>.)",
        "split": "folder",
        "seed": 3,
        "allow_empty": True,
        "classes": [],
    }
    assert main(["--format", "idx", "--input", "i", "--output", "o", "--classes", "a, b,"]) == 0
    assert called[1].classes == ("a", "b")


def test_wrong_values_are_one_line_and_code_2(called, capsys):
    assert main(["--format", "images", "--input", "i", "--output", "o"]) == 2
    assert capsys.readouterr().err == (
        "ConfigurationError: Image files differ in size. Give one for all (--size 128).\n"
    )
    assert not called


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": "png"}, r"format must be one of idx, cifar10, images.*Received: 'png'"),
        ({"input": ""}, "input and output must be paths"),
        ({"size": 0}, r"size must be at least 1 pixel.*Received: 0"),
        ({"pca": True}, "of gray images"),
        ({"format": "cifar10", "classes": ("a",)}, "leave out a"),
        ({"split": "half"}, "split must be"),
        ({"labels": "regex:("}, "not a regular expression"),
        ({"group": "a", "format": "images", "size": 8}, "needs a group named 'group'"),
        ({"group": "(?P<group>a)"}, "idx .*have no groups"),
    ],
)
def test_settings_that_cannot_be_used(values, message):
    with pytest.raises(ConfigurationError, match=message):
        IngestSettings(**{"format": "idx", "input": "i", "output": "o", **values})


def test_what_the_image_column_will_hold():
    def field(**values):
        settings = IngestSettings("idx", "i", "o", **values)
        return settings.field(settings.look((20, 30, 3)), ("a",))

    assert (field().shape, field().dtype, field().scale) == ((20, 30, 3), "uint8", 1 / 255)
    assert field(size=9, gray=True).shape == (9, 9, 1)
    standard = field(standardise=True)
    assert (standard.shape, standard.dtype, standard.scale) == ((20, 30, 3), "float32", 1.0)
    assert field(gray=True, pca=True).shape == (28, 28, 1)
    assert field().classes == ("a",)


def test_what_was_left_out_means_code_7(called, monkeypatch):
    done = IngestResult({"rows": 0}, {"lost+found": "this folder cannot be opened"})
    monkeypatch.setattr(ingest, "ingest_images", lambda *_, **__: done)
    assert main(["--format", "idx", "--input", "i", "--output", "o"]) == 7
