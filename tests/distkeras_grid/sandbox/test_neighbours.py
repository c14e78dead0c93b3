"""Who is named where a sandbox without passwords starts."""

from __future__ import annotations

import pwd

from distkeras_grid.sandbox.neighbours import other_users


def account(name: str, number: int, shell: str = "/bin/bash") -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", number, number, "", f"/home/{name}", shell))


def test_who_may_log_in_is_named_and_nobody_else() -> None:
    accounts = [
        account("root", 0),
        account("daemon", 2, "/usr/sbin/nologin"),
        account("sync", 4, "/bin/sync"),
        account("ada", 1000),
        account("grace", 1001),
        account("backup", 1002, "/bin/false"),
        account("nobody", 65534, "/usr/sbin/nologin"),
    ]
    assert other_users(accounts, own=1000) == ["grace"]
    assert other_users(accounts[:4], own=1000) == []


def test_accounts_of_the_system_and_of_a_directory_count_if_they_have_a_shell() -> None:
    accounts = [
        account("postgres", 113),
        account("plain", 120, ""),  # /bin/sh, as login(1) says
        account("of.a.directory", 1_840_000_017),
    ]
    assert other_users(accounts, own=1000) == ["postgres", "plain", "of.a.directory"]
