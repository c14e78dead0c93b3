from data_prep.splits.duplicate_pairs import (
    MAX_LISTED,
    describe,
    describe_cut_short,
    must_link_pairs,
    remap_pairs,
)
from distkeras_grid.dataset.manifest import DuplicatePair


def names(pairs):
    return [(pair.one, pair.other) for pair in pairs]


def test_pairs_that_stood_in_two_splits_before_join_nothing():
    pairs = [
        DuplicatePair("a", "b", "w"),
        DuplicatePair("b", "c", "w"),
        DuplicatePair("c", "d", "w"),
    ]
    kept = {"a": "train", "b": "test", "c": "test"}
    assert must_link_pairs(pairs, kept) == [("b", "c"), ("c", "d")]
    assert must_link_pairs(pairs, {}) == names(pairs)


def test_a_pair_is_remembered_while_both_pictures_are_there_under_whatever_names():
    former = [
        DuplicatePair("a", "b", "w"),
        DuplicatePair("c", "a", "w"),
        DuplicatePair("a", "unread", "w"),
    ]
    then = {"a": "X", "b": "Y", "c": "Z", "unread": None}
    assert names(remap_pairs(former, then, {"X": "a", "Y": "b", "V": "c"})) == [("a", "b")]
    assert names(remap_pairs(former, then, {"X": "x", "Y": "b", "Z": "z"})) == [
        ("b", "x"),
        ("x", "z"),
    ]
    assert remap_pairs(former, then, {"Y": "b"}) == []


def test_a_pair_that_stands_in_two_splits_says_so():
    (line,) = describe([DuplicatePair("a", "b", "because")], {"a": "train", "b": "test"})
    assert line == "  alike: a and b: because; they stand in train and test"
    many = [DuplicatePair("a", f"{i}", "w") for i in range(MAX_LISTED + 3)]
    assert len(describe(many, {})) == MAX_LISTED + 1


def test_images_that_were_not_compared_with_all_are_named():
    assert describe_cut_short([]) == []
    (line,) = describe_cut_short([f"scan{i}.tif" for i in range(1200)])
    assert "1,200" in line
    assert "scan0.tif" in line
    assert "scan1199" not in line
