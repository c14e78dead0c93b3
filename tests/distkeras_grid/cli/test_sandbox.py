"""``sandbox`` without daemons; tests/hadoop starts them."""

from __future__ import annotations

from pathlib import Path

import pytest

from distkeras_grid.cli.exit_codes import ExitCode
from distkeras_grid.cli.sandbox import main


@pytest.mark.parametrize("verb", ["stop", "status"])
def test_a_folder_without_a_sandbox_stays_as_it_is(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "--folder", str(tmp_path)]) == ExitCode.CLUSTER
    told = capsys.readouterr().err
    assert str(tmp_path) in told
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert main(["stop", "--folder", str(tmp_path / "none")]) == ExitCode.CLUSTER
    assert not (tmp_path / "none").exists()
