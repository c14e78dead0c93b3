from __future__ import annotations

import itertools
from collections import Counter
from io import BytesIO

import pytest
from PIL import Image

from data_prep.dataset.plan import FILE_BYTES
from data_prep.ingest.plan import InputFile, look_at, make_plan, tasks_for
from data_prep.ingest.settings import IngestSettings
from distkeras_grid.errors import (
    ConfigurationError,
    DataError,
    ImageError,
    LabelError,
    PathNotFoundError,
    SplitLeakError,
)


def below(uri):
    return uri.removeprefix("in/")


def planned(found, slots=2, table="", **settings):
    settings = IngestSettings(input="in", output="out", **settings)
    return make_plan(found, settings, below, lambda _: table, slots)


def idx_files(train=5, test=2, **changes):
    files = {
        "train-images-idx3-ubyte.gz": InputFile("", "1", (train, 4, 6)),
        "train-labels-idx1-ubyte.gz": InputFile(
            "", "2", (train,), tuple(i % 3 for i in range(train))
        ),
        "t10k-images-idx3-ubyte.gz": InputFile("", "3", (test, 4, 6)),
        "t10k-labels-idx1-ubyte.gz": InputFile("", "4", (test,), (1,) * test),
    }
    named = {
        name: InputFile(f"in/{name}", f.sha256, f.shape, f.labels) for name, f in files.items()
    }
    named.update(changes)
    return [each for each in named.values() if each]


def test_idx_files_are_cut_into_slices_that_hold_every_item_once():
    plan = planned(idx_files(train=5000, test=30), format="idx")
    train = [unit for unit in plan.units if unit.split == "train"]
    assert [unit.partition for unit in plan.units] == list(range(len(train) + 1))
    assert (train[0].start, train[-1].stop, len(train)) == (0, 5000, 4)
    assert all(a.stop == b.start for a, b in itertools.pairwise(train))
    assert all(u.labels == tuple(i % 3 for i in range(u.start, u.stop)) for u in train)
    assert plan.shape == (4, 6, 1)
    assert plan.rows == 5030
    assert plan.counts["test"] == {"0": 0, "1": 30, "2": 0}
    assert train[0].source == "train-images-idx3-ubyte.gz"


def test_names_of_classes_of_idx_files():
    assert planned(idx_files(), format="idx", classes=("a", "b", "c", "d")).classes[2] == "c"
    with pytest.raises(ConfigurationError, match=r"labels up to 2, and 2 names .* a, b"):
        planned(idx_files(), format="idx", classes=("a", "b"))


def test_idx_files_that_do_not_belong_together():
    missing = "t10k-labels-idx1-ubyte.gz"
    with pytest.raises(PathNotFoundError, match=f"no file {missing} below in"):
        planned(idx_files(**{missing: None}), format="idx")
    short = InputFile(f"in/{missing}", "4", (1,), (1,))
    with pytest.raises(DataError, match=r"has 2 images and in/t10k-labels.* 1 labels"):
        planned(idx_files(**{missing: short}), format="idx")
    other = InputFile("in/t10k-images-idx3-ubyte.gz", "3", (2, 4, 7))
    with pytest.raises(DataError, match=r"differ in shape: \[\(4, 6, 1\), \(4, 7, 1\)\]"):
        planned(idx_files(**{"t10k-images-idx3-ubyte.gz": other}), format="idx")
    twice = InputFile("in/copy/t10k-images-idx3-ubyte", "3", (2, 4, 6))
    with pytest.raises(DataError, match="are the same"):
        planned(idx_files(copy=twice), format="idx")
    flat = InputFile("in/t10k-images-idx3-ubyte.gz", "3", (2, 24))
    with pytest.raises(DataError, match=r"items of shape \(24,\)"):
        planned(idx_files(**{"t10k-images-idx3-ubyte.gz": flat}), format="idx")


def test_batches_of_cifar_10():
    found = [
        InputFile(f"in/{name}.bin", name, (2, 32, 32, 3), (9, 0))
        for name in ("data_batch_1", "data_batch_2", "test_batch")
    ]
    plan = planned(found, format="cifar10")
    assert [(u.source, u.split, u.partition) for u in plan.units] == [
        ("data_batch_1.bin", "train", 0),
        ("data_batch_2.bin", "train", 1),
        ("test_batch.bin", "test", 2),
    ]
    assert plan.counts["train"]["truck"] == 2
    assert plan.shape == (32, 32, 3)
    with pytest.raises(PathNotFoundError, match=r"no test_batch\.bin below in"):
        planned(found[:2], format="cifar10")
    with pytest.raises(PathNotFoundError, match=r"no data_batch_1\.bin to 5 below in"):
        planned(found[2:], format="cifar10")


def photos(*paths, same=()):
    return [
        InputFile(f"in/{path}", "same" if path in same else path)
        for path in sorted({*paths, *same})
    ]


def test_folders_say_class_and_split():
    paths = [f"{s}/{c}/{i}.jpg" for s in ("train", "test") for c in "ba" for i in range(2)]
    plan = planned(photos(*paths), format="images", size=8, split="folder")
    assert plan.classes == ("a", "b")
    assert all(unit.source.split("/")[0] == unit.split for unit in plan.units)
    assert plan.counts == {"train": {"a": 2, "b": 2}, "test": {"a": 2, "b": 2}}
    assert {unit.split: unit.partition for unit in plan.units} == {"train": 0, "test": 1}
    with pytest.raises(LabelError, match=r"val/a/0\.jpg does not lie in a folder train"):
        planned(photos("val/a/0.jpg"), format="images", size=8, split="folder")


def test_shares_divide_each_class():
    paths = [f"{c}/{i}.jpg" for c in "ab" for i in range(10)]
    plan = planned(photos(*paths), format="images", size=8, split="0.8:0.2")
    assert plan.counts == {"train": {"a": 8, "b": 8}, "test": {"a": 2, "b": 2}}


def test_a_table_says_class_and_split():
    table = "file,label,split\n1.jpg,boot,test\n2.jpg,hat,train\n"
    plan = planned(
        photos("x/1.jpg", "y/2.jpg"), format="images", size=8, labels="list.csv", table=table
    )
    assert {u.source: (plan.classes[u.labels[0]], u.split) for u in plan.units} == {
        "x/1.jpg": ("boot", "test"),
        "y/2.jpg": ("hat", "train"),
    }


def test_groups_stay_together_and_are_kept():
    """They decided the splits and were forgotten: an evaluation took images for independent."""
    table = "file,label,group\n" + "".join(f"{i}.jpg,a,S{i // 4}\n" for i in range(12))
    found = photos(*(f"{i}.jpg" for i in range(12)))
    by_table = planned(
        found, format="images", size=8, labels="list.csv", table=table, split="0.5:0.5"
    )
    found = photos(*(f"S{i // 4}/a/{i}.jpg" for i in range(12)))
    by_pattern = planned(
        found, format="images", size=8, group="^(?P<group>[^/]+)/", split="0.5:0.5"
    )
    for plan in (by_table, by_pattern):
        assert plan.has_groups
        groups = {(unit.group, unit.split) for unit in plan.units}
        assert {group for group, _ in groups} == {"S0", "S1", "S2"}
        assert len(groups) == 3
    assert not planned(photos("a/1.jpg"), format="images", size=8, split="1").has_groups


def test_copies_are_left_out_and_must_not_stand_in_two_splits():
    same = ("train/a/1.jpg", "train/a/2.jpg")
    found = photos("test/a/9.jpg", same=same)
    plan = planned(found, format="images", size=8, split="folder")
    assert plan.left_out == {"train/a/2.jpg": "the same bytes as train/a/1.jpg"}
    assert plan.rows == 2
    with pytest.raises(SplitLeakError, match="in different splits"):
        planned(photos(same=(*same, "test/a/9.jpg")), format="images", size=8, split="folder")


def test_tasks_of_many_images_have_about_as_many_each():
    plan = planned(
        photos(*(f"a/{i:04}.jpg" for i in range(3500))),
        format="images",
        size=8,
        split="1",
        slots=2,
    )
    assert sorted(Counter(u.partition for u in plan.units).values()) == [875] * 4


def test_large_splits_have_files_of_bounded_size():
    assert tasks_for(10 * FILE_BYTES, 1, slots=2) == 10
    assert tasks_for(0, 784, slots=2) == 1


def test_of_an_image_file_bytes_and_pixels_are_hashed():
    files = []
    for kind in ("PNG", "TIFF"):
        stream = BytesIO()
        Image.new("L", (5, 4), 9).save(stream, kind)
        files.append(look_at(f"a.{kind}", stream.getvalue(), "images"))
    assert {(each.shape, each.labels) for each in files} == {((), ())}
    assert len({each.sha256 for each in files}) == 2
    assert len({each.pixel_sha256 for each in files}) == 1
    with pytest.raises(ImageError):
        look_at("a.jpg", b"no image", "images")
