"""The page of faults is what the tests say."""

from __future__ import annotations

from tests.faults import table


def test_the_page_is_written_from_the_tests():
    found = table.all_promises()
    assert len(found) > 30
    written = table.page(found) + table.matrix()
    assert table.PAGE.read_text(encoding="utf-8") == written, "run make fault-table"
