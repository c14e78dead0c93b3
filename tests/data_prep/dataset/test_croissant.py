"""The description of a data set for machines, as `mlcroissant` 1.1.1 was seen to read it."""

from __future__ import annotations

import json

import pytest

from data_prep.dataset.croissant import describe
from data_prep.dataset.manifest import build_manifest, revised
from data_prep.dataset.schema import COLUMNS, image_field
from data_prep.dataset.settings import TilingSettings
from data_prep.geometry.grid import TileSpec
from distkeras_grid.dataset.manifest import TILED, ImageRecord
from distkeras_grid.errors import SchemaError

SPEC = TileSpec(32, angles=[0])
DAY = "2026-11-20T00:00:00+00:00"


def manifest(*entries, encoding="raw", classes=("a", "b"), **more):
    """Return the content of a manifest of version 41."""
    settings = TilingSettings("/raw", "/tiles", SPEC, encoding=encoding)
    image = image_field(SPEC, 1, "uint8", encoding, classes, 8)
    commit = {"hash": "f" * 64, "last_update": 41, "created": DAY}
    shards = {"last_shard": 7, "shards": ["shard=3", "shard=7"]}
    return {**build_manifest(settings, image, entries, {}), **commit, **shards, **more}


IMAGE = ImageRecord("a/0.png", TILED, tiles=4, label="a", split="train", sha256="0" * 64)
OTHER = ImageRecord("b/0.png", TILED, tiles=2, label="b", split="test", sha256="1" * 64)


def test_each_column_is_a_field_and_each_shard_of_the_version_a_pattern():
    told = json.loads(describe(manifest(IMAGE, OTHER), "rocks"))
    assert (told["name"], told["version"]) == ("rocks", "41.0.0")
    assert "f" * 64 in told["citeAs"]
    (files,) = told["distribution"]
    assert files["includes"] == ["shard=3/split=*/*.parquet", "shard=7/split=*/*.parquet"]
    splits, rows = told["recordSet"]
    assert [each["splits/name"] for each in splits["data"]] == ["test", "train"]
    names = [each["name"] for each in rows["field"]]
    assert names == ["image", *(name for name, _, _ in COLUMNS)]
    assert {each["source"]["fileSet"]["@id"] for each in rows["field"]} == {files["@id"]}
    assert "6 tiles of 32x32" in told["description"]
    assert "manifest" not in told["description"]


def test_stored_pictures_are_images_and_raw_pixels_are_not():
    raw, difference, jpeg = (
        json.loads(describe(manifest(IMAGE, encoding=encoding), "x"))["recordSet"][1]["field"][0]
        for encoding in ("raw", "difference", "jpeg")
    )
    assert (raw["dataType"], jpeg["dataType"]) == ("sc:Text", "sc:ImageObject")
    assert difference["dataType"] == "sc:Text"
    assert raw["description"] in difference["description"] != raw["description"]
    assert jpeg["source"]["transform"] == {"jsonPath": "bytes"}


def test_who_reads_only_the_files_is_told_what_they_lack():
    aside = ImageRecord("b/1.png", TILED, tiles=2, label="b", split="test", set_aside="blurred")
    told = json.loads(describe(manifest(revised(IMAGE, label="b"), OTHER, aside), "x"))
    assert "of 1 images, and rows of 1 images that were excluded" in told["description"]


def test_what_a_person_wrote_stays_and_what_a_night_wrote_does_not():
    first = json.loads(describe(manifest(IMAGE), "x"))
    person = {"license": "https://spdx.org/licenses/CC-BY-4.0", "name": "rocks", "creator": {}}
    former = json.dumps({**first, **person, "version": "7.0.0", "recordSet": []})
    now = json.loads(describe(manifest(IMAGE, OTHER), "x", former))
    assert {name: now[name] for name in person} == person
    assert (now["version"], len(now["recordSet"])) == ("41.0.0", 2)
    assert now["citeAs"].startswith("rocks, version 41")
    same = manifest(IMAGE)
    assert describe(same, "x", describe(same, "x")) == describe(same, "x")
    for damaged in ("{", "[]"):
        with pytest.raises(SchemaError):
            describe(manifest(IMAGE), "x", damaged)
