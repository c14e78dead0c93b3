"""The page about a data set that a person reads."""

from __future__ import annotations

import pytest

from data_prep.dataset import readme_card
from data_prep.dataset.manifest import DataSet
from data_prep.dataset.readme_card import BEGIN, END
from distkeras_grid.dataset.manifest import TILED, ImageRecord
from distkeras_grid.errors import SchemaError
from tests.data_prep.dataset.test_croissant import IMAGE, OTHER, manifest

ASIDE = ImageRecord("b/1.png", TILED, tiles=2, label="b", split="test", set_aside="blurred")


def describe(content, *more):
    return readme_card.describe(DataSet.from_json(content), *more)


def rows(page):
    table = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("|")]
    return {cells[0]: cells[1:] for cells in table}


def test_classes_splits_version_and_licence_are_told():
    page = describe(manifest(IMAGE, OTHER, ASIDE), "rocks", "CC0-1.0", None)
    found = rows(page)
    assert found["class (images / tiles)"] == ["test", "train"]
    assert (found["a"], found["b"]) == (["0 / 0", "1 / 4"], ["1 / 2", "0 / 0"])
    assert found["all"] == ["1 / 2", "1 / 4"]
    assert page.startswith("# rocks\n")
    assert "Licence: CC0-1.0\n" in page
    assert f"rocks, version 41, SHA-256 {'f' * 64}" in page


def test_what_a_person_wrote_between_the_marks_stays_and_the_rest_is_new():
    first = describe(manifest(IMAGE), "rocks", "x", None)
    begin, end = first.index(BEGIN) + len(BEGIN), first.index(END)
    edited = first[:begin] + "\nTaken in 2019.\n" + first[end:].replace("Version 41", "Version 7")
    now = describe(manifest(IMAGE, OTHER), "rocks", "x", edited)
    assert now.count("Taken in 2019.") == 1
    assert "Version 41" in now
    assert "Version 7" not in now
    assert describe(manifest(IMAGE), "rocks", "x", first) == first


def test_the_line_that_reads_the_tiles_reads_all_splits():
    assert 'train, test = read_tiles("PATH"' in describe(manifest(IMAGE, OTHER), "rocks", "x", None)
    three = manifest(IMAGE, OTHER)
    three["counts"] = {"test": {"b": 2}, "train": {"a": 4}, "validation": {}}
    line = 'train, validation, test = read_tiles("PATH", splits=("train", "validation", "test"))'
    assert line in describe(three, "rocks", "x", None).splitlines()


@pytest.mark.parametrize(
    ("encoding", "told"), [("raw", True), ("difference", True), ("png", False), ("jpeg", False)]
)
def test_tiles_that_are_bytes_to_hugging_face_are_called_so(encoding, told):
    page = describe(manifest(IMAGE, encoding=encoding), "rocks", "x", None)
    assert 'load_dataset("PATH")' in page
    assert ("tiles are bytes" in page) == told


def test_a_page_names_no_reader_that_refuses_corrected_files():
    """`datasets` refuses files whose labels hold no more; see `data_prep.dataset.hugging_face`."""
    page = describe(manifest(IMAGE, ASIDE), "rocks", "x", None)
    assert 'load_dataset("PATH")' not in page
    assert "distkeras-grid export --data PATH --format huggingface" in page


@pytest.mark.parametrize("mark", [BEGIN, END])
def test_a_page_without_a_mark_is_not_replaced(mark):
    page = describe(manifest(IMAGE), "rocks", "x", None)
    with pytest.raises(SchemaError, match="lacks the line"):
        describe(manifest(IMAGE), "rocks", "x", page.replace(mark, ""))


def test_names_mean_nothing_to_markdown():
    page = describe(manifest(IMAGE), "a|b <script> *c*", "x", None)
    assert page.startswith("# a\\|b &lt;script> \\*c\\*\n")
