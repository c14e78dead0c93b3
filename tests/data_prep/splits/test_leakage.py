from data_prep.splits.leakage import LeakRecord, find_leaks
from distkeras_grid.dataset.manifest import DuplicatePair


def kinds(pictures, likenesses=()):
    return [
        (leak.kind, [each.name for each in leak.pictures])
        for leak in find_leaks(pictures, likenesses)
    ]


def test_what_stands_in_one_split_is_no_leak():
    pictures = [LeakRecord("a", "train", "x", "g"), LeakRecord("b", "train", "x", "g")]
    other = LeakRecord("c", "test", "y", "h")
    assert (
        kinds([*pictures, other, LeakRecord("d", "test", "z")], [DuplicatePair("a", "b", "w")])
        == []
    )


def test_pixels_groups_and_likeness_each_tell():
    pictures = [
        LeakRecord("a", "train", "x", "g"),
        LeakRecord("b", "test", "x", "h"),
        LeakRecord("c", "validation", "y", "g"),
        LeakRecord("d", "test", "z"),
    ]
    assert kinds(pictures, [DuplicatePair("c", "d", "w"), DuplicatePair("a", "b", "w")]) == [
        ("pixels", ["b", "a"]),
        ("group", ["a", "c"]),
        # The pair a, b is told already: its pixels are the same.
        ("likeness", ["d", "c"]),
    ]


def test_of_three_splits_one_picture_each_is_named():
    pictures = [LeakRecord(f"{i}", split, "x") for i, split in enumerate(["a", "b", "c", "a"])]
    (leak,) = find_leaks(pictures)
    assert leak.to_json()["pictures"] == {"a": "0", "b": "1", "c": "2"}
    assert leak.describe() == "pixels: 0 (a), 1 (b), 2 (c): the pixels are the same"
