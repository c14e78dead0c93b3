"""Which versions of a data set are kept, and what their hashes depend on."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta

import pytest

from data_prep.dataset.history import (
    apply_retention,
    next_manifest,
    parse_keep,
    utc,
    version_hash,
)
from data_prep.dataset.manifest import LASTING
from distkeras_grid.dataset.manifest import Version, convert_manifest
from distkeras_grid.errors import ConfigurationError

NOW = datetime(2026, 11, 23, tzinfo=UTC)


def version(number, *shards, days_ago=0):
    replaced = utc(NOW - timedelta(days=days_ago))
    names = tuple(f"shard={shard}" for shard in shards)
    return Version(number, f"{number:064x}", replaced, replaced, names, 9)


# Shard 0 was replaced at version 2, shard 1 at version 3; the present version is 4.
HISTORY = [
    version(0, 0, days_ago=40),
    version(1, 0, 1, days_ago=30),
    version(2, 1, 2, days_ago=20),
    version(3, 2, 3, days_ago=10),
]
PRESENT = {"shard=2", "shard=3", "shard=4"}


@pytest.mark.parametrize(
    ("keep", "numbers"),
    [
        # Version 3 costs nothing: the present one has its shards.
        (None, [3]),
        ("7d", [3]),
        ("1", [3]),
        ("2", [3]),
        ("3", [2, 3]),
        ("10", [0, 1, 2, 3]),
        ("15d", [3]),
        ("20d", [2, 3]),
        # Shard 0 and shard 1 are there for version 1, so version 0 can be read, too.
        ("30d", [0, 1, 2, 3]),
        ("400d", [0, 1, 2, 3]),
    ],
)
def test_versions_last_as_long_as_their_shards(keep, numbers):
    kept = apply_retention(HISTORY, PRESENT, parse_keep(keep), NOW)
    assert [each.number for each in kept] == numbers


@pytest.mark.parametrize("text", ["0", "-1", "d", "3w", "1.5d", "", "3 d", "1000000"])
def test_what_cannot_be_meant_is_refused(text):
    with pytest.raises(ConfigurationError):
        parse_keep(text)


def content(**more):
    sources = [
        {"source": f"{i}.png", "status": "tiled", "sha256": f"{i:064x}", "label": "a", "tiles": 4}
        for i in range(3)
    ]
    return {
        "created": utc(NOW),
        "image": {"shape": [8, 8, 1]},
        "spec": {"tile": 8},
        "settings": {"encoding": "raw", "input": "/raw"},
        "sources": sources,
        "shards": ["shard=0"],
        "last_update": 5,
        "tiles": 12,
        **more,
    }


def test_the_manifest_that_is_replaced_becomes_the_last_of_the_history():
    head = convert_manifest(content(history=[], hash="f" * 64), "m")
    later = NOW + timedelta(hours=1)
    (last,) = next_manifest(content(shards=["shard=0", "shard=1"]), head, later)["history"]
    times = {"created": utc(NOW), "replaced": utc(later)}
    assert last == {"number": 5, "hash": "f" * 64, **times, "shards": ("shard=0",), "tiles": 12}
    # Whoever reads it has a week to end, unless it is said otherwise.
    for keep, kept in (("1", 0), (None, 1)):
        now = content(shards=["shard=1"], settings={"keep_versions": keep})
        assert len(next_manifest(now, head, NOW)["history"]) == kept


def changed(path, value):
    told = copy.deepcopy(content())
    place = told
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return told


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["sources", 1, "label"], "b"),
        (["sources", 1, "split"], "test"),
        (["sources", 1, "group"], "S1"),
        (["sources", 1, "sha256"], "f" * 64),
        (["sources", 1, "source"], "9.png"),
        (["sources", 1, "zones"], "1" * 64),
        (["sources", 1, "tiles"], 5),
        (["sources", 1, "status"], "left out"),
        (["spec", "tile"], 16),
        (["image", "shape"], [16, 16, 1]),
    ],
)
def test_the_hash_tells_what_changes_a_row(path, value):
    assert version_hash(changed(path, value)) != version_hash(content())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["created"], utc(NOW + timedelta(days=1))),
        (["last_update"], 9),
        (["shards"], ["shard=3", "shard=9"]),
        (["settings", "input"], "/elsewhere"),
        (["sources", 1, "shard"], 7),
        (["sources", 1, "modified"], 7),
        (["sources"], list(reversed(content()["sources"]))),
        (["sources"], [*content()["sources"], {"source": "x", "status": "left out"}]),
    ],
)
def test_the_hash_tells_nothing_of_place_and_day(path, value):
    assert version_hash(changed(path, value)) == version_hash(content())


# What these settings decide is told by each image: its split and its group.
TOLD_BY_IMAGES = {"split", "seed", "group"}


@pytest.mark.parametrize("name", LASTING)
def test_each_setting_that_lasts_is_in_the_hash_or_in_the_images(name):
    former = content(settings={**content()["settings"], name: "one"})
    now = content(settings={**content()["settings"], name: "another"})
    assert (version_hash(former) != version_hash(now)) == (name not in TOLD_BY_IMAGES)


@pytest.mark.parametrize("name", ["normalise", "keep"])
def test_a_data_set_without_a_later_setting_has_the_hash_of_earlier_releases(name):
    assert version_hash(changed(["settings", name], None)) == version_hash(content())


def test_the_hash_of_a_version_that_was_cited_stays():
    cited = "e17fd0d276e697266380564d53de02b865770879ac4def402af557341276c1c5"
    assert version_hash(content()) == cited
