"""The page of faults is what the tests say, and each of them is found by its name."""

from __future__ import annotations

from tests.faults import table
from tests.faults.table import Promise


def test_the_page_is_written_from_the_tests():
    found = table.all_promises()
    assert len(found) > 30
    written = table.page(found) + table.matrix()
    assert table.PAGE.read_text(encoding="utf-8") == written, "run make fault-table"


def test_marks_are_found_and_told_once():
    source = """
@pytest.mark.full
@pytest.mark.promise("a worker dies", "it comes back")
def test_one(): ...

class TestAll:
    @pytest.mark.promise("a worker dies", "it comes back")
    def test_two(self): ...

def test_three(): ...
"""
    found = list(table.promises(source, "faults/test_a.py"))
    assert sorted(found) == [
        Promise("a worker dies", "it comes back", "faults/test_a.py", name)
        for name in ("test_one", "test_two")
    ]
    assert table.page(found).endswith(
        "| a worker dies | it comes back | `faults/test_a.py::test_one`, "
        "`faults/test_a.py::test_two` |\n"
    )
