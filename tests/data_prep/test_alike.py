import cv2
import pytest

from data_prep.alike import TOLD, alike_among, describe, joining, renamed, still_true
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


def test_of_each_content_one_path_is_compared(prints):
    contents = {"a/copy": "X", "a/1": "X", "b/2": "Y", "c/old": "Z", "d/broken": None}
    assert names(alike_among(contents, prints)) == [("a/1", "b/2")]
    assert names(alike_among(contents, prints, new={"Y"})) == [("a/1", "b/2")]
    assert alike_among(contents, prints, new={"Z"}) == []
    assert alike_among(contents, {**prints, "Y": b""}) == []


def test_pairs_that_stood_in_two_splits_before_join_nothing():
    pairs = [Likeness("a", "b", "w"), Likeness("b", "c", "w"), Likeness("c", "d", "w")]
    kept = {"a": "train", "b": "test", "c": "test"}
    assert joining(pairs, kept) == [("b", "c"), ("c", "d")]
    assert joining(pairs, {}) == names(pairs)


def test_a_pair_is_remembered_while_both_images_are_what_they_were():
    former = [Likeness("a", "b", "w"), Likeness("a", "c", "w")]
    before = {"a": "X", "b": "Y", "c": "Z"}
    assert names(still_true(former, before, {**before, "c": "other"})) == [("a", "b")]
    assert still_true(former, before, {"b": "Y"}) == []


def test_pairs_follow_images_that_have_a_new_name():
    pairs = [Likeness("a", "b", "w"), Likeness("c", "a", "w")]
    assert names(renamed(pairs, {"a": "x", "z": "y"})) == [("x", "b"), ("c", "x")]


def test_a_pair_that_stands_in_two_splits_says_so():
    (line,) = describe([Likeness("a", "b", "because")], {"a": "train", "b": "test"})
    assert line == "  alike: a and b: because; they stand in train and test"
    many = [Likeness("a", f"{i}", "w") for i in range(TOLD + 3)]
    assert len(describe(many, {})) == TOLD + 1
