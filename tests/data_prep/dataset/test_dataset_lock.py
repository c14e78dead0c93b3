"""Who works on a data set: signs of life, and the proof that a run is dead."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from data_prep.dataset.commit import new_name
from data_prep.dataset.dataset_lock import DatasetLock
from distkeras_grid.errors import BusyError, StorageError
from distkeras_grid.spark import folder_lease
from distkeras_grid.spark.folder_lease import (
    LeaseRecord,
    is_process_gone,
    owner_name,
    process_began,
    read_sign,
    this_machine,
)
from tests.local_files import LocalFiles

DEAD = "d" * 32


@pytest.fixture
def root(tmp_path):
    return tmp_path / "tiles"


def own(root, said=None, files=None):
    return DatasetLock(files or LocalFiles(), str(root), (said if said is not None else []).append)


def leave(root, sign, owner=DEAD):
    """What a run leaves that was killed while it wrote its third shard."""
    (root / new_name(2, owner)).mkdir(parents=True)
    (root / new_name(2, owner) / "tiles").write_text("x")
    if sign is not None:
        (root / owner_name(owner)).write_text(sign if isinstance(sign, str) else sign_text(**sign))


def sign_text(**values):
    mine = {"host": "a", "machine": this_machine(), "process": 1, "began": "55", "beat": 0}
    return json.dumps({**mine, **values})


def test_a_sign_while_it_works_and_nothing_afterwards(root):
    with own(root) as owner:
        sign = read_sign((root / owner_name(owner.id)).read_text())
        assert (sign.process, sign.machine) == (os.getpid(), this_machine())
    assert not root.exists()
    root.mkdir()
    with own(root):
        pass
    assert root.exists()


def test_signs_change_while_it_works(root, monkeypatch):
    monkeypatch.setattr(folder_lease, "BEAT_SECONDS", 0.01)
    with own(root) as owner:
        file = root / owner_name(owner.id)
        beats = set()
        for _ in range(500):
            if sign := read_sign(file.read_text()):
                beats.add(sign.beat)
            if len(beats) > 3:
                break
            owner._stopped.wait(0.01)
        assert len(beats) > 3


def test_who_was_swept_does_not_come_back(root, monkeypatch):
    monkeypatch.setattr(folder_lease, "BEAT_SECONDS", 0.01)
    with own(root) as owner:
        owner._stopped.wait(0.05)
        LocalFiles().delete(root / owner_name(owner.id))
        owner._thread.join(5)
        assert not owner._thread.is_alive()
        assert list(root.iterdir()) in ([], [root / owner_name(owner.id)])


def test_a_sign_that_took_long_to_write_does_not_outlive_its_run(root, monkeypatch):
    """A process that lives on, such as a notebook's, kept all others from the data set by it."""
    monkeypatch.setattr(folder_lease, "BEAT_SECONDS", 0.01)

    class Slow(LocalFiles):
        begun, goes_on = threading.Event(), threading.Event()

        def write_in_place(self, uri, content):
            if Path(uri).exists():
                self.begun.set()
                assert self.goes_on.wait(30)
            super().write_in_place(uri, content)

    files = Slow()
    root.mkdir()
    with own(root, files=files) as owner:
        assert files.begun.wait(30)
    assert owner._thread.is_alive()
    files.goes_on.set()
    owner._thread.join(30)
    assert list(root.iterdir()) == []


def test_a_second_run_ends_at_once_while_the_first_works(root):
    with own(root) as first:
        (root / new_name(0, first.id)).mkdir()
        with pytest.raises(BusyError), own(root):
            pass
        assert (root / new_name(0, first.id)).exists()
        assert sorted(os.listdir(root)) == [new_name(0, first.id), owner_name(first.id)]


@pytest.mark.skipif(not this_machine(), reason="the system does not tell when a process began")
def test_a_killed_process_of_this_machine_is_dead_at_once(root):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        began = process_began(process.pid)
        leave(root, {"process": process.pid, "began": began})
        with pytest.raises(BusyError), own(root):
            pass
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
    with own(root):
        assert not (root / new_name(2, DEAD)).exists()
        assert not (root / owner_name(DEAD)).exists()


def test_a_run_of_this_process_that_is_over_is_dead(root):
    class Refuses(LocalFiles):
        refused = False

        def delete(self, uri):
            if self.refused:
                raise StorageError("refused")
            return super().delete(uri)

    files = Refuses()
    with pytest.raises(StorageError), own(root, files=files) as failed:
        files.refused = True
    assert (root / owner_name(failed.id)).exists()
    with own(root):
        assert not (root / owner_name(failed.id)).exists()


def test_leftovers_without_a_sign_are_swept(root):
    leave(root, None)
    with own(root):
        assert not (root / new_name(2, DEAD)).exists()


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(folder_lease, "LOOKS", 10)
    monkeypatch.setattr(folder_lease, "LOOK_SECONDS", 0.02)


@pytest.mark.parametrize("sign", [{"machine": "elsewhere"}, {"machine": ""}, "", "half", "[]"])
def test_a_run_elsewhere_is_dead_when_it_was_silent_for_long(root, quick, sign):
    leave(root, sign)
    said = []
    with own(root, said):
        assert not (root / new_name(2, DEAD)).exists()
    assert "waiting whether" in said[0]


def test_a_run_elsewhere_that_gives_signs_lives(root, quick):
    leave(root, {"machine": "elsewhere"})

    class Beats(LocalFiles):
        looks = 0

        def read_text(self, uri):
            assert super().read_text(uri)
            self.looks += 1
            return sign_text(machine="elsewhere", beat=self.looks)

    with pytest.raises(BusyError), own(root, files=Beats()):
        pass
    assert (root / new_name(2, DEAD)).exists()
    assert sorted(os.listdir(root)) == [new_name(2, DEAD), owner_name(DEAD)]


def test_who_was_stopped_for_long_looks_again_before_it_takes_another_for_dead(
    root, quick, monkeypatch
):
    """A file system, or this process, that hung for a minute was taken for the other's silence."""
    leave(root, {"machine": "elsewhere"})
    clock, pauses = time.monotonic, []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 2:
            (root / owner_name(DEAD)).write_text(sign_text(machine="elsewhere", beat=1))

    monkeypatch.setattr(time, "sleep", sleep)
    # An hour passes in each pause.
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 3600 * len(pauses))
    with pytest.raises(BusyError), own(root):
        pass
    assert (root / new_name(2, DEAD)).exists()


def test_a_run_that_ends_while_it_is_watched_is_not_waited_for(root, quick, monkeypatch):
    monkeypatch.setattr(folder_lease, "LOOKS", 10**6)
    leave(root, {"machine": "elsewhere"})

    class Ends(LocalFiles):
        looks = 0

        def read_text(self, uri):
            self.looks += 1
            if self.looks == 3:
                Path(uri).unlink()
            return super().read_text(uri)

    with own(root, files=Ends()):
        assert not (root / new_name(2, DEAD)).exists()


@pytest.mark.parametrize("name", [owner_name(DEAD), "_update.json"])
def test_a_run_that_ends_between_two_questions_is_gone(root, name):
    """It was listed, and its file went before it was read: that was an error of storage."""

    class Ends(LocalFiles):
        looks = 0

        def list_names(self, uri):
            self.looks += 1
            return super().list_names(uri) + [name] * (self.looks == 1)

        def exists(self, uri):
            return super().exists(uri) or (not self.looks and Path(uri).name == name)

    root.mkdir()
    with own(root, files=Ends()):
        pass


def test_another_users_process_that_the_system_hides_is_not_proven_dead(root, quick, monkeypatch):
    """Nothing can be read about process 1 here, as with /proc mounted by hidepid."""
    leave(root, {"process": 1, "began": "55"})

    def forbidden(*_):
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbidden)
    hidden = Path("/proc/1/stat")
    read_text = Path.read_text

    def read(path, *arguments, **more):
        if path == hidden:
            raise FileNotFoundError(path)
        return read_text(path, *arguments, **more)

    monkeypatch.setattr(Path, "read_text", read)
    assert process_began(1) == folder_lease.UNKNOWN
    said = []
    with own(root, said):
        assert not (root / new_name(2, DEAD)).exists()
    assert "waiting whether" in said[0]


@pytest.mark.parametrize(
    "change",
    [{"host": "a\nb"}, {"host": "\x1b[2J"}, {"process": -1}, {"process": "1"}, {"more": 1}],
)
def test_a_hostile_sign_is_none(change):
    assert read_sign(sign_text()) is not None
    assert read_sign(sign_text(**change)) is None


def test_another_process_of_the_same_number_is_another():
    sign = LeaseRecord(host="a", machine="m", process=7, began="5", beat=0)
    assert is_process_gone(sign, "m", {}.get)
    assert is_process_gone(sign, "m", {7: "6"}.get)
    assert not is_process_gone(sign, "m", {7: "5"}.get)
    assert not is_process_gone(sign, "", {}.get)
    assert process_began(os.getpid()) == process_began(os.getpid())
    assert process_began(2**22 + 1) is None
