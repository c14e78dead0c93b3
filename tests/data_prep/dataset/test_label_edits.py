"""Labels, groups, splits and exclusions that change, decided without Spark and without files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.dataset.label_edits import (
    annotate_tiled,
    divide_into_folds,
    exclude,
    files_of,
    include,
    parse_list,
    resplit,
    revised_content,
)
from data_prep.dataset.manifest import DataSet
from data_prep.splits.duplicate_pairs import to_json
from data_prep.splits.labels import Annotation
from distkeras_grid.dataset.manifest import (
    LEFT_OUT,
    REMOVED,
    TILED,
    DuplicatePair,
    ImageRecord,
    decode_manifest,
)
from distkeras_grid.errors import EmptySplitError, LabelError, SplitLeakError
from tests.data_prep.dataset.test_croissant import manifest


def entry(path, split="train", number=0, **more):
    values = {"tiles": 4, "label": path[0], "sha256": f"{number:064x}", "shard": 0, "update": 0}
    return ImageRecord(path, TILED, split=split, **values | more)


def data_set(*entries, pairs=()):
    pairs = to_json([DuplicatePair(one, other, "seen") for one, other in pairs])
    return DataSet.from_json(manifest(*entries, last_update=6, near_duplicates=pairs))


KNOWN = data_set(
    *(entry(f"a/{i}.png", number=i) for i in range(4)),
    *(entry(f"b/{i}.png", number=10 + i, split="test", group="S1") for i in range(4)),
    ImageRecord("b/left.png", LEFT_OUT, reason="damaged"),
)


def test_labels_of_a_table_are_given_and_stand():
    done = annotate_tiled(KNOWN, {"a/1.png": Annotation("b"), "b/2.png": Annotation("b")}, "t.csv")
    assert done.counts | {"relabelled": 1} == done.counts
    now = done.entries["a/1.png"]
    assert (now.label, now.stored_label, now.by_hand) == ("b", "a", ("label",))
    assert done.entries["a/0.png"] == KNOWN.entries["a/0.png"]
    content = revised_content(KNOWN, done.entries)
    assert content["counts"] == {"train": {"a": 12, "b": 4}, "test": {"a": 0, "b": 16}}
    updates = {each["source"]: each.get("update") for each in content["sources"]}
    # New to a training that goes on is what has changed.
    assert (updates["a/1.png"], updates["a/0.png"]) == (7, 0)


def test_a_new_class_gets_the_next_number_if_that_is_said():
    table = {"a/1.png": Annotation("aa")}
    with pytest.raises(LabelError):
        annotate_tiled(KNOWN, table, "t.csv")
    done = annotate_tiled(KNOWN, table, "t.csv", new_classes=True)
    content = revised_content(KNOWN, done.entries)
    assert content["classes"] == ["a", "b", "aa"]
    assert content["image"]["distkeras_grid"]["classes"] == ["a", "b", "aa"]


def test_groups_and_splits_of_a_table_must_not_leak():
    with pytest.raises(SplitLeakError):
        annotate_tiled(KNOWN, {"a/1.png": Annotation("a", group="S1")}, "t.csv")
    with pytest.raises(SplitLeakError):
        annotate_tiled(KNOWN, {"b/1.png": Annotation("b", split="train")}, "t.csv")
    both = {"a/1.png": Annotation("a", group="S1", split="test")}
    done = annotate_tiled(KNOWN, both, "t.csv")
    now = done.entries["a/1.png"]
    assert (now.group, now.split, now.stored_split) == ("S1", "test", "train")
    assert (done.regrouped, done.moved, done.relabelled) == (1, 1, 0)
    alike = data_set(*KNOWN.entries.values(), pairs=[("a/0.png", "a/1.png")])
    with pytest.raises(SplitLeakError):
        annotate_tiled(alike, {"a/0.png": Annotation("a", split="test")}, "t.csv")


def test_excluded_images_have_no_rows_until_they_are_taken_back():
    done = exclude(KNOWN, {"a/1.png": "blurred"}, "bad.csv")
    content = revised_content(KNOWN, done.entries)
    assert (done.excluded, content["tiles"]) == (1, 28)
    known = DataSet.from_json({**KNOWN.content, **content})
    assert known.entries["a/1.png"].set_aside == "blurred"
    back = include(known, ["a/1.png"], "bad.csv")
    assert (back.included, revised_content(known, back.entries)["tiles"]) == (1, 32)
    assert not exclude(known, {"a/1.png": "blurred"}, "bad.csv")


def test_what_was_set_aside_comes_back_only_without_a_leak():
    torn = [entry("b/0.png", number=10, split="train", group="S1", set_aside="x")]
    known = data_set(*KNOWN.entries.values(), *torn)
    with pytest.raises(SplitLeakError):
        include(known, ["b/0.png"], "bad.csv")


DIGESTS = {"sha256": "f" * 64, "pixel_sha256": "e" * 64}
GONE = ImageRecord("a/gone.png", REMOVED, label="a", split="train", group="S0", **DIGESTS)


@pytest.mark.parametrize(
    "other",
    [
        GONE,
        entry("a/9.png", number=99, group="S0", set_aside="blurred"),
        # Of a/1.png.
        ImageRecord("b/copy.png", LEFT_OUT, sha256=f"{1:064x}", group="S0", reason="same"),
    ],
)
def test_what_joins_splits_through_an_image_without_rows_is_refused(other):
    """It was accepted, and every later night ended with an error."""
    known = data_set(*KNOWN.entries.values(), other)
    for table in (
        {"b/0.png": Annotation("b", group="S0")},
        {"a/0.png": Annotation("a", group="S0", split="test")},
    ):
        with pytest.raises(SplitLeakError):
            annotate_tiled(known, table, "t.csv")
    done = annotate_tiled(known, {"a/0.png": Annotation("a", group="S0")}, "t.csv")
    assert done.regrouped == 1


def test_what_is_remembered_of_a_picture_moves_with_it():
    """Nobody can name it, so the picture could not be moved otherwise."""
    former = replace(GONE, source="a/9.png#ff", sha256=f"{1:064x}", pixel_sha256=None, group=None)
    known = data_set(*KNOWN.entries.values(), former)
    done = annotate_tiled(known, {"a/1.png": Annotation("a", split="test")}, "t.csv")
    assert {done.entries[path].split for path in ("a/1.png", "a/9.png#ff")} == {"test"}
    assert done.moved == 1


def test_a_new_division_keeps_units_whole_and_remembers_removed_images():
    entries = [
        entry(f"{label}/{i}.png", number=100 * n + i, group=f"{label}{i // 2}")
        for n, label in enumerate("ab")
        for i in range(12)
    ]
    gone = ImageRecord("a/gone.png", REMOVED, sha256="f" * 64, label="a", split="test", group="a0")
    known = data_set(*entries, gone, pairs=[("a/0.png", "a/11.png")])
    done = resplit(known, "0.5:0.5", 3)
    splits = {path: each.split for path, each in done.entries.items()}
    assert done.moved > 0
    for label in "ab":
        for i in range(0, 12, 2):
            assert splits[f"{label}/{i}.png"] == splits[f"{label}/{i + 1}.png"]
        held = [splits[f"{label}/{i}.png"] for i in range(12)]
        assert held.count("train") == 6
    assert splits["a/0.png"] == splits["a/11.png"] == splits["a/gone.png"]
    assert resplit(known, "0.5:0.5", 3).entries == done.entries
    assert resplit(known, "0.5:0.5", 4).entries != done.entries
    with pytest.raises(EmptySplitError):
        resplit(KNOWN, "0.8:0.1:0.1", 0)


SPECIMENS = [
    entry(f"a/{i}.png", number=20 + i, group=f"s{i // 2}", pixel_sha256=f"{120 + i:064x}")
    for i in range(8)
]
SAME_PIXELS = {"sha256": "f" * 64, "pixel_sha256": f"{120:064x}"}
# Each of them joins the specimens s0 and s1, and none of them has rows.
WITHOUT_ROWS = {
    "copy": ([ImageRecord("a/0.tif", LEFT_OUT, group="s1", reason="same", **SAME_PIXELS)], ()),
    "excluded": (
        [entry("a/8.png", number=90, group="s1", set_aside="x")],
        [("a/0.png", "a/8.png")],
    ),
    "removed": ([replace(GONE, group="s1")], [("a/0.png", "a/gone.png")]),
    "copy of a removed one": (
        [GONE, replace(GONE, source="a/1.tif", status=LEFT_OUT, split=None, group="s1")],
        [("a/0.png", "a/gone.png")],
    ),
}


@pytest.mark.parametrize("what", WITHOUT_ROWS)
def test_what_an_image_without_rows_joins_is_held_out_together(what):
    """A picture of s1 was trained on where s1 was held out."""
    more, pairs = WITHOUT_ROWS[what]
    known = data_set(*SPECIMENS, *more, pairs=pairs)
    by_group = divide_into_folds(known, "group")
    assert by_group.columns == ("fold_s0+s1", "fold_s2", "fold_s3")
    # What has no rows has no fold.
    assert set(by_group.held_out) == {each.source for each in SPECIMENS}
    for seed in range(5):
        held_out = divide_into_folds(known, "3", seed).held_out
        assert len({held_out[f"a/{i}.png"] for i in range(4)}) == 1


@pytest.mark.parametrize("what", WITHOUT_ROWS)
def test_folds_that_an_image_without_rows_joins_later_are_not_read(what):
    """They were read, and a picture stood in training and validation."""
    folds = divide_into_folds(data_set(*SPECIMENS), "group")
    more, pairs = WITHOUT_ROWS[what]
    known = data_set(*SPECIMENS, *more, pairs=pairs)
    with pytest.raises(SplitLeakError):
        in_fold(known, folds, "fold_s0")
    with pytest.raises(LabelError):
        divide_into_folds(known, "group", former=folds)


def in_fold(known, folds, column):
    content = {**known.content, "folds": {"fold": folds.to_json()}}
    return decode_manifest(json.dumps(content), "m").in_fold(column, "tiles")


def test_what_only_images_without_rows_show_has_no_fold():
    gone = replace(GONE, group="s9")
    known = data_set(*SPECIMENS, gone, ImageRecord("a/left.png", LEFT_OUT, reason="damaged"))
    assert divide_into_folds(known, "group").columns == tuple(f"fold_s{i}" for i in range(4))
    assert divide_into_folds(known, "4") == divide_into_folds(data_set(*SPECIMENS), "4")


def test_an_image_without_tiles_has_a_fold():
    """Reading the data set in a fold asks for one."""
    bare = entry("a/9.png", number=99, group="s0", tiles=0)
    folds = divide_into_folds(data_set(*SPECIMENS, bare), "group")
    assert folds.held_out["a/9.png"] == "fold_s0"


STATES = st.tuples(
    st.sampled_from([TILED, TILED, TILED, "aside", LEFT_OUT, REMOVED]),
    st.sampled_from(["train", "train", "validation", "test"]),
    st.integers(0, 12),
    st.sampled_from([None, *"ghijk"]),
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(STATES, min_size=4, max_size=16),
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=4),
)
def test_folds_that_were_just_made_are_read(states, pairs):
    """Whoever makes folds and whoever reads them must agree on what belongs together."""
    entries = []
    for i, (status, split, number, group) in enumerate(states):
        told = {"group": group, "pixel_sha256": f"{number:064x}"}
        if status in (TILED, "aside"):
            aside = "x" if status == "aside" else None
            each = entry(f"a/{i}", split, number=100 + i, set_aside=aside, **told)
        else:
            kept = split if status == REMOVED else None
            each = ImageRecord(f"a/{i}", status, sha256=f"{100 + i:064x}", split=kept, **told)
        entries.append(each)
    names = [(f"a/{one}", f"a/{other}") for one, other in pairs if max(one, other) < len(entries)]
    known = data_set(*entries, pairs=names)
    folds = divide_into_folds(known, "3", allow_empty=True)
    for column in folds.columns:
        assert set(in_fold(known, folds, column)) == {e.source for e in entries if e.has_rows}


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["a/1.png"], {"a/1.png": "a/1.png"}),
        (["1.png"], None),
        (["a/9.png"], None),
        (["b/left.png"], None),
        (["only.png"], {"c/only.png": "only.png"}),
        (["c/only.png", "only.png"], None),
    ],
)
def test_a_line_names_one_image(names, found):
    known = data_set(*KNOWN.entries.values(), entry("c/only.png", label="a", number=77))
    if found is None:
        with pytest.raises(LabelError):
            files_of(known, names, "t.csv")
    else:
        assert files_of(known, names, "t.csv") == found


@pytest.mark.parametrize("text", ["", "name\na", "file\n,x", "file\na,b,c", 'file\n"a'])
def test_lists_that_cannot_be_read(text):
    with pytest.raises(LabelError):
        parse_list(text, "bad.csv")
