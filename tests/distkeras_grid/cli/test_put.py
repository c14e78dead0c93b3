"""The commands for HDFS without a daemon: flags, words; tests/hadoop has the transfers."""

from __future__ import annotations

from pathlib import Path

import pytest

from distkeras_grid.cli import get, ls, put, rm
from distkeras_grid.cli.console import print_table
from distkeras_grid.webhdfs.connection import FileStatus
from distkeras_grid.webhdfs.transfers import TransferResult

COMMANDS = {"put": put, "get": get, "ls": ls, "rm": rm}
ARGUMENTS = {
    "put": ["a.tif", "/raw"],
    "get": ["/raw", "."],
    **{verb: ["/raw"] for verb in ("ls", "rm")},
}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("WEBHDFS_URL", "HADOOP_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("verb", COMMANDS)
def test_an_address_that_nobody_tells_is_one_line(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert COMMANDS[verb].main(ARGUMENTS[verb]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(
        "ConfigurationError: Nothing tells where WebHDFS answers: give --url"
    )
    assert told.err.count("\n") == 1
    assert not told.out


@pytest.mark.parametrize(
    ("verb", "flags", "code", "told"),
    [
        *((verb, "--url http://localhost:1", 4, "at localhost:1 refuses") for verb in COMMANDS),
        ("put", "--url localhost:1", 2, "looks like http://namenode:9870"),
        ("put", "--threads 0", 2, "threads must be from 1 to 64"),
    ],
)
def test_what_is_wrong_is_one_line(
    verb: str, flags: str, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert COMMANDS[verb].main([*flags.split(), *ARGUMENTS[verb]]) == code
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


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


@pytest.mark.parametrize("verb", COMMANDS)
@pytest.mark.parametrize("flag", ["--principal", "--keytab"])
def test_a_principal_and_a_keytab_go_together(
    verb: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a.tif").touch()
    words = ["--url", "http://localhost:1", flag, "ada", *ARGUMENTS[verb]]
    assert COMMANDS[verb].main(words) == 2
    assert "--principal and --keytab" in capsys.readouterr().err
