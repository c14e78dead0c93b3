from data_prep.leaks import Picture, find_leaks
from data_prep.near_duplicates import Likeness


def kinds(pictures, likenesses=()):
    return [
        (leak.kind, [each.name for each in leak.pictures])
        for leak in find_leaks(pictures, likenesses)
    ]


def test_what_stands_in_one_split_is_no_leak():
    pictures = [Picture("a", "train", "x", "g"), Picture("b", "train", "x", "g")]
    other = Picture("c", "test", "y", "h")
    assert kinds([*pictures, other, Picture("d", "test", "z")], [Likeness("a", "b", "w")]) == []


def test_pixels_groups_and_likeness_each_tell():
    pictures = [
        Picture("a", "train", "x", "g"),
        Picture("b", "test", "x", "h"),
        Picture("c", "validation", "y", "g"),
        Picture("d", "test", "z"),
    ]
    assert kinds(pictures, [Likeness("c", "d", "w"), Likeness("a", "b", "w")]) == [
        ("pixels", ["b", "a"]),
        ("group", ["a", "c"]),
        # The pair a, b is told already: its pixels are the same.
        ("likeness", ["d", "c"]),
    ]


def test_of_three_splits_one_picture_each_is_named():
    pictures = [Picture(f"{i}", split, "x") for i, split in enumerate(["a", "b", "c", "a"])]
    (leak,) = find_leaks(pictures)
    assert leak.to_json()["pictures"] == {"a": "0", "b": "1", "c": "2"}
    assert leak.describe() == "pixels: 0 (a), 1 (b), 2 (c): the pixels are the same"
