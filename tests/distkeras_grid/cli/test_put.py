"""The commands for HDFS without a daemon: flags, words; tests/hadoop has the transfers."""

from __future__ import annotations

import pytest

from distkeras_grid.cli import ls, put
from distkeras_grid.cli.console import print_table
from distkeras_grid.webhdfs.connection import FileStatus
from distkeras_grid.webhdfs.transfers import TransferResult


@pytest.mark.parametrize(
    ("done", "told"),
    [
        (TransferResult(1, 1_000_000, 0, 0, 2.0), "sent 1 file, 1.0 MB in 2.0 s, 500 kB/s"),
        (
            TransferResult(0, 0, 3000, 12, 2.0),
            "sent 0 files; 3,000 files, 12 bytes, were in /raw already",
        ),
        (
            TransferResult(2, 0, 1, 5, 0.0),
            "sent 2 files, 0 bytes in 0.0 s, 0 bytes/s; 1 file, 5 bytes, were in /raw already",
        ),
    ],
)
def test_the_last_line(done: TransferResult, told: str) -> None:
    assert put.summary("sent", done, "in /raw") == told


def test_a_listing_stands_in_columns_and_no_name_breaks_its_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    common = {"modified": 0.0, "opaque": False}
    entries = [
        FileStatus("/raw/a b", True, 0, permission="1777", owner="ada", group="lab", **common),
        FileStatus("/raw/x\ny", False, 1234, permission="640", owner="b", group="c", **common),
    ]
    print_table(ls.rows(entries))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("drwxrwxrwt  ada  lab     0  19")  # 1970, or 1969 west of London
    assert lines[1].startswith("-rw-r-----  b    c    1234  19")
    assert lines[0].endswith("  /raw/a b")
    assert lines[1].endswith("  /raw/x\\ny")
    print_table([])
    assert capsys.readouterr().out == ""
