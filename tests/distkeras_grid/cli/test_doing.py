"""A step that takes long says so; a short one says nothing."""

from __future__ import annotations

import time

from distkeras_grid import progress
from distkeras_grid.cli.doing import doing


def said_in(seconds, monkeypatch, capsys, *, shown=True):
    monkeypatch.setattr(progress.Lines, "interval", 0.3)
    with doing("starting Spark", shown=shown):
        time.sleep(seconds)
    return capsys.readouterr().err.splitlines()


def test_a_long_step_is_named(monkeypatch, capsys):
    found = said_in(2.0, monkeypatch, capsys)
    assert found
    assert all(line.startswith("starting Spark") for line in found)


def test_a_short_step_is_silent(monkeypatch, capsys):
    assert said_in(0.0, monkeypatch, capsys) == []


def test_a_step_without_progress_is_silent(monkeypatch, capsys):
    assert said_in(2.0, monkeypatch, capsys, shown=False) == []
