"""Data sets of others, judged from their folders, by the command as users run it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tifffile
from PIL import Image

from data_prep.cli.check_leaks import blind_spot, main
from data_prep.images.open_image import decode_image
from data_prep.images.plane_selection import PlaneSelector
from data_prep.spark.leak_check import check_leaks_of
from distkeras_grid.errors import (
    ConfigurationError,
    EmptyDataError,
    LabelError,
    PathNotFoundError,
)
from tests.data_prep.images.test_reader_base import STACK, write_zarr

pytestmark = pytest.mark.spark


@pytest.fixture
def published(tmp_path, samples):
    """A data set in folders, with a clean split of nine micrographs."""
    folder = tmp_path / "published"
    splits = ["train"] * 5 + ["val"] * 2 + ["test"] * 2
    for split, path in zip(splits, sorted(samples.glob("*/*.png"))[::7], strict=True):
        (folder / split / "a").mkdir(parents=True, exist_ok=True)
        pixels = decode_image(path.read_bytes(), path.name)[:, :, 0]
        Image.fromarray(pixels).save(folder / split / "a" / path.name)
    return folder


def picture(folder, split, number=0):
    path = sorted((folder / split / "a").glob("*.png"))[number]
    return path, np.asarray(Image.open(path))


def test_a_clean_split_is_proven_and_each_kind_of_leak_is_named(spark, published, capsys):
    assert main(["--data", str(published)]) == 0
    told = capsys.readouterr().out
    assert "no leak" in told
    assert blind_spot(near_duplicates=True) in told
    assert blind_spot(near_duplicates=False) not in told

    path, pixels = picture(published, "train")
    Image.fromarray(pixels).save(published / "test" / "a" / "same.tif")
    crop, pixels = picture(published, "val")
    Image.fromarray(pixels[:250, :330]).save(published / "test" / "a" / "crop.jpg", quality=80)
    (published / "test" / "a" / "cut.png").write_bytes(b"no image")
    found = check_leaks_of(str(published), spark=spark)
    assert [(leak.kind, {each.name for each in leak.pictures}) for leak in found.leaks] == [
        ("pixels", {"test/a/same.tif", f"train/a/{path.name}"}),
        ("likeness", {"test/a/crop.jpg", f"val/a/{crop.name}"}),
    ]
    assert found.pictures == {"train": 5, "val": 2, "test": 4}
    assert set(found.unreadable) == {"test/a/cut.png"}
    without = check_leaks_of(str(published), spark=spark, near_duplicates=False)
    assert [leak.kind for leak in without.leaks] == ["pixels"]

    assert main(["--data", str(published)]) == 3
    told = capsys.readouterr().out
    assert "crop.jpg (test)" in told
    assert "2 leaks" in told


def test_files_that_cannot_be_judged_are_no_proof(spark, published):
    (published / "test" / "a" / "cut.png").write_bytes(b"no image")
    assert main(["--data", str(published)]) == 7


def test_what_cannot_be_judged_at_all(spark, published, tmp_path):
    with pytest.raises(PathNotFoundError):
        check_leaks_of(str(tmp_path / "lost"), spark=spark)
    with pytest.raises(LabelError):
        check_leaks_of(str(published / "train"), spark=spark, near_duplicates=False)
    with pytest.raises(LabelError):
        check_leaks_of(str(published), spark=spark, splits="(?P<split>train)")
    with pytest.raises(ConfigurationError):
        check_leaks_of(str(published), spark=spark, group="S[0-9]")
    (tmp_path / "empty").mkdir()
    with pytest.raises(EmptyDataError):
        check_leaks_of(str(tmp_path / "empty"), spark=spark)
    (tmp_path / "ingested" / "_versions").mkdir(parents=True)
    for content in (json.dumps({"rows": 1}), "7", "{"):
        (tmp_path / "ingested" / "_versions" / "0.json").write_text(content)
        assert main(["--data", str(tmp_path / "ingested")]) == 3


def test_links_are_followed(spark, published, tmp_path):
    path, _ = picture(published, "train")
    (published / "train" / "a" / "again.png").symlink_to(path)
    checked = check_leaks_of(str(published), spark=spark, near_duplicates=False)
    assert (checked.leaks, checked.pictures["train"]) == ([], 6)
    (published / "test" / "linked").symlink_to(path.parent)
    (leak, *_) = check_leaks_of(str(published), spark=spark, near_duplicates=False).leaks
    assert {each.split for each in leak.pictures} == {"train", "test"}


def test_a_file_that_no_row_of_spark_holds_ends_no_check(spark, published):
    with (published / "test" / "a" / "huge.png").open("wb") as file:
        file.truncate(5 << 30)
    (published / "test" / "a" / "empty.png").touch()
    checked = check_leaks_of(str(published), spark=spark, near_duplicates=False)
    assert set(checked.unreadable) == {"test/a/huge.png", "test/a/empty.png"}
    assert checked.pictures == {"train": 5, "val": 2, "test": 2}


def test_files_and_folders_of_microscopes(spark, tmp_path):
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
    path, axes = tmp_path / "train" / "a.ome.tif", {"axes": "TCZYX"}
    tifffile.imwrite(path, STACK, photometric="minisblack", metadata=axes)
    write_zarr(tmp_path / "test" / "b.zarr", "0.5")
    (tmp_path / "test" / "c.png").write_bytes(b"no image")
    options = ["--glob", "*{.tif,.zarr}", "--page", "0", "--channel", "1", "--z", "1"]
    assert main(["--data", str(tmp_path), *options]) == 3
    checked = check_leaks_of(
        str(tmp_path), spark=spark, glob="*{.tif,.zarr}", choice=PlaneSelector(0, "1", "1")
    )
    assert [(leak.kind, {each.name for each in leak.pictures}) for leak in checked.leaks] == [
        ("pixels", {"train/a.ome.tif", "test/b.zarr"})
    ]
    assert checked.unreadable == {}


def test_planes_of_a_data_set_of_tiles_are_not_chosen(tmp_path, spark):
    (tmp_path / "_versions").mkdir()
    (tmp_path / "_versions" / "0.json").write_text("{}")
    with pytest.raises(ConfigurationError):
        check_leaks_of(str(tmp_path), spark=spark, choice=PlaneSelector(page=1))
