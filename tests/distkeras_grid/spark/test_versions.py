"""Versions by number and by hash, as a manifest lists them."""

from __future__ import annotations

import hashlib
import json

import msgspec
import pytest

from distkeras_grid.errors import ConfigurationError, SchemaError
from distkeras_grid.spark.versions import (
    Version,
    VersionHistory,
    check_manifest,
    choose,
    file_of,
    parse_version,
    read_history,
)

DAY = "2026-11-23T00:00:00+00:00"


def version(number, text="x"):
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Version(number, f"{number}abc" * 16, DAY, DAY, digest, ("shard=0",), 9)


HISTORY = VersionHistory(last_update=7, hash="f" * 64, history=(version(3), version(5)))


@pytest.mark.parametrize(
    ("wanted", "number"),
    [(5, 5), ("3", 3), ("5abc" * 16, 5), ("3abc3abc3abc", 3), (7, None), ("f" * 12, None)],
)
def test_a_version_is_chosen_by_number_or_hash(wanted, number):
    found = choose(HISTORY, wanted, "tiles")
    assert (found and found.number) == number


@pytest.mark.parametrize("wanted", [0, 4, 8, "a" * 64])
def test_a_version_that_is_not_kept_is_named_with_those_that_are(wanted):
    with pytest.raises(SchemaError, match=r"3, 5, 7 \(the present\)"):
        choose(HISTORY, wanted, "tiles")


@pytest.mark.parametrize("wanted", ["", "-1", "1.5", "abc", "../3", "F" * 64, "x" * 12])
def test_what_is_no_version_is_refused(wanted):
    with pytest.raises(ConfigurationError):
        parse_version(wanted)


def test_a_manifest_that_somebody_changed_is_refused():
    assert check_manifest("x", version(3, "x"), "tiles") == "x"
    with pytest.raises(SchemaError, match=file_of(3)):
        check_manifest("y", version(3, "x"), "tiles")


def test_manifests_of_earlier_releases_have_no_history():
    assert read_history('{"last_update": 4, "shards": ["shard=0"]}', "m") == VersionHistory(4)
    assert read_history("{}", "m").last_update == -1


@pytest.mark.parametrize(
    "change",
    [
        {"shards": ["../home"]},
        {"shards": ["shard=0/.."]},
        {"number": -1},
        {"number": "../3"},
        {"manifest": "' or 1=1"},
        {"replaced": "yesterday"},
        {"hash": "f" * 63},
    ],
)
def test_a_hostile_history_is_refused(change):
    told = msgspec.to_builtins(version(3)) | change
    with pytest.raises(SchemaError):
        read_history(json.dumps({"last_update": 4, "history": [told]}), "m")
