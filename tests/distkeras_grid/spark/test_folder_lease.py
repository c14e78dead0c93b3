"""Who may change a folder: one run at a time, and what the dead left is swept by the living.

`tests/data_prep/dataset/test_dataset_lock.py` has the signs and the waiting, on data sets of tiles.
"""

from __future__ import annotations

import os

import pytest

from distkeras_grid.cli.retrain import ModelRuns
from distkeras_grid.errors import BusyError
from distkeras_grid.spark.folder_lease import FolderLease, owner_name, owner_of, this_machine
from tests.local_files import LocalFiles

OLD, HEX = "2026-11-21T060000Z", "0" * 32


@pytest.mark.skipif(not this_machine(), reason="the system does not tell when a process began")
def test_a_second_training_leaves_what_a_living_one_writes_alone(tmp_path):
    """It deleted the run that the first was writing."""
    root = tmp_path / "runs"
    with ModelRuns(LocalFiles(), str(root), print) as first:
        (root / f"_{OLD}.{HEX}.tmp").mkdir()
        with pytest.raises(BusyError), ModelRuns(LocalFiles(), str(root), print):
            pass
        assert sorted(os.listdir(root)) == [f"_{OLD}.{HEX}.tmp", owner_name(first.id)]
    # The first was killed while it wrote: the next one sweeps.
    (root / "thesis").mkdir()
    with ModelRuns(LocalFiles(), str(root), print) as third:
        assert sorted(os.listdir(root)) == [owner_name(third.id), "thesis"]
    assert os.listdir(root) == ["thesis"]


def test_a_folder_in_which_nothing_came_about_goes(tmp_path):
    with FolderLease(LocalFiles(), str(tmp_path / "runs"), print) as owner:
        assert owner.owners() == {owner.id}
    assert not (tmp_path / "runs").exists()


def test_only_a_sign_of_life_has_an_owner():
    assert owner_of(owner_name(HEX)) == HEX
    for name in ("_owner.mine", f"_owner.{HEX}.tmp", f"_new-1.{HEX}", "latest.json"):
        assert owner_of(name) is None
