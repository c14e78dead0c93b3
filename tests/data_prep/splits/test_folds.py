import json
from collections import Counter
from dataclasses import replace

import pytest

from data_prep.splits.assign import SplitSource
from data_prep.splits.folds import assign_folds, parse_folds, renamed
from distkeras_grid.dataset.folds import Folds, check_together, splits_in
from distkeras_grid.dataset.manifest import decode_manifest
from distkeras_grid.errors import (
    ConfigurationError,
    DataError,
    EmptySplitError,
    LabelError,
    SchemaError,
    SplitLeakError,
)


def images(count=30, specimens=10):
    return [
        SplitSource(
            f"{i:02}.png", f"sha {i}", "ab"[i % 2], f"S{i % specimens}", "train", weight=i + 1
        )
        for i in range(count)
    ]


def test_each_image_is_held_out_once_with_its_specimen_and_its_class():
    sources = images()
    folds = assign_folds(sources, "5")
    assert folds.columns == tuple(f"fold_{i}" for i in range(5))
    assert set(folds.held_out) == {source.path for source in sources}
    by_group = {}
    for source in sources:
        assert (
            by_group.setdefault(source.group, folds.held_out[source.path])
            == (folds.held_out[source.path])
        )
    tiles = Counter()
    for source in sources:
        tiles[source.label, folds.held_out[source.path]] += source.weight
    assert len(tiles) == 10
    for label in "ab":
        total = sum(source.weight for source in sources if source.label == label)
        assert all(abs(tiles[label, fold] - total / 5) < total / 10 for fold in folds.columns)


def test_every_fold_has_three_splits_and_test_is_never_touched():
    sources = [
        replace(each, split="test" if each.group == "S9" else each.split) for each in images()
    ]
    folds = assign_folds(sources, "3")
    splits = {source.path: source.split for source in sources}
    held_out = Counter()
    for column in folds.columns:
        now = splits_in(folds, column, splits)
        assert {path for path in now if now[path] == "test"} == {
            path for path in splits if splits[path] == "test"
        }
        held_out.update(path for path in now if now[path] == "validation")
    assert set(held_out.values()) == {1}
    assert set(held_out) == set(folds.held_out)


def test_leave_one_specimen_out():
    folds = assign_folds(images(), "group", name="specimen")
    assert folds.columns == tuple(f"specimen_S{i}" for i in range(10))
    with pytest.raises(LabelError):
        assign_folds([*images(), SplitSource("x", "x", "a")], "group")
    with pytest.raises(LabelError):
        assign_folds(images(specimens=1), "group")
    linked = assign_folds(images(), "group", links=[("00.png", "01.png")])
    assert "fold_S0+S1" in linked.columns


def test_an_image_that_would_change_its_specimen_is_refused():
    first = assign_folds(images(), "group")
    more = [*images(), SplitSource("new.png", "new", "a", "S99", "train")]
    later = assign_folds(more, "group", former=first)
    assert first.held_out.items() <= later.held_out.items()
    with pytest.raises(LabelError):
        assign_folds(more, "group", former=first, links=[("00.png", "01.png")])
    corrected = [replace(more[0], group="S1"), *more[1:]]
    with pytest.raises(LabelError):
        assign_folds(corrected, "group", former=first)


def test_images_that_come_later_change_no_fold():
    first = assign_folds(images(30), "3")
    with pytest.raises(DataError):
        splits_in(first, "fold_0", {"new.png": "train"})
    later = assign_folds(images(60), "3", former=first)
    assert {path: later.held_out[path] for path in first.held_out} == first.held_out
    assert len(later.held_out) == 60
    for values in ({"by": "4"}, {"seed": 1}):
        with pytest.raises(ConfigurationError):
            assign_folds(images(), **{"by": "3", **values}, former=first)
    with pytest.raises(LabelError):
        assign_folds(
            images(), "3", former=first, links=[("00.png", f"{i:02}.png") for i in range(9)]
        )


def test_a_fold_without_a_class_is_refused():
    sources = [SplitSource(f"{i}", f"{i}", "a" if i else "b", None, "train") for i in range(9)]
    with pytest.raises(EmptySplitError) as raised:
        assign_folds(sources, "2")
    assert raised.value.cells == (("b", "fold_1", 1),)
    assert assign_folds(sources, "2", allow_empty=True).columns == ("fold_0", "fold_1")


def test_folds_survive_the_manifest_and_damaged_ones_are_refused():
    folds = assign_folds(images(), "3")
    content = folds.to_json()
    manifest = described(images(), folds={"fold": content})
    assert decode_manifest(manifest, "m").folds == {"fold": folds}
    damaged = (
        *(None, [], {}, {**content, "columns": ["x"]}, {**content, "columns": "fold_0"}),
        *({**content, "seed": "0"}, {**content, "held_out": {"a": 1}}),
    )
    for each in damaged:
        with pytest.raises(SchemaError):
            decode_manifest(described(images(), folds={"fold": each}), "m")


def test_folds_that_tear_apart_what_belongs_together_by_now_are_refused():
    held_out = {"a": "fold_0", "b": "fold_0", "c": "fold_1", "d": "fold_1"}
    check_together(held_out, [("a", "b", "g"), ("a", "no fold", "g"), ("c", "d", "h")])
    for pairs in (
        [("a", "b", "g"), ("a", "c", "g")],
        [("copy", "c", "g"), ("a", "copy", "h")],
        [("a", "copy", "h"), ("d", "other", "k"), ("copy", "other", "g"), ("b", "c", "never")],
    ):
        with pytest.raises(SplitLeakError) as raised:
            check_together(held_out, pairs)
        assert "never" not in str(raised.value)


def described(sources, **more):
    """Return a manifest of these images."""
    entries = [
        {"source": each.path, "status": "tiled", "split": each.split, "group": each.group}
        for each in sources
    ]
    left_out = {"source": "left.png", "status": "left out", "reason": "damaged"}
    return json.dumps({"sources": [*entries, left_out], **more})


def test_a_fold_of_a_manifest_knows_groups_and_places_that_came_later():
    sources = images()
    folds = assign_folds(sources, "3")
    told = {"folds": {"fold": folds.to_json()}}

    def in_fold(text, column="fold_0"):
        return decode_manifest(text, "m").in_fold(column, "tiles")

    now = in_fold(described(sources, **told))
    assert {path for path, split in now.items() if split == "validation"} == {
        path for path, fold in folds.held_out.items() if fold == "fold_0"
    }
    one, other = (next(p for p, f in folds.held_out.items() if f == f"fold_{i}") for i in (0, 1))
    moved = [
        replace(each, group="corrected") if each.path in (one, other) else each for each in sources
    ]
    pair = {"near_duplicates": [{"one": one, "other": other, "why": "seen"}]}
    joined = {"settings": {"near_duplicates": "join"}}
    for manifest in (described(moved, **told), described(sources, **pair, **joined, **told)):
        with pytest.raises(SplitLeakError):
            in_fold(manifest)
    reported = described(sources, **pair, **told, settings={"near_duplicates": "report"})
    assert in_fold(reported) == now
    for damaged in ("{", "{}", json.dumps({"sources": 3}), described(sources, near_duplicates=[1])):
        with pytest.raises(SchemaError):
            in_fold(damaged)
    with pytest.raises(SchemaError, match="fold_0, fold_1, fold_2"):
        in_fold(described(sources, **told), "fold_3")


@pytest.mark.parametrize("by", ["", "1", "x", "-3", "2000", "Group"])
def test_numbers_of_folds_that_cannot_be_meant(by):
    with pytest.raises(ConfigurationError):
        parse_folds(by)


def test_a_renamed_image_keeps_its_fold_also_under_the_name_of_another_one():
    """It took the fold that a deleted image of its new name had had."""
    folds = Folds("2", 0, ("fold_0", "fold_1"), {"a/1": "fold_0", "a/2": "fold_1", "b/1": "fold_1"})
    assert renamed(folds, {"a/1": "b/1"}).held_out == {"a/2": "fold_1", "b/1": "fold_0"}
    swapped = renamed(folds, {"a/1": "a/2", "a/2": "a/1"}).held_out
    assert (swapped["a/1"], swapped["a/2"]) == ("fold_1", "fold_0")
    assert renamed(folds, {"new": "other"}) == folds
