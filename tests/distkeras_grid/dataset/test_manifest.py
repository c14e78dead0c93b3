"""What a manifest makes of the rows in the files."""

import json

import msgspec
import pytest

from distkeras_grid.dataset.manifest import Version, decode_manifest, shard_number
from distkeras_grid.errors import SchemaError


def manifest(*sources, **more):
    entries = [
        {"source": f"{i}.png", "status": "tiled", "sha256": f"{i:064x}", "label": "a"} | each
        for i, each in enumerate(sources)
    ]
    told = {"shards": ["shard=0"], "classes": ["a", "b", "c"], "sources": entries}
    return json.dumps(told | more)


DAY = "2026-11-23T00:00:00+00:00"
VERSION = msgspec.to_builtins(Version(3, "3abc" * 16, DAY, DAY, ("shard=0",), 9))
MANIFEST = decode_manifest(
    manifest(
        {"split": "train"},
        {"split": "test", "label": "c", "stored_label": "a"},
        {"split": "train", "stored_split": "validation"},
        {"split": "train", "stored_source": "old/3.png"},
        {"split": "test", "set_aside": "blurred", "stored_label": "b"},
        {"status": "removed", "split": "validation", "stored_label": "b"},
        history=[VERSION],
    ),
    "m",
)


def test_only_what_has_changed_is_corrected():
    told = [
        (each.source, each.split, each.label, each.label_name) for each in MANIFEST.corrections()
    ]
    assert told == [
        ("1.png", "test", 2, "c"),
        ("2.png", "train", 0, "a"),
        ("3.png", "train", 0, "a"),
    ]
    assert MANIFEST.set_aside() == [f"{4:064x}"]


def test_splits_are_those_of_images_with_rows_and_know_their_folders():
    assert MANIFEST.splits() == {
        "0.png": "train",
        "1.png": "test",
        "2.png": "train",
        "3.png": "train",
    }
    assert MANIFEST.stored_splits("train") == {"train", "validation"}
    assert MANIFEST.stored_splits("test") == {"test"}
    assert MANIFEST.stored_splits("validation") == set()


@pytest.mark.parametrize(
    "text",
    [
        manifest({"split": "../home"}),
        manifest({"shard": "../../home"}),
        manifest({"shard": -1}),
        manifest({"source": 7}),
        manifest({"tiles": "many"}),
        manifest({"stored_split": "other"}),
        # It became a part of an SQL expression.
        *(manifest({"sha256": each}) for each in ("' or 1=1 or ''='", "A" * 64, "a" * 63, 7)),
        manifest({"sha256": "a" * 64 + "\n"}),
        manifest({"stored_label": "a", "label": "z"}),
        manifest(shards=["../home"]),
        manifest(shards=["shard=0-../home"]),
        manifest(last_update="../3"),
        manifest(classes=3),
        manifest(folds={"fold": {"columns": []}}),
        manifest(history=[VERSION | {"shards": ["../home"]}]),
        manifest(history=[VERSION | {"shards": ["shard=0/.."]}]),
        manifest(history=[VERSION | {"number": -1}]),
        manifest(history=[VERSION | {"number": "../3"}]),
        manifest(history=[VERSION | {"replaced": "yesterday"}]),
        manifest(history=[VERSION | {"hash": "f" * 63}]),
        "{",
    ],
)
def test_a_hostile_manifest_is_refused(text):
    with pytest.raises(SchemaError):
        decode_manifest(text, "m")


@pytest.mark.parametrize("name", ["shard=", "shard=x", "shard=1/..", "_new-1", "shard=1\n"])
def test_what_names_no_shard_has_no_number(name):
    with pytest.raises(SchemaError):
        shard_number(name)
