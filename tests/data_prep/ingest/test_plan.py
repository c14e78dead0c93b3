from __future__ import annotations

from collections import Counter

import pytest

from data_prep.dataset.plan import FILE_BYTES
from data_prep.ingest.plan import InputFile, make_plan, tasks_for
from data_prep.ingest.settings import IngestSettings
from distkeras_grid.errors import LabelError, SplitLeakError


def below(uri):
    return uri.removeprefix("in/")


def planned(found, table="", **settings):
    settings = IngestSettings("in", "out", 8, **settings)
    return make_plan(found, settings, below, lambda _: table, slots=2)


def photos(*paths, same=()):
    return [
        InputFile(f"in/{path}", "same" if path in same else path, None)
        for path in sorted({*paths, *same})
    ]


def test_folders_say_class_and_split():
    paths = [f"{s}/{c}/{i}.jpg" for s in ("train", "test") for c in "ba" for i in range(2)]
    plan = planned(photos(*paths), split="folder")
    assert plan.classes == ("a", "b")
    assert all(image.source.split("/")[0] == image.split for image in plan.images)
    assert plan.counts == {"train": {"a": 2, "b": 2}, "test": {"a": 2, "b": 2}}
    assert {image.split: image.partition for image in plan.images} == {"train": 0, "test": 1}
    with pytest.raises(LabelError, match=r"val/a/0\.jpg does not lie in a folder train"):
        planned(photos("val/a/0.jpg"), split="folder")


def test_splits_of_a_table_and_shares_divide_the_images():
    table = "file,label,split\n1.jpg,boot,test\n2.jpg,hat,train\n"
    plan = planned(photos("x/1.jpg", "y/2.jpg"), table, labels="list.csv")
    assert plan.counts == {"train": {"boot": 0, "hat": 1}, "test": {"boot": 1, "hat": 0}}
    plan = planned(photos(*(f"{c}/{i}.jpg" for c in "ab" for i in range(10))), split="0.8:0.2")
    assert plan.counts == {"train": {"a": 8, "b": 8}, "test": {"a": 2, "b": 2}}


def test_groups_stay_together_and_are_kept():
    """They decided the splits and were forgotten: an evaluation took images for independent."""
    table = "file,label,group\n" + "".join(f"{i}.jpg,a,S{i // 4}\n" for i in range(12))
    found = photos(*(f"{i}.jpg" for i in range(12)))
    by_table = planned(found, table, labels="list.csv", split="0.5:0.5")
    found = photos(*(f"S{i // 4}/a/{i}.jpg" for i in range(12)))
    by_pattern = planned(found, group="^(?P<group>[^/]+)/", split="0.5:0.5")
    for plan in (by_table, by_pattern):
        assert plan.has_groups
        groups = {(image.group, image.split) for image in plan.images}
        assert {group for group, _ in groups} == {"S0", "S1", "S2"}
        assert len(groups) == 3
    assert not planned(photos("a/1.jpg"), split="1").has_groups


def test_copies_are_left_out_and_must_not_stand_in_two_splits():
    same = ("train/a/1.jpg", "train/a/2.jpg")
    plan = planned(photos("test/a/9.jpg", same=same), split="folder")
    assert plan.left_out == {"train/a/2.jpg": "the same bytes as train/a/1.jpg"}
    assert len(plan.images) == 2
    with pytest.raises(SplitLeakError, match="in different splits"):
        planned(photos(same=(*same, "test/a/9.jpg")), split="folder")


def test_tasks_of_many_images_have_about_as_many_each():
    plan = planned(photos(*(f"a/{i:04}.jpg" for i in range(3500))), split="1")
    assert sorted(Counter(u.partition for u in plan.images).values()) == [875] * 4


def test_large_splits_have_files_of_bounded_size():
    assert tasks_for(10 * FILE_BYTES, 1, slots=2) == 10
    assert tasks_for(0, 784, slots=2) == 1
