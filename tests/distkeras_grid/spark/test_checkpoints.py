"""Checkpoints in a directory: whoever stops in the middle, an earlier or the new one is read."""

from __future__ import annotations

import shutil

import pytest

from distkeras_grid.checkpoints import FORMAT, Manifest, piece_of, shared_piece
from distkeras_grid.errors import BusyError, DataError, OutputExistsError
from distkeras_grid.spark.checkpoints import CheckpointStore
from tests.local_files import LocalFiles, Stop


def content(number):
    """Two pieces of its own, the model of all, and a segment that only its neighbours have."""
    own = {"server.tree": b"server %d" % number, "driver.tree": b"driver %d" % number}
    shared = {}
    for stem, ending, told in [
        ("model", "keras", b"model"),
        ("history", "jsonl", b"segment %d" % (number // 2)),
    ]:
        shared[shared_piece(stem, ending, told).name] = told
    return own, shared


def manifest_of(number, own, shared):
    pieces = [piece_of(name, told) for name, told in own.items()]
    for name, told in shared.items():
        pieces.append(shared_piece(name.split("-")[0], name.split(".")[1], told))
    return Manifest(FORMAT, number, "run", 0.0, number, 0, 0, {}, False, tuple(pieces))


def write(store, number=None):
    number = number or store.next_number()
    own, shared = content(number)
    store.write(manifest_of(number, own, shared), own, shared)


def begun(folder, count, stop_at=None):
    store = CheckpointStore(LocalFiles(), str(folder))
    store.begin(anew=True)
    for _ in range(count):
        write(store)
    return store


def check_whole(found):
    own, shared = content(found.manifest.number)
    assert found.contents == {**own, **shared}


def test_an_empty_or_missing_directory_has_no_checkpoint(tmp_path):
    store = CheckpointStore(LocalFiles(), str(tmp_path / "missing"))
    assert store.newest(print) is None
    store.begin(anew=True)
    assert store.newest(print) is None
    assert store.next_number() == 1


def test_the_newest_two_are_kept_with_what_they_share(tmp_path):
    store = begun(tmp_path, 5)
    (tmp_path / "notes.txt").write_text("mine")
    write(store)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        *("checkpoint-00000005", "checkpoint-00000006", "notes.txt", "shared", "writer.json"),
    ]
    # The model, and the segments of 4 and 5, and of 6.
    assert len(list((tmp_path / "shared").iterdir())) == 3
    found = store.newest(print)
    assert found.manifest.number == 6
    check_whole(found)


def every_file(folder):
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    return [name for name in names if "00000003" in name or "shared" in name]


@pytest.mark.parametrize("damage", ["shorter", "empty", "longer", "other", "missing"])
def test_a_torn_checkpoint_is_never_read_and_the_one_before_is(tmp_path, damage):
    begun(tmp_path / "whole", 3)
    for name in every_file(tmp_path / "whole"):
        folder = tmp_path / "torn"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", folder)
        path, notes = folder / name, []
        told = path.read_bytes()
        path.write_bytes(
            {"shorter": told[:-1], "empty": b"", "longer": told + b" x", "missing": b""}.get(
                damage, bytes([told[0] ^ 1]) + told[1:]
            )
        )
        if damage == "missing":
            path.unlink()
        store = CheckpointStore(LocalFiles(), str(folder))
        if "model" in name or ("history" in name and b"segment 1" in told):
            # Both consist of it.
            with pytest.raises(DataError):
                store.newest(notes.append)
            continue
        found = store.newest(notes.append)
        check_whole(found)
        assert (found.manifest.number, len(notes)) == (2, 1)


def test_whoever_stops_in_the_middle_leaves_one_whole_checkpoint(tmp_path):
    """After each file operation of the third, and then also of the run that goes on."""
    begun(tmp_path / "two", 2)
    points, stopped = 0, True
    while stopped:
        folder = tmp_path / f"stop{points}"
        shutil.copytree(tmp_path / "two", folder)
        stopped = False
        try:
            store = CheckpointStore(LocalFiles(points), str(folder))
            store.begin(anew=False)
            write(store)
        except Stop:
            stopped = True
        found = CheckpointStore(LocalFiles(), str(folder)).newest(print)
        check_whole(found)
        assert found.manifest.number in (2, 3)
        after = CheckpointStore(LocalFiles(), str(folder))
        after.begin(anew=False)
        write(after)
        assert not [path for path in folder.iterdir() if path.name.startswith("_")]
        check_whole(after.newest(print))
        assert after.newest(print).manifest.number == found.manifest.number + 1
        points += 1
    assert points > 10


def test_a_run_that_begins_takes_no_directory_of_another(tmp_path):
    begun(tmp_path, 1)
    with pytest.raises(OutputExistsError):
        CheckpointStore(LocalFiles(), str(tmp_path)).begin(anew=True)


def test_a_driver_that_was_replaced_writes_nothing(tmp_path):
    old = begun(tmp_path, 1)
    new = CheckpointStore(LocalFiles(), str(tmp_path))
    new.begin(anew=False)
    write(new)
    with pytest.raises(BusyError):
        write(old)
    assert new.newest(print).manifest.number == 2


@pytest.mark.spark
def test_checkpoints_on_a_hadoop_path(spark, tmp_path):
    from distkeras_grid.spark.storage import Storage

    uri = f"file:{tmp_path}/checkpoints"
    store = CheckpointStore(Storage(spark), uri)
    store.begin(anew=True)
    for _ in range(3):
        write(store)
    check_whole(store.newest(print))
    path = tmp_path / "checkpoints" / "checkpoint-00000003" / "server.tree"
    path.write_bytes(path.read_bytes()[:-2])
    notes = []
    assert store.newest(notes.append).manifest.number == 2
    assert len(notes) == 1
