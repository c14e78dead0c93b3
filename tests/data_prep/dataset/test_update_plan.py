"""What an update plans and says, decided without Spark and without files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from data_prep import TilingSettings
from data_prep.dataset.diff import FileInfo, diff_folder
from data_prep.dataset.update import result_of
from data_prep.dataset.update_plan import Fingerprints, Listing, plan_update
from data_prep.splits.labels import annotate_each
from distkeras_grid.errors import EmptySplitError, ImageError
from tests.data_prep.dataset.test_diff import scan

SETTINGS = TilingSettings("raw", "tiles", split="0.5:0.5", on_error="skip")
NAMES = [*(f"a/{i}.png" for i in range(4)), *(f"b/{i}.png" for i in range(4))]


def scan_of(path, broken=(), colour=()):
    error = "cut" if path in broken else None
    return replace(scan(path, None, error, 3 if path in colour else 1), bits=8)


def plan_of(names, settings=SETTINGS, *, base=None, head=None, table="", measure=scan_of, **looks):
    """Return the plan of a data set that gets these files; `broken` ones cannot be decoded."""
    files = {name: FileInfo(name, 10, 1) for name in names}
    labels, problems = annotate_each(names, settings.labels, lambda _: table, settings.group)
    records, classes = (base.entries, base.image.classes) if base else ({}, ())
    diff = diff_folder(records, files, labels, problems, classes, prune=False)
    return plan_update(
        *(base, head, records, Listing(files, {}, labels, labels, problems), diff),
        {path: measure(path, **looks) for path in diff.to_scan},
        Fingerprints({}, {}),
        settings,
    )


def test_a_plan_is_of_all_images_and_says_what_it_leaves_out():
    plan = plan_of([*NAMES, "B/9.png"], replace(SETTINGS, allow_empty=True), broken=["a/0.png"])
    done = result_of(plan, {"tiles": 0})
    assert (done.new, done.tiles, set(done.left_out)) == (8, 32, {"a/0.png"})
    assert {each.source for each in plan.planned} == {*NAMES, "B/9.png"} - {"a/0.png"}
    assert "the classes 'B' and 'b' differ by case" in "".join(plan.messages)
    assert any("class B has no tile in" in line for line in plan.messages)


def test_who_wants_all_images_gets_all_or_none():
    with pytest.raises(ImageError, match="cut"):
        plan_of(NAMES, replace(SETTINGS, on_error="fail"), broken=["a/0.png"])
    with pytest.raises(ImageError, match="No image can be tiled"):
        plan_of(NAMES, broken=NAMES)


def test_images_of_two_kinds_make_no_data_set():
    with pytest.raises(ImageError, match=r"7 with 1 channel .*1 with 3 channels .*--channels 1"):
        plan_of(NAMES, colour=["b/0.png"])


def test_lines_of_a_table_are_wrong_for_single_images():
    names = ["0.png", "1.png", "a/twin.png", "b/twin.png", "2.png", "3.png"]
    table = "file,label,split\n0.png,a,train\n1.png,a,test\n2.png,b,test\ntwin.png,b,train\n"
    settings = replace(SETTINGS, labels="labels.csv")
    with pytest.raises(EmptySplitError) as raised:
        plan_of(names, settings, table=table)
    assert raised.value.cells == (("b", "train", 1),)
    plan = plan_of(names, replace(settings, allow_empty=True), table=table)
    assert set(plan.actions.problems) == {"a/twin.png", "b/twin.png", "3.png"}
    splits = {path: record.split for path, record in plan.actions.to_tile.items()}
    assert splits == {"0.png": "train", "1.png": "test", "2.png": "test"}
