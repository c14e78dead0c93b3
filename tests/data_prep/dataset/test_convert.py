"""A data set of the layout before, on files of this machine, without Spark."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

from data_prep.dataset.commit import read_head
from data_prep.dataset.convert import convert_layout
from distkeras_grid.dataset.versions import present_manifest
from distkeras_grid.errors import PathNotFoundError, SchemaError
from tests.data_prep.dataset.test_croissant import DAY, IMAGE, OTHER, manifest
from tests.local_files import LocalFiles, Stop

HEX = "0" * 32
LEFT = (f"_owner.{HEX}", f"_new-8.{HEX}", f"_old-1.{HEX}", f"_dataset.{HEX}", "_update.json")
CARDS = {".huggingface.yaml", "_croissant.json", "_README.md"}


@pytest.fixture
def root(tmp_path):
    """A data set with a former version, and what killed runs have left."""
    former = {"number": 40, "hash": "a" * 64, "created": DAY, "replaced": DAY}
    former |= {"manifest": "b" * 64, "shards": ["shard=2"], "tiles": 9}
    content = {**manifest(IMAGE, OTHER), "version": 1, "last_shard": 7, "history": [former]}
    for name in ("shard=2", "shard=3", "shard=6", "shard=7"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_text("tiles")
    (tmp_path / "_versions").mkdir()
    (tmp_path / "_versions" / "40.json").write_text("{}")
    # A run was killed when it had copied the present manifest, before it decided anything.
    (tmp_path / "_versions" / "41.json").write_text("half")
    (tmp_path / "_dataset.json").write_text(json.dumps(content))
    for name in LEFT:
        (tmp_path / name).write_text("")
    return tmp_path


def test_a_data_set_is_converted_and_no_tile_is_written_again(root):
    before = {path: path.stat().st_mtime_ns for path in root.glob("shard=*/*")}
    with pytest.raises(SchemaError, match="--convert"):
        read_head(LocalFiles(), str(root))
    assert convert_layout(LocalFiles(), f"{root}/") == 41
    head = read_head(LocalFiles(), str(root))
    assert (head.manifest.last_update, head.shards) == (41, {3: "shard=3", 7: "shard=7"})
    assert [each.number for each in head.manifest.history] == [40]
    # What no version lists is gone, too.
    shards = {"shard=2", "shard=3", "shard=7"}
    assert {path.name for path in root.iterdir()} == {*shards, "_versions", *CARDS}
    assert {path.name for path in root.glob("_versions/*")} == {"40.json", "41.json"}
    after = {path: path.stat().st_mtime_ns for path in root.glob("shard=*/*")}
    assert after.items() <= before.items()
    with pytest.raises(PathNotFoundError, match="nothing to convert"):
        convert_layout(LocalFiles(), str(root))


def test_a_conversion_that_was_killed_is_refused_by_readers_or_is_complete(root):
    content = (root / "_dataset.json").read_text()
    for step in range(16):
        (root / "_dataset.json").write_text(content)
        for name in LEFT:
            (root / name).write_text("")
        with suppress(Stop):
            convert_layout(LocalFiles(stop_at=step), str(root))
        if (root / "_dataset.json").exists():
            with pytest.raises(SchemaError, match="--convert"):
                read_head(LocalFiles(), str(root))
        else:
            assert read_head(LocalFiles(), str(root)).manifest.last_update == 41
            assert not any((root / name).exists() for name in LEFT)
    assert not (root / "_dataset.json").exists()


def test_a_data_set_of_images_has_one_version(tmp_path):
    (tmp_path / "_dataset.json").write_text(json.dumps({"rows": 3, "classes": ["a"]}))
    assert convert_layout(LocalFiles(), str(tmp_path)) == 0
    files = LocalFiles()
    number, text = present_manifest(str(tmp_path), files.list_names, files.exists, files.read_bytes)
    assert (number, json.loads(text)["rows"]) == (0, 3)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"sources": 3}', '{"sources": []}'])
def test_what_is_no_manifest_is_refused_and_not_touched(tmp_path, text):
    (tmp_path / "_dataset.json").write_text(text)
    with pytest.raises(SchemaError, match=r"_dataset\.json"):
        convert_layout(LocalFiles(), str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["_dataset.json"]
    assert (tmp_path / "_dataset.json").read_text() == text
