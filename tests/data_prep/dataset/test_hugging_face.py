from __future__ import annotations

import pytest

from data_prep.dataset.hugging_face import CORRECTED, describe_tiles
from data_prep.dataset.manifest import DataSet
from distkeras_grid.feeding.schema import Field

yaml = pytest.importorskip("yaml")

CLASSES = ("no", "10: b 🧫")


def entry(source, shard, split, label="no", **more):
    digest = f"{hash((source, shard)) & 0xFFFFFFFF:064x}"
    found = {"source": source, "status": "tiled", "sha256": digest, "label": label}
    return found | {"shard": shard, "split": split, **more}


def manifest(*more, encoding="jpeg"):
    image = Field("image", (8, 8, 1), encoding=encoding, classes=CLASSES)
    sources = [
        entry("a.png", 2, "train"),
        entry("b.png", 0, "train", "10: b 🧫"),
        entry("c.png", 2, "test"),
        {"source": "d.png", "status": "left out", "reason": "damaged"},
        *more,
    ]
    return {
        "image": image.to_metadata(),
        "classes": list(CLASSES),
        "sources": sources,
        "shards": ["shard=0", "shard=2"],
        **{"spec": {}, "settings": {}, "last_shard": 2, "last_update": 0},
    }


def parsed(content):
    return yaml.safe_load(describe_tiles(DataSet.from_json(content)))


def paths_of(content):
    """Patterns by split."""
    (config,) = parsed(content)["configs"]
    return {each["split"]: each["path"] for each in config["data_files"]}


def kinds_of(content):
    features = parsed(content)["dataset_info"]["features"]
    return {each["name"]: each["dtype"] for each in features}


def test_each_split_has_the_shards_of_its_images():
    assert paths_of(manifest()) == {
        "test": ["shard=2/split=test/*.parquet"],
        "train": ["shard=0/split=train/*.parquet", "shard=2/split=train/*.parquet"],
    }


def test_an_image_without_a_tile_is_in_no_file():
    """`tile --keep` may drop all tiles of an image; the night ended with a KeyError."""
    without = entry("e.png", 0, "validation")
    del without["shard"]
    assert paths_of(manifest(without)) == paths_of(manifest())


@pytest.mark.parametrize(
    ("encoding", "kind"),
    [("jpeg", "image"), ("png", "image"), ("raw", "binary"), ("difference", "binary")],
)
def test_images_that_are_files_are_images(encoding, kind):
    assert kinds_of(manifest(encoding=encoding))["image"] == kind


def test_names_of_classes_stay_text():
    names = {"0": "no", "1": "10: b 🧫"}
    assert kinds_of(manifest())["label"] == {"class_label": {"names": names}}


@pytest.mark.parametrize("more", [{"stored_label": "no"}, {"set_aside": "out of focus"}])
def test_files_whose_labels_hold_no_more_are_not_read(more):
    found = paths_of(manifest(entry("e.png", 0, "train", "10: b 🧫", **more)))
    assert found == {"test": [CORRECTED], "train": [CORRECTED]}
