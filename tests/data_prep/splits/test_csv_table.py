"""Tables as spreadsheets and people write them."""

from __future__ import annotations

import pytest

from data_prep.splits.csv_table import read_csv
from distkeras_grid.errors import LabelError, SchemaError

ROWS = [(2, {"file": "a.png", "label": "x"}), (3, {"file": "b.png", "label": "y"})]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_any_line_ending_and_a_byte_order_mark_are_read(end, mark):
    text = mark + end.join(["file,label", "a.png,x", "b.png,y", ""])
    assert read_csv(text, "t.csv", LabelError) == (["file", "label"], ROWS)


def test_an_empty_text_has_no_columns():
    assert read_csv("", "t.csv", LabelError) == ((), [])


@pytest.mark.parametrize("error", [LabelError, SchemaError])
@pytest.mark.parametrize("text", ['file\na\n"b"x\n', 'file\na\n"b\n'])
def test_a_stray_quotation_mark_is_refused_with_its_line(text, error):
    with pytest.raises(error, match=r"t\.csv, line 3"):
        read_csv(text, "t.csv", error)
