from __future__ import annotations

import pytest

from data_prep.dataset.hugging_face import CORRECTED, describe_tiles
from data_prep.dataset.manifest import DataSet
from distkeras_grid.dataset.manifest import LEFT_OUT, TILED, ImageRecord
from tests.data_prep.dataset.test_croissant import manifest

yaml = pytest.importorskip("yaml")

CLASSES = ("no", "10: b 🧫")


def entry(source, shard, split, label="no", **more):
    values = {"label": label, "split": split, "shard": shard, **more}
    return ImageRecord(source, TILED, sha256=f"{ord(source[0]):064x}", **values)


def content_of(*more, encoding="jpeg"):
    sources = [
        entry("a.png", 2, "train"),
        entry("b.png", 0, "train", "10: b 🧫"),
        entry("c.png", 2, "test"),
        ImageRecord("d.png", LEFT_OUT, reason="damaged"),
    ]
    names = ["shard=0", "shard=2"]
    return manifest(*sources, *more, encoding=encoding, classes=CLASSES, shards=names)


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
    assert paths_of(content_of()) == {
        "test": ["shard=2/split=test/*.parquet"],
        "train": ["shard=0/split=train/*.parquet", "shard=2/split=train/*.parquet"],
    }


def test_an_image_without_a_tile_is_in_no_file():
    """`tile --keep` may drop all tiles of an image; the night ended with a KeyError."""
    assert paths_of(content_of(entry("e.png", None, "validation"))) == paths_of(content_of())


@pytest.mark.parametrize(
    ("encoding", "kind"),
    [("jpeg", "image"), ("png", "image"), ("raw", "binary"), ("difference", "binary")],
)
def test_images_that_are_files_are_images(encoding, kind):
    assert kinds_of(content_of(encoding=encoding))["image"] == kind


def test_names_of_classes_stay_text():
    names = {"0": "no", "1": "10: b 🧫"}
    assert kinds_of(content_of())["label"] == {"class_label": {"names": names}}


@pytest.mark.parametrize("more", [{"stored_label": "no"}, {"set_aside": "out of focus"}])
def test_files_whose_labels_hold_no_more_are_not_read(more):
    found = paths_of(content_of(entry("e.png", 0, "train", "10: b 🧫", **more)))
    assert found == {"test": [CORRECTED], "train": [CORRECTED]}
