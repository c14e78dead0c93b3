"""A manifest is data: what no run writes there is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from data_prep.dataset import manifest as manifest_module
from data_prep.dataset.manifest import DataSet
from data_prep.dataset.schema import COLUMNS
from data_prep.dataset.settings import TilingSettings
from distkeras_grid.dataset.manifest import TILED, DuplicatePair, ImageRecord
from distkeras_grid.errors import ConfigurationError, SchemaError
from tests.data_prep.dataset.test_croissant import SPEC, manifest

SETTINGS = TilingSettings("in", "out", SPEC)


def content():
    values = {"sha256": "a" * 64, "label": "a", "split": "train", "shard": 3, "update": 0}
    return json.loads(json.dumps(manifest(ImageRecord("a/0.png", TILED, 4, **values))))


def test_what_was_written_is_read():
    known = DataSet.from_json(content())
    assert known.entries["a/0.png"].shard == 3
    assert (known.manifest.last_shard, known.image.classes) == (7, ("a", "b"))
    known.check_settings(SETTINGS)


@pytest.mark.parametrize("name", ["image", "spec", "settings", "sources", "last_shard"])
def test_a_damaged_manifest_is_refused(name):
    damaged = content()
    del damaged[name]
    with pytest.raises(SchemaError):
        DataSet.from_json(damaged)
    with pytest.raises(SchemaError):
        DataSet.from_json({**content(), name: "x"})


def test_settings_that_are_missing_are_others():
    damaged = content()
    del damaged["settings"]["seed"]
    with pytest.raises(ConfigurationError):
        DataSet.from_json(damaged).check_settings(SETTINGS)


def test_an_update_brings_no_column_that_the_tiles_lack(monkeypatch):
    """Which columns a reader saw depended on the file that it opened first."""
    known, count = DataSet.from_json(content()), len(COLUMNS)
    added = ("sharpness", "double", "for the test")
    monkeypatch.setattr(manifest_module, "COLUMNS", (*COLUMNS, added))
    with pytest.raises(ConfigurationError, match=rf"{count} columns.* {count + 1}\..*--overwrite"):
        known.check_settings(SETTINGS)


@pytest.mark.parametrize(
    ("former", "forgotten"),
    [
        ({"zones": "zones.csv"}, {}),
        ({"bottom_strip": 4}, {"zones": "zones.csv"}),
        ({"zones": "zones.csv", "bottom_strip": 4}, {"bottom_strip": 4}),
    ],
)
def test_zones_can_change_and_are_not_forgotten(former, forgotten):
    """All images were tiled again, with the bars on their tiles, and nothing said so."""
    told = content()
    told["settings"] |= former
    known = DataSet.from_json(told)
    with pytest.raises(ConfigurationError):
        known.check_settings(replace(SETTINGS, **forgotten))
    known.check_settings(replace(SETTINGS, **former))
    known.check_settings(replace(SETTINGS, zones="other.csv", bottom_strip=6))


def grouped(labels, **entry):
    """A data set whose image has a group."""
    told = content()
    told["sources"][0] |= {"group": "S1", **entry}
    told["settings"]["labels"] = labels
    return DataSet.from_json(told)


def test_a_table_of_groups_that_is_forgotten_is_refused():
    """All images lost their groups, and new ones of a specimen of train could stand in test."""
    for labels in ("t.csv", "hdfs:///labels/t.CSV"):
        known = grouped(labels)
        with pytest.raises(ConfigurationError, match="groups"):
            known.check_settings(SETTINGS)
        known.check_settings(replace(SETTINGS, labels="other.csv"))


def test_groups_that_no_table_gave_are_not_asked_for():
    # Set by hand, they stay.
    grouped("t.csv", by_hand=["group"]).check_settings(SETTINGS)
    grouped("folder").check_settings(SETTINGS)
    without = grouped("t.csv", group=None)
    without.check_settings(SETTINGS)


def test_pairs_that_are_alike_are_read_and_checked():
    pair = {"one": "a/0.png", "other": "a/1.png", "why": "seen"}
    assert DataSet.from_json(content()).manifest.near_duplicates == ()
    known = DataSet.from_json({**content(), "near_duplicates": [pair]})
    assert known.manifest.near_duplicates == (DuplicatePair("a/0.png", "a/1.png", "seen"),)
    for damaged in ("x", [1], [{"one": "a"}], [{**pair, "other": 3}]):
        with pytest.raises(SchemaError):
            DataSet.from_json({**content(), "near_duplicates": damaged})
