"""``sandbox`` without daemons; tests/hadoop starts them."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from distkeras_grid.cli.exit_codes import ExitCode
from distkeras_grid.cli.sandbox import main, other_users


def account(name: str, number: int, shell: str = "/bin/bash") -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", number, number, "", f"/home/{name}", shell))


def test_people_who_may_log_in_are_told_and_no_others() -> None:
    accounts = [
        account("root", 0),
        account("daemon", 2, "/usr/sbin/nologin"),
        account("ada", 1000),
        account("grace", 1001),
        account("backup", 1002, "/bin/false"),
        account("nobody", 65534),
    ]
    assert other_users(accounts, own=1000) == ["grace"]
    assert other_users(accounts[:3], own=1000) == []


@pytest.mark.parametrize("verb", ["stop", "restart", "repair", "delete", "status"])
def test_a_folder_without_a_sandbox_stays_as_it_is(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "--folder", str(tmp_path)]) == ExitCode.CLUSTER
    told = capsys.readouterr().err
    assert str(tmp_path) in told
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert main(["delete", "--folder", str(tmp_path / "none")]) == ExitCode.CLUSTER
    assert not (tmp_path / "none").exists()
