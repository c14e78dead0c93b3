"""The JVM without Spark ends with its work, also if it is too busy to end by itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from distkeras_grid.submission import jvm


@pytest.mark.parametrize(
    ("program", "patience", "code"),
    [("input()", 30.0, 1), ("import time; time.sleep(99)", 1.0, -9)],
)
def test_it_ends_with_its_input_or_is_killed(monkeypatch, program, patience, code):
    monkeypatch.setattr(jvm, "STOP_SECONDS", patience)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    jvm._stop(process)
    assert process.returncode == code
