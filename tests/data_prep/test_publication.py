"""A change of a data set, killed before every single step and finished by the next."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from data_prep.publication import Change, commit, hidden_name, recover
from distkeras_grid.errors import OutputExistsError


class Killed(BaseException):
    pass


class Folder:
    """Local files, as `Storage` has them; dies before a given step."""

    def __init__(self, steps=None):
        self.left = steps

    def _step(self):
        if self.left is not None:
            if self.left == 0:
                raise Killed
            self.left -= 1

    def exists(self, uri):
        return Path(uri).exists()

    def list_names(self, uri):
        return sorted(os.listdir(uri))

    def read_text(self, uri):
        return Path(uri).read_text()

    def write_text(self, uri, content, *, overwrite=False):
        self._step()
        if Path(uri).exists():
            if not overwrite:
                raise OutputExistsError(uri)
            # As Hadoop does on a local disk: not in one step.
            Path(uri).unlink()
            self._step()
        Path(uri).write_text(content)

    def make_dirs(self, uri):
        Path(uri).mkdir(parents=True, exist_ok=True)

    def rename(self, source, target):
        self._step()
        assert not Path(target).exists()
        Path(source).rename(target)

    def delete(self, uri):
        if not Path(uri).exists():
            return False
        self._step()
        shutil.rmtree(uri) if Path(uri).is_dir() else Path(uri).unlink()
        return True


def fill(root, name, text):
    (root / name).mkdir()
    (root / name / "tiles").write_text(text)


def shards(root):
    """All that a reader of the folder sees."""
    return {
        path.name: (path / "tiles").read_text()
        for path in root.iterdir()
        if not path.name.startswith("_")
    }


def named(root):
    """What a reader of the manifest sees."""
    names = json.loads((root / "_dataset.json").read_text())["shards"]
    return {name: (root / name / "tiles").read_text() for name in names}


@pytest.fixture
def root(tmp_path):
    fill(tmp_path, "shard=0", "a b")
    fill(tmp_path, "shard=1", "c")
    (tmp_path / "_dataset.json").write_text(json.dumps(OLD))
    return tmp_path


def prepare(root):
    """What a night has written when it decides: b is replaced, c is gone, d is new."""
    new = {number: hidden_name("new", number) for number in (2, 3)}
    fill(root, new[2], "a")
    fill(root, new[3], "b2 d")
    return Change(
        come=[(new[2], "shard=2"), (new[3], "shard=3")],
        go=[("shard=0", hidden_name("old", 0)), ("shard=1", hidden_name("old", 1))],
    )


BEFORE = {"shard=0": "a b", "shard=1": "c"}
AFTER = {"shard=2": "a", "shard=3": "b2 d"}
OLD, NEW = ({"shards": sorted(each)} for each in (BEFORE, AFTER))
STEPS = 10


@pytest.mark.parametrize("steps", range(STEPS + 1))
def test_killed_before_any_step_it_is_all_or_nothing_after_the_next(root, steps):
    change = prepare(root)
    ended = False
    try:
        commit(Folder(steps), str(root), change, NEW, OLD)
        ended = True
    except Killed:
        pass
    assert ended == (steps == STEPS)
    if (root / "_dataset.json").exists():  # but for a moment, on a local disk alone
        assert named(root) in (BEFORE, AFTER)
    else:
        assert steps == 4
    assert recover(Folder(), str(root)) == (0 < steps < STEPS)
    assert shards(root) == named(root) == (AFTER if steps else BEFORE)
    assert sorted(os.listdir(root)) == sorted([*shards(root), "_dataset.json"])


@pytest.mark.parametrize("steps", range(1, STEPS))
def test_the_one_that_finishes_can_be_killed_too(root, steps):
    with pytest.raises(Killed):
        commit(Folder(2), str(root), prepare(root), NEW, OLD)
    try:
        recover(Folder(steps), str(root))
    except Killed:
        recover(Folder(), str(root))
    assert shards(root) == named(root) == AFTER
    assert sorted(os.listdir(root)) == ["_dataset.json", "shard=2", "shard=3"]


def test_an_update_that_came_between_is_not_overwritten(root):
    change = prepare(root)
    with pytest.raises(OutputExistsError, match="changed by another update"):
        commit(Folder(), str(root), change, NEW, {"shards": []})
    assert shards(root) == BEFORE
    assert not (root / "_update.json").exists()
    (root / "_update.json").write_text("{}")
    with pytest.raises(OutputExistsError):
        commit(Folder(), str(root), change, NEW, OLD)
    assert shards(root) == BEFORE


def test_a_folder_moves_below_a_new_one(root):
    fill(root, "split=train", "e")
    change = Change(come=[("split=train", "shard=7/split=train")])
    commit(Folder(), str(root), change, NEW, OLD)
    assert (root / "shard=7" / "split=train" / "tiles").read_text() == "e"


def test_only_our_hidden_names_are_deleted(root):
    fill(root, "_mine", "x")
    fill(root, "_new-1.not", "x")
    ours = hidden_name("new", 12)
    fill(root, ours, "x")
    assert not recover(Folder(), str(root))
    assert {"_mine", "_new-1.not"} <= set(os.listdir(root))
    assert ours not in os.listdir(root)
    assert not recover(Folder(), str(root / "missing"))
