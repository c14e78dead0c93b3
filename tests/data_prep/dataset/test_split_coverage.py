"""Which classes have no tile in which split, decided without Spark and without files."""

from __future__ import annotations

import pytest

from data_prep.dataset.actions import UpdateActions
from data_prep.dataset.split_coverage import missing_cells, unfilled_cells
from distkeras_grid.dataset.manifest import REMOVED, TILED, ImageRecord

SHARES = {"train": 0.8, "test": 0.2}


def entry(path, split, status=TILED, **more):
    values = {"tiles": 4, "label": path[0], "sha256": f"sha of {path}", "split": split}
    return ImageRecord(path, status, **values | more)


def missing(records, *to_tile, chosen=False):
    actions = UpdateActions(*({each.source: each for each in some} for some in (records, to_tile)))
    return missing_cells(actions, SHARES, chosen=chosen)


WHOLE = [entry("a/0", "train"), entry("a/1", "test"), entry("b/0", "train")]


@pytest.mark.parametrize(
    ("more", "cells"),
    [
        (entry("b/1", "test"), []),
        (entry("b/1", "test", set_aside="blurred"), [("b", "test", 1)]),
        (entry("b/1", "test", tiles=0), [("b", "test", 1)]),
        (entry("b/1", "test", REMOVED), [("b", "test", 1)]),
    ],
)
def test_only_tiles_that_are_read_fill_a_cell(more, cells):
    """Excluded images counted as tiles."""
    for chosen in (False, True):
        assert missing([*WHOLE, more], chosen=chosen) == cells


def test_a_class_of_which_all_images_are_excluded_is_told():
    aside = [entry("b/0", "train", set_aside="x"), entry("b/1", "test", set_aside="x")]
    assert missing([*WHOLE[:2], *aside]) == [("b", "train", 0), ("b", "test", 0)]


def test_where_a_table_chooses_the_splits_those_count_that_it_has():
    """They were not looked at."""
    assert missing(WHOLE, entry("b/1", "validation"), chosen=True) == [
        ("a", "validation", 2),
        ("b", "test", 2),
    ]
    assert missing([entry("a/0", "train")], chosen=True) == []


def test_an_image_that_stays_excluded_fills_no_cell():
    more = entry("b/1", "test", set_aside="blurred")
    assert missing(WHOLE, more) == [("b", "test", 1)]
    assert unfilled_cells([more], WHOLE) == []


def test_conditions_can_empty_a_cell():
    after = [*WHOLE, entry("b/1", "test", tiles=0, filtered=4)]
    assert unfilled_cells([entry("b/1", "test")], after) == [("b", "test", 1)]
    assert unfilled_cells([entry("b/1", "test")], [*WHOLE, entry("b/2", "test")]) == []
