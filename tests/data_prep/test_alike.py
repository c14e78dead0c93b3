import cv2
import pytest

from data_prep.alike import TOLD, alike_among, describe, describe_cut_short, joining, still_true
from data_prep.images import decode_image
from data_prep.likeness import fingerprint
from data_prep.near_duplicates import Likeness


@pytest.fixture(scope="module")
def prints(samples):
    path = sorted(samples.glob("*/*.png"))[3]
    pixels = decode_image(path.read_bytes(), path.name)
    half = cv2.resize(pixels, None, fx=0.6, fy=0.6, interpolation=cv2.INTER_AREA)[:, :, None]
    return {"X": fingerprint(pixels), "Y": fingerprint(half)}


def names(pairs):
    return [(pair.one, pair.other) for pair in pairs]


def test_pictures_with_a_fingerprint_are_compared(prints):
    paths = {"X": "a/1", "Y": "b/2", "Z": "c/old"}
    assert names(alike_among(paths, prints).pairs) == [("a/1", "b/2")]
    assert names(alike_among(paths, prints, new={"Y"}).pairs) == [("a/1", "b/2")]
    assert alike_among(paths, prints, new={"Z"}).pairs == []
    assert alike_among(paths, {**prints, "Y": b""}).pairs == []


def test_pairs_that_stood_in_two_splits_before_join_nothing():
    pairs = [Likeness("a", "b", "w"), Likeness("b", "c", "w"), Likeness("c", "d", "w")]
    kept = {"a": "train", "b": "test", "c": "test"}
    assert joining(pairs, kept) == [("b", "c"), ("c", "d")]
    assert joining(pairs, {}) == names(pairs)


def test_a_pair_is_remembered_while_both_pictures_are_there_under_whatever_names():
    former = [Likeness("a", "b", "w"), Likeness("c", "a", "w"), Likeness("a", "unread", "w")]
    then = {"a": "X", "b": "Y", "c": "Z", "unread": None}
    assert names(still_true(former, then, {"X": "a", "Y": "b", "V": "c"})) == [("a", "b")]
    assert names(still_true(former, then, {"X": "x", "Y": "b", "Z": "z"})) == [
        ("b", "x"),
        ("x", "z"),
    ]
    assert still_true(former, then, {"Y": "b"}) == []


def test_a_pair_that_stands_in_two_splits_says_so():
    (line,) = describe([Likeness("a", "b", "because")], {"a": "train", "b": "test"})
    assert line == "  alike: a and b: because; they stand in train and test"
    many = [Likeness("a", f"{i}", "w") for i in range(TOLD + 3)]
    assert len(describe(many, {})) == TOLD + 1


def test_images_that_were_not_compared_with_all_are_named():
    assert describe_cut_short([]) == []
    (line,) = describe_cut_short([f"scan{i}.tif" for i in range(1200)])
    assert "1,200" in line
    assert "scan0.tif" in line
    assert "scan1199" not in line
