"""Checkpoints in a directory: whoever stops in the middle, an earlier or the new one is read."""

from __future__ import annotations

import shutil
import threading

import pytest

from distkeras_grid.checkpoints import FORMAT, Driver, Manifest, piece_of, shared_piece
from distkeras_grid.errors import DataError, FencedError, OutputExistsError
from distkeras_grid.spark.checkpoints import CheckpointStore
from tests.local_files import LocalFiles, Stop

DRIVER = Driver("application_17_0001")
SECOND = Driver("application_17_0001", attempt=2)


def store_of(folder, driver=DRIVER, stop_at=None):
    return CheckpointStore(LocalFiles(stop_at), str(folder), driver)


def content(number, who="run"):
    """Two pieces of its own, the model of all, and a segment that only its neighbours have."""
    own = {"server.tree": b"server %d" % number, "driver.tree": b"driver %d" % number}
    shared = {}
    for stem, ending, told in [
        ("model", "keras", b"model"),
        ("history", "jsonl", b"segment %d of %s" % (number // 2, who.encode())),
    ]:
        shared[shared_piece(stem, ending, told).name] = told
    return own, shared


def manifest_of(number, own, shared, who, rows=None):
    pieces = [piece_of(name, told) for name, told in own.items()]
    for name, told in shared.items():
        pieces.append(shared_piece(name.split("-")[0], name.split(".")[1], told))
    return Manifest(FORMAT, number, who, 0.0, number, 0, 0, {}, False, tuple(pieces), rows)


def write(store, who="run"):
    number = store.next_number()
    own, shared = content(number, who)
    store.write(manifest_of(number, own, shared, who), own, shared)


def begun(folder, count, stop_at=None):
    store = store_of(folder)
    store.begin(anew=True)
    for _ in range(count):
        write(store)
    return store


def check_whole(found):
    own, shared = content(found.manifest.number, found.manifest.run)
    assert found.contents == {**own, **shared}


def test_an_empty_or_missing_directory_has_no_checkpoint(tmp_path):
    store = store_of(tmp_path / "missing")
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
        *("checkpoint-00000005", "checkpoint-00000006"),
        *("generation.json", "notes.txt", "shared"),
    ]
    # The model, and the segments of 4 and 5, and of 6.
    assert len(list((tmp_path / "shared").iterdir())) == 3
    found = store.newest(print)
    assert found.manifest.number == 6
    check_whole(found)


def test_rows_stay_as_long_as_a_checkpoint_of_their_run(tmp_path):
    store = begun(tmp_path, 0)
    first, second = store.new_rows(), store.new_rows()
    left = []
    for number, folder in enumerate((first, first, second, second), start=1):
        own, shared = content(number)
        name = folder.rpartition("/")[2]
        (tmp_path / name).mkdir(exist_ok=True)
        store.write(manifest_of(number, own, shared, "run", name), own, shared)
        assert store.rows_of(store.newest(print).manifest) == folder
        left.append(sorted(path.name for path in tmp_path.glob("rows-*")))
    one, two = (folder.rpartition("/")[2] for folder in (first, second))
    assert left == [[one], [one], sorted([one, two]), [two]]
    store.drop_rows(second)
    assert (tmp_path / second.rpartition("/")[2]).exists()
    third = store.new_rows()
    (tmp_path / third.rpartition("/")[2]).mkdir()
    store.drop_rows(third)
    assert not (tmp_path / third.rpartition("/")[2]).exists()


def every_file(folder):
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    return [name for name in names if "00000003" in name or "shared" in name]


@pytest.mark.parametrize("damage", ["shorter", "empty", "longer", "other", "missing"])
@pytest.mark.promise(
    "checkpoint: a file shorter, longer, changed or missing",
    "It is never read; the one before is.",
)
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
        store = store_of(folder)
        if "model" in name or ("history" in name and b"segment 1" in told):
            # Both consist of it.
            with pytest.raises(DataError):
                store.newest(notes.append)
            continue
        found = store.newest(notes.append)
        check_whole(found)
        assert (found.manifest.number, len(notes)) == (2, 1)


@pytest.mark.promise(
    "driver: stops after any file operation of a checkpoint",
    "One whole checkpoint is left; nothing else stays.",
)
def test_whoever_stops_in_the_middle_leaves_one_whole_checkpoint(tmp_path):
    """After each file operation of the third, and then also of the run that goes on."""
    begun(tmp_path / "two", 2)
    points, stopped = 0, True
    while stopped:
        folder = tmp_path / f"stop{points}"
        shutil.copytree(tmp_path / "two", folder)
        stopped = False
        try:
            store = store_of(folder, stop_at=points)
            store.begin(anew=False)
            write(store)
        except Stop:
            stopped = True
        found = store_of(folder).newest(print)
        check_whole(found)
        assert found.manifest.number in (2, 3)
        after = store_of(folder)
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
        store_of(tmp_path).begin(anew=True)


def test_a_driver_that_was_replaced_writes_nothing(tmp_path):
    old = begun(tmp_path, 1)
    new = store_of(tmp_path)
    new.begin(anew=False)
    write(new)
    for fenced in (lambda: write(old), lambda: old.newest_of_own(print)):
        with pytest.raises(FencedError, match=DRIVER.application):
            fenced()
    assert new.newest_of_own(print).manifest.number == 2


class Meeting(LocalFiles):
    """Files of a driver that does something before one of its operations, reading or writing."""

    def __init__(self, at, act):
        super().__init__()
        self._at, self._act = at, act

    def _do(self, *what):
        if len(self.done) == self._at:
            self._act()
        super()._do(*what)

    def list_names(self, uri):
        self._do("list", uri)
        return super().list_names(uri)

    def read_bytes(self, uri):
        self._do("read", uri)
        return super().read_bytes(uri)


def interleaved(folder, first, second):
    """Let the old driver write until an operation, the new one until another, and so on.

    Returns the errors of both, and how many operations the new one has made.
    """
    old, errors = begun(folder, 2), []
    reached, go_on = threading.Event(), threading.Event()

    def pause():
        reached.set()
        go_on.wait(10)

    def work(store):
        try:
            write(store, who=store._driver.application)
        except (FencedError, FileNotFoundError, OutputExistsError) as error:
            errors.append(error)
        reached.set()

    old._files = Meeting(first, pause)
    thread = threading.Thread(target=work, args=(old,))
    thread.start()
    reached.wait(10)

    def let_go():
        go_on.set()
        thread.join()

    new = store_of(folder, Driver("new"))
    new._files = Meeting(second, let_go)
    new.begin(anew=False)
    work(new)
    let_go()
    return errors, len(new._files.done)


@pytest.mark.promise(
    "driver: replaced, but still writing a checkpoint",
    "It is fenced; the checkpoints of its successor stay whole.",
)
@pytest.mark.full
def test_two_drivers_that_write_at_once_leave_whole_checkpoints(tmp_path):
    """The old one is replaced before any of its operations, and goes on before any of the new."""
    alone = begun(tmp_path / "alone", 2)
    alone._files = Meeting(-1, None)
    write(alone)
    fenced = 0
    for first in range(len(alone._files.done)):
        second, done = 0, 1
        while second < done:
            folder = tmp_path / f"{first}-{second}"
            errors, done = interleaved(folder, first, second)
            fenced += any(isinstance(error, FencedError) for error in errors)
            found = store_of(folder).newest(pytest.fail)
            check_whole(found)
            # The new one can always write.
            new = store_of(folder, Driver("newer"))
            new.begin(anew=False)
            write(new)
            check_whole(new.newest(pytest.fail))
            second += 1
    assert fenced > 30


def test_another_attempt_of_the_application_goes_on_and_an_earlier_one_comes_too_late(tmp_path):
    begun(tmp_path, 1)
    second = store_of(tmp_path, SECOND)
    assert second.is_of_former_attempt()
    assert not store_of(tmp_path).is_of_former_attempt()
    assert not store_of(tmp_path, Driver("another", attempt=2)).is_of_former_attempt()
    assert not store_of(tmp_path / "missing", SECOND).is_of_former_attempt()
    second.begin(anew=False)
    # One that hung before it began.
    with pytest.raises(FencedError):
        store_of(tmp_path).begin(anew=False)
    write(second)
    # The application of another day, whose drivers count from 1.
    store_of(tmp_path, Driver("another")).begin(anew=False)


@pytest.mark.parametrize("told", [b"", b"{", b"[]", b'{"number": -1}', b"\xff"])
def test_a_generation_that_cannot_be_read_fences_and_is_replaced(tmp_path, told):
    old = begun(tmp_path, 1)
    (tmp_path / "generation.json").write_bytes(told)
    with pytest.raises(FencedError):
        write(old)
    new = store_of(tmp_path)
    new.begin(anew=False)
    write(new)
    assert new.newest_number() == 2


@pytest.mark.spark
def test_checkpoints_on_a_hadoop_path(spark, tmp_path):
    from distkeras_grid.spark.session import this_driver
    from distkeras_grid.spark.storage import Storage

    uri, driver = f"file:{tmp_path}/checkpoints", this_driver(spark)
    assert driver == Driver(spark.sparkContext.applicationId, attempt=1)
    store = CheckpointStore(Storage(spark), uri, driver)
    assert not store.is_of_former_attempt()
    store.begin(anew=True)
    for _ in range(3):
        write(store)
    check_whole(store.newest(print))
    path = tmp_path / "checkpoints" / "checkpoint-00000003" / "server.tree"
    path.write_bytes(path.read_bytes()[:-2])
    notes = []
    assert store.newest(notes.append).manifest.number == 2
    assert len(notes) == 1
