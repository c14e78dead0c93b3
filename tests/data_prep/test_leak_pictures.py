"""What a manifest, or a folder, says about splits is told to the check of leaks as it is."""

import re
from dataclasses import replace
from functools import partial
from io import BytesIO

import numpy as np
import pytest
import tifffile

from data_prep.images.content_hash import pixel_digest
from data_prep.images.file_access import OpenFile
from data_prep.images.open_image import MAX_PIXELS
from data_prep.images.plane_selection import PlaneSelector
from data_prep.spark import presplit_folder
from data_prep.spark.leak_check import FIRST_FOLDER, leaks_of_folds, pictures_of
from data_prep.spark.presplit_folder import PixelMeasure, divided
from data_prep.splits.leakage import find_leaks
from distkeras_grid.dataset.folds import Folds
from distkeras_grid.dataset.manifest import LEFT_OUT, REMOVED, TILED, DuplicatePair, ImageRecord
from distkeras_grid.errors import EmptyDataError, ImageError, LabelError


def entry(source, split, status=TILED, pixels="c", group=None):
    digests = {"sha256": source[0] * 64, "pixel_sha256": pixels * 64}
    return ImageRecord(source, status, split=split, group=group, **digests)


def test_two_files_of_one_picture_that_are_tiled_into_two_splits_leak():
    pictures = pictures_of([entry("a.png", "train"), entry("b.tif", "test")])
    assert [leak.kind for leak in find_leaks(pictures)] == ["pixels"]
    assert find_leaks(pictures_of([entry("a.png", "train"), entry("b.tif", "train")])) == []


def test_a_copy_brings_its_group_to_the_picture_that_is_tiled():
    copy = entry("b.tif", None, LEFT_OUT, group="S1")
    other = entry("d.png", "test", pixels="d", group="S1")
    (leak,) = find_leaks(pictures_of([copy, entry("a.png", "train"), other]))
    assert (leak.kind, {each.name for each in leak.pictures}) == ("group", {"b.tif", "d.png"})


def test_what_has_no_tiles_leaks_nothing():
    entries = [entry("a.png", "train", REMOVED, group="g"), entry("b.png", "test", group="g")]
    assert find_leaks(pictures_of([*entries, entry("c.png", "train", REMOVED, "e")])) == []
    aside = replace(entry("b.png", "test", group="g"), set_aside="blurred")
    assert find_leaks(pictures_of([entry("a.png", "train", group="g"), aside])) == []


def test_folds_are_judged_like_splits():
    """They were not looked at."""
    known = [
        entry("a.png", "train", group="S1"),
        entry("copy.tif", None, LEFT_OUT, group="S2"),
        entry("b.png", "validation", pixels="b", group="S2"),
        entry("d.png", "test", pixels="d", group="S3"),
        entry("e.png", "train", pixels="e", group="S4"),
        entry("f.png", "train", pixels="f", group="S4"),
        replace(entry("0.png", "train", pixels="0", group="S1"), set_aside="blurred"),
    ]
    held_out = {"a.png": "x_0", "b.png": "x_1", "e.png": "x_0", "f.png": "x_1", "0.png": "x_1"}
    alike = [
        DuplicatePair("a.png", "b.png", "seen"),
        DuplicatePair("a.png", "d.png", "not in folds"),
        DuplicatePair("a.png", "e.png", "in one fold"),
    ]
    folds = Folds("2", 0, ("x_0", "x_1"), held_out)
    leaks = leaks_of_folds(known, folds, alike)
    assert [(leak.kind, {each.name for each in leak.pictures}) for leak in leaks] == [
        ("group", {"copy.tif", "b.png"}),
        ("group", {"e.png", "f.png"}),
        ("likeness", {"a.png", "b.png"}),
    ]
    assert {each.split for leak in leaks for each in leak.pictures} == {"x_0", "x_1"}
    together = replace(folds, held_out=dict.fromkeys(held_out, "x_0"))
    assert leaks_of_folds(known, together, alike) == []
    # Images that came after the folds were made have none yet.
    assert leaks_of_folds(known, replace(folds, held_out={"a.png": "x_0"}), alike) == []


def folder(*names, split=FIRST_FOLDER, group=None, whole=True):
    groups = None if group is None else re.compile(group)
    return divided(dict.fromkeys(names, "c"), re.compile(split), groups, whole=whole)


def test_one_file_under_two_names_leaks_only_if_the_splits_differ():
    assert find_leaks(folder("train/a.png", "train/b.png", whole=False)) == []
    assert len(find_leaks(folder("train/a.png", "test/b.png"))) == 1


def test_a_pattern_that_finds_no_group_anywhere_is_no_proof():
    names = "x/train/S1_a.png", "x/test/b.png"
    named = partial(folder, split="^x/(?P<split>[^/]+)/")
    assert [each.group for each in named(*names, group="(?P<group>S[0-9])")] == [None, "S1"]
    with pytest.raises(LabelError):
        named(*names, group="(?P<group>T[0-9])")


def test_composed_and_decomposed_letters_are_one_group_and_two_files():
    pictures = folder("train/\u00f6_1", "train/o\u0308_1", "test/o\u0308_2", group="/(?P<group>.)_")
    assert len(pictures) == 3
    assert {each.group for each in pictures} == {"\u00f6"}


def test_one_split_alone_is_refused_unless_the_others_could_not_be_read():
    with pytest.raises(LabelError):
        folder("train/a.png")
    assert len(folder("train/a.png", whole=False)) == 1
    with pytest.raises(EmptyDataError):
        folder(whole=False)
    with pytest.raises(LabelError):
        folder("a.png", "train/b.png")


@pytest.mark.parametrize("near_duplicates", [True, False])
def test_a_large_image_is_looked_at_part_by_part(monkeypatch, near_duplicates):
    pixels = np.random.default_rng(0).integers(0, 256, (200, 300, 3), dtype=np.uint8)
    stream = BytesIO()
    tifffile.imwrite(stream, pixels, tile=(64, 64), photometric="rgb")
    look = PixelMeasure(PlaneSelector(), MAX_PIXELS, near_duplicates)
    whole = look("a.tif", OpenFile.of(stream.getvalue()))
    by_part = partial(presplit_folder.open_image, region_bytes=0)
    monkeypatch.setattr(presplit_folder, "open_image", by_part)
    assert look("a.tif", OpenFile.of(stream.getvalue())) == whole
    assert whole.pixel_sha256 == pixel_digest(pixels)
    assert bool(whole.fingerprint) is near_duplicates
    with pytest.raises(ImageError, match=r"a\.tif"):
        look("a.tif", OpenFile.of(stream.getvalue()[:9000]))
