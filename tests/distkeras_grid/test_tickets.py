"""Tickets without a KDC; tests/hadoop has one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.tickets import Keytab, ticket_authentication


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "requests_gssapi", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'distkeras_grid\[kerberos\]'"):
        ticket_authentication()


def test_a_keytab_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = Keytab("ada", str(tmp_path / "none.keytab"))
    with pytest.raises(ConfigurationError, match=r"none\.keytab"):
        missing.check()
    pytest.importorskip("gssapi", reason="needs pip install 'distkeras_grid[kerberos]'")
    with pytest.raises(ConfigurationError, match=r"none\.keytab"):
        ticket_authentication(missing)
