"""The demo breaks each silence, and speaks for nobody else."""

from __future__ import annotations

import importlib.util
import sys
import time

import pytest


@pytest.fixture(scope="module")
def progress(project):
    spec = importlib.util.spec_from_file_location(
        "demo_progress", project / "jobs/demo_progress.py"
    )
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def lines_after(progress, monkeypatch, capsys, *, said):
    """What is printed in a block of ten times the silence that is allowed."""
    monkeypatch.setattr(progress, "SILENCE", 0.3)
    lines = progress.AfterSilence()
    with progress.spinner("tiling", to=lines) as reporter:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            reporter.tick()
            if said:
                lines.note("cutting")
            time.sleep(0.02)
    return capsys.readouterr().out.splitlines()


@pytest.mark.full
def test_a_silence_is_broken(progress, monkeypatch, capsys):
    found = lines_after(progress, monkeypatch, capsys, said=False)
    assert 4 <= len(found) <= 10
    assert all(line.startswith("tiling  ") for line in found)


@pytest.mark.full
def test_nothing_is_added_to_what_others_say(progress, monkeypatch, capsys):
    assert set(lines_after(progress, monkeypatch, capsys, said=True)) == {"cutting"}


@pytest.mark.full
def test_a_silence_that_began_in_another_step_is_broken(progress, monkeypatch, capsys):
    monkeypatch.setattr(progress, "SILENCE", 0.6)
    lines = progress.AfterSilence()
    for phase in ("starting", "tiling", "reading", "training"):
        with progress.spinner(phase, to=lines):
            time.sleep(0.4)
    assert capsys.readouterr().out.splitlines()


@pytest.mark.full
def test_silences_end_before_five_seconds(progress):
    assert progress.SILENCE + 0.25 < 5
