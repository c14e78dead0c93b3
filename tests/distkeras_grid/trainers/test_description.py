"""What is said before a run."""

from __future__ import annotations

from importlib import metadata

import pyspark
import pytest

from distkeras_grid import __version__
from distkeras_grid.checkpoints import Driver
from distkeras_grid.history import History
from distkeras_grid.rules import (
    AccumulatedGradientRule,
    ElasticRule,
    SequentialRule,
)
from distkeras_grid.trainers.defaults import CommunicationWindow
from distkeras_grid.trainers.description import (
    compression_sentence,
    describe_run,
    headline_of,
)
from tests.records import window_record
from tests.specs import make_spec


def announced(rule, workers=2, window=CommunicationWindow(4), compression=None):  # noqa: B008 - frozen
    spec = make_spec(
        rule=rule,
        trainer="ADAG",
        rows=200,
        workers=workers,
        batch_size=8,
        trainable_size=250_000,
        compression=compression,
    )
    return headline_of(spec, rule, window)


def test_versions_are_known_without_metadata_as_in_an_archive(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    found = describe_run("run", make_spec(), [], "yarn", Driver("application_1_1", 1))["versions"]
    assert (found["distkeras_grid"], found["pyspark"]) == (__version__, pyspark.__version__)


@pytest.mark.parametrize(
    ("rule", "more", "line"),
    [
        (
            AccumulatedGradientRule(),
            {},
            "ADAG: 200 rows, 2 workers, batch 8 each, 16 together, exchange every 4 batches "
            "(1 MB each way)",
        ),
        (
            SequentialRule(),
            {"workers": 1, "window": CommunicationWindow(None)},
            "ADAG: 200 rows, 1 worker, batch 8, exchange once an epoch (1 MB to the driver)",
        ),
        (
            AccumulatedGradientRule(),
            {"compression": "dgc"},
            "ADAG: 200 rows, 2 workers, batch 8 each, 16 together, exchange every 4 batches "
            "(1 MB each way before compression)",
        ),
        (
            ElasticRule(0.45),
            {},
            "ADAG: 200 rows, 2 workers, batch 8 each, 16 together, exchange every 4 batches "
            "(1 MB each way), alpha 0.45",
        ),
    ],
)
def test_the_first_line_tells_what_no_argument_did(rule, more, line):
    assert announced(rule, **more) == line


def test_the_last_line_says_what_compression_has_saved():
    history = History()
    for number in range(10):
        history.add(window_record(number + 1, bytes_up=2_000_000, bytes_down=2_000_000))
    sentence = compression_sentence(history, size=1_000_000)
    assert sentence == "compression moved 40 MB instead of 80 MB"
