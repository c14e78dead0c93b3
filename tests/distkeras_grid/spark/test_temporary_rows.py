"""Rows in the user's home directory: each run has its own, and those of dead runs are deleted."""

from __future__ import annotations

import os
import threading

import msgspec
import pytest

from distkeras_grid.spark import folder_lease
from distkeras_grid.spark.folder_lease import LeaseRecord, owner_name, this_machine
from distkeras_grid.spark.temporary_rows import ScratchRows, scratch_folder
from tests.local_files import LocalFiles

OTHER = "a" * 32


def leave(root, machine, process=2**31):
    """Leave what a run of a process leaves that was killed."""
    sign = LeaseRecord("host", machine, process, "1", 3)
    root.mkdir(parents=True)
    (root / owner_name(OTHER)).write_bytes(msgspec.json.encode(sign))
    (root / f"rows-{OTHER}").mkdir()
    (root / f"rows-{OTHER}" / "part").write_text("x")


def test_two_runs_at_once_have_rows_of_their_own_and_leave_nothing(tmp_path):
    root = tmp_path / "rows"
    with ScratchRows(LocalFiles(), str(root), print) as first:
        os.makedirs(first.folder)
        with ScratchRows(LocalFiles(), str(root), print) as second:
            assert second.folder != first.folder
            os.makedirs(second.folder)
        assert os.path.exists(first.folder)
        assert not os.path.exists(second.folder)
    assert not root.exists()


@pytest.mark.skipif(not this_machine(), reason="the system does not tell when a process began")
def test_rows_of_a_run_that_died_on_this_machine_are_deleted_at_once(tmp_path):
    root = tmp_path / "rows"
    leave(root, this_machine())
    with ScratchRows(LocalFiles(), str(root), print) as run:
        assert os.listdir(root) == [owner_name(run.id)]


@pytest.mark.parametrize("lives", [False, True])
def test_a_run_on_another_machine_is_dead_if_it_is_silent_all_the_time(
    tmp_path, monkeypatch, lives
):
    monkeypatch.setattr(folder_lease, "BEAT_SECONDS", 0.01)
    root = tmp_path / "rows"
    leave(root, "elsewhere")
    with ScratchRows(LocalFiles(), str(root), print) as run:
        assert (root / f"rows-{OTHER}").exists()
        if lives:
            leave_sign = LeaseRecord("host", "elsewhere", 2**31, "1", 4)
            (root / owner_name(OTHER)).write_bytes(msgspec.json.encode(leave_sign))
        for _ in range(500):
            if run.heartbeat_count >= 8:
                break
            threading.Event().wait(0.01)
    assert (root / f"rows-{OTHER}").exists() == lives


def test_a_short_run_proves_nothing_about_others(tmp_path):
    root = tmp_path / "rows"
    leave(root, "elsewhere")
    with ScratchRows(LocalFiles(), str(root), print):
        pass
    assert (root / f"rows-{OTHER}" / "part").exists()


@pytest.mark.spark
def test_a_local_master_needs_no_such_folder(spark):
    assert scratch_folder(spark) is None
