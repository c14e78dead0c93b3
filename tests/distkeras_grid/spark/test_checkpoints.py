"""Checkpoints in a directory: whoever stops in the middle, an earlier or the new one is read."""

import shutil

import pytest

from distkeras_grid.checkpoints import (
    FORMAT,
    MANIFEST,
    CheckpointManifest,
    Driver,
    DriverEpoch,
    folder_name,
    generation_name,
    generations_of,
    numbers_of,
    piece_of,
)
from distkeras_grid.errors import FencedError, OutputExistsError, StorageError
from distkeras_grid.spark.checkpoints import CheckpointStore
from tests.interleaving import Exploration, at_once
from tests.local_files import LocalFiles

DRIVER = Driver("application_17_0001")
SECOND = Driver("application_17_0001", attempt=2)


def store_of(folder, driver=DRIVER):
    return CheckpointStore(LocalFiles(), str(folder), driver)


def content(number, who="run"):
    """Return what a checkpoint has, the same model as all others among it."""
    return {
        "server.tree": b"server %d" % number,
        "driver.tree": b"driver %d" % number,
        "model.keras": b"model",
        "history.jsonl": b"%d of %s" % (number, who.encode()),
    }


def manifest_of(number, contents, who="run", rows=None):
    pieces = tuple(piece_of(name, told) for name, told in contents.items())
    return CheckpointManifest(FORMAT, number, who, 0.0, number, 0, 0, {}, False, pieces, rows)


def write(store, who="run"):
    number = store.next_number()
    contents = content(number, who)
    store.write(manifest_of(number, contents, who), contents)


def begun(folder, count):
    store = store_of(folder)
    store.begin(anew=True)
    for _ in range(count):
        write(store)
    return store


def check_whole(found):
    assert found.contents == content(found.manifest.number, found.manifest.run)


def test_an_empty_or_missing_directory_has_no_checkpoint(tmp_path):
    store = store_of(tmp_path / "missing")
    assert store.newest(print) is None
    store.begin(anew=True)
    assert store.newest(print) is None
    assert store.next_number() == 1


def test_the_newest_two_are_kept_and_what_is_the_users(tmp_path):
    store = begun(tmp_path, 5)
    (tmp_path / "notes.txt").write_text("mine")
    write(store)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        *("checkpoint-00000005", "checkpoint-00000006"),
        *("generation-00000001.json", "notes.txt"),
    ]
    found = store.newest(print)
    assert found.manifest.number == 6
    check_whole(found)


def test_rows_stay_as_long_as_a_checkpoint_of_their_run(tmp_path):
    store = begun(tmp_path, 0)
    first, second = store.new_rows(), store.new_rows()
    left = []
    for number, folder in enumerate((first, first, second, second), start=1):
        contents, name = content(number), folder.rpartition("/")[2]
        (tmp_path / name).mkdir(exist_ok=True)
        store.write(manifest_of(number, contents, rows=name), contents)
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


DAMAGES = {
    "shorter": lambda told: told[:-1],
    "empty": lambda told: told[:0],
    "longer": lambda told: told + b" x",
    "other": lambda told: bytes([told[0] ^ 1]) + told[1:],
    "missing": None,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.promise(
    "checkpoint: a file shorter, longer, changed or missing",
    "It is never read; the one before is.",
)
def test_a_torn_checkpoint_is_never_read_and_the_one_before_is(tmp_path, damage):
    begun(tmp_path / "whole", 3)
    change = DAMAGES[damage]
    for file in (tmp_path / "whole" / folder_name(3)).iterdir():
        folder, notes = tmp_path / "torn", []
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", folder)
        path = folder / folder_name(3) / file.name
        if change is None:
            path.unlink()
        else:
            path.write_bytes(change(path.read_bytes()))
        store = store_of(folder)
        found = store.newest(notes.append)
        check_whole(found)
        assert (found.manifest.number, len(notes)) == (2, 1)


def test_a_run_that_begins_takes_no_directory_of_another(tmp_path):
    begun(tmp_path, 1)
    with pytest.raises(OutputExistsError):
        store_of(tmp_path).begin(anew=True)


def test_a_driver_that_was_replaced_writes_nothing(tmp_path):
    old = begun(tmp_path, 1)
    new = store_of(tmp_path)
    new.begin(anew=False)
    write(new)
    for fenced in (lambda: write(old), old.check_own):
        with pytest.raises(FencedError, match=DRIVER.application):
            fenced()
    new.check_own()
    assert new.newest(print).manifest.number == 2


FOLDER = "/checkpoints"


def beginning(driver, count=0):
    """What a driver does that takes the directory over, goes on, and writes checkpoints."""

    def act(files):
        store = CheckpointStore(files, FOLDER, driver)
        store.begin(anew=False)
        found = store.newest(pytest.fail)
        for _ in range(count):
            write(store, who="new")
        return store._generation.number, found.manifest.number if found else 0

    return act


def written(count, more):
    """The directory of the first driver, and what it does when it writes more checkpoints."""
    disk = {}
    store = CheckpointStore(at_once(disk), FOLDER, DRIVER)
    store.begin(anew=True)
    for _ in range(count):
        write(store)

    def act(files):
        again = CheckpointStore(files, FOLDER, DRIVER)
        again._generation = store._generation
        for _ in range(more):
            write(again)

    return disk, act


def check_left(disk, known):
    """Whoever is killed now: what is there is whole, and another driver goes on and cleans up."""
    if (key := frozenset(disk.items())) in known:
        return
    known.add(key)
    disk = dict(disk)
    store = CheckpointStore(at_once(disk), FOLDER, Driver("third"))
    found = store.newest(pytest.fail)
    check_whole(found)
    store.begin(anew=False)
    write(store, who="third")
    after = store.newest(pytest.fail)
    check_whole(after)
    assert (after.manifest.number, after.manifest.run) == (found.manifest.number + 1, "third")
    names = at_once(disk).list_names(FOLDER)
    assert (len(names), names[2][:11]) == (3, "generation-")


@pytest.mark.promise(
    "driver: stops after any file operation of a checkpoint",
    "One whole checkpoint is left; nothing else stays.",
)
def test_whoever_stops_in_the_middle_leaves_one_whole_checkpoint():
    """After each file operation of one that takes the directory over and writes the third."""
    disk, _ = written(2, more=0)
    known = set()
    for state in Exploration({"one": beginning(SECOND, count=1)}, hidden=True).states(disk):
        check_left(state.disk, known)
    assert len(known) > 10


@pytest.mark.full
@pytest.mark.parametrize("piecewise", [False, True])
@pytest.mark.promise(
    "driver: replaced, but still writing a checkpoint",
    "It is fenced; the checkpoints of its successor stay whole.",
)
def test_two_drivers_that_write_at_once_leave_whole_checkpoints(piecewise):
    """In each order of their operations, and when either is killed after any of them."""
    disk, old = written(2, more=1)
    actors = {"old": old, "new": beginning(SECOND, count=1)}
    ends, known = set(), set()
    for state in Exploration(actors, piecewise=piecewise).states(disk):
        check_left(state.disk, known)
        new, former = state.ended.get("new"), state.ended.get("old")
        if new is not None:
            # Nothing stops the new one, or takes away what it has written.
            assert new.error is None
            generation, found = new.value
            numbers = numbers_of(at_once(state.disk).list_names(FOLDER))
            assert (generation, numbers[0]) == (2, found + 1)
            told = at_once(state.disk).read_bytes(f"{FOLDER}/{folder_name(found + 1)}/{MANIFEST}")
            assert CheckpointManifest.from_bytes(told).run == "new"
        if new and former:
            assert isinstance(former.error, FencedError | None)
            ends.add((former.error is None, new.value[1]))
    # The old one has written none or one before it was replaced.
    assert ends == {(False, 2), (False, 3), (True, 3)}
    assert len(known) > 50


def test_an_earlier_attempt_never_takes_the_directory_from_a_later_one():
    """Also if it has hung in the middle of taking it over."""
    disk, _ = written(1, more=0)
    actors = {"old": beginning(DRIVER), "new": beginning(SECOND)}
    ends, known = set(), set()
    for state in Exploration(actors, hidden=True).states(disk):
        check_left(state.disk, known)
        if new := state.ended.get("new"):
            assert new.error is None
        if len(state.ended) == 2:
            old = state.ended["old"]
            assert isinstance(old.error, FencedError | None)
            ends.add((old.value, new.value))
            store = CheckpointStore(at_once(dict(state.disk)), FOLDER, SECOND)
            assert store._newest_generation().driver == SECOND
    assert ends == {(None, (2, 1)), (None, (3, 1)), ((2, 1), (3, 1))}


def test_a_driver_that_was_replaced_twice_writes_nothing_while_the_last_one_cleans_up():
    disk, old = written(1, more=1)
    # The second one was killed when it had taken the directory over.
    second = DriverEpoch(2, SECOND, "second").to_bytes()
    disk[f"{FOLDER}/{generation_name(2)}"] = second
    actors = {"old": old, "third": beginning(Driver(DRIVER.application, attempt=3))}
    for state in Exploration(actors).states(disk):
        if ended := state.ended.get("old"):
            assert isinstance(ended.error, FencedError)
        if ended := state.ended.get("third"):
            assert ended.value == (3, 1)
            assert generations_of(at_once(state.disk).list_names(FOLDER)) == [3]


@pytest.mark.full
def test_of_two_drivers_that_begin_at_once_the_last_one_writes():
    disk, _ = written(1, more=0)
    drivers = {name: Driver(name) for name in ("one", "other")}
    actors = {name: beginning(driver) for name, driver in drivers.items()}
    ends = set()
    for state in Exploration(actors).states(disk):
        check_left(state.disk, set())
        if len(state.ended) == 2:
            numbers = {
                name: ended.value[0] for name, ended in state.ended.items() if not ended.error
            }
            last = max(numbers, key=numbers.get)
            found = CheckpointStore(at_once(dict(state.disk)), FOLDER, DRIVER)._newest_generation()
            assert (found.driver, found.number) == (drivers[last], numbers[last])
            assert len({*numbers.values()}) == len(numbers)
            ends.add((last, len(numbers)))
    assert ends == {("one", 1), ("one", 2), ("other", 1), ("other", 2)}


def preparing(driver, resume=False):
    """What a driver does from its first look at the directory to its first checkpoint."""

    def act(files):
        store = CheckpointStore(files, FOLDER, driver)
        found = store.look(resume=resume, tell=pytest.fail)
        number = 0 if found is None else found.manifest.number
        newer = store.settle(number, pytest.fail)
        write(store, who=f"attempt {driver.attempt}")
        return number, newer and newer.manifest.number

    return act


@pytest.mark.full
@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.promise(
    "driver: replaced while it writes its first checkpoint",
    "Its successor goes on from that checkpoint, or begins anew; it never finds the place taken.",
)
def test_a_later_attempt_takes_over_from_one_that_has_just_begun(resume):
    actors = {"old": preparing(DRIVER, resume), "new": preparing(SECOND, resume)}
    ends = set()
    for state in Exploration(actors).states({}):
        if len(state.ended) == 2:
            old, new = state.ended["old"], state.ended["new"]
            assert new.error is None
            assert isinstance(old.error, FencedError | OutputExistsError | None)
            found = CheckpointStore(at_once(dict(state.disk)), FOLDER, SECOND).newest(pytest.fail)
            assert (found.manifest.number, found.manifest.run) == (new.value[0] + 1, "attempt 2")
            ends.add((old.error is None, *new.value))
    # What it looks at does not change any more.
    assert ends == {(True, 1, None), (False, 1, None), (False, 0, None)}


def test_a_later_attempt_leaves_the_checkpoints_of_another_application_alone(tmp_path):
    begun(tmp_path, 2)
    other = store_of(tmp_path, Driver("another", attempt=2))
    with pytest.raises(OutputExistsError):
        other.look(resume=False, tell=pytest.fail)
    assert [path.name for path in tmp_path.glob("gen*")] == ["generation-00000001.json"]
    assert other.look(resume=True, tell=pytest.fail).manifest.number == 2


def test_a_driver_goes_on_from_what_another_one_writes_after_its_look(tmp_path):
    old, new = begun(tmp_path, 1), store_of(tmp_path, Driver("another"))
    assert new.look(resume=True, tell=pytest.fail).manifest.number == 1
    write(old)
    assert new.settle(1, pytest.fail).manifest.number == 2
    with pytest.raises(FencedError):
        write(old)


@pytest.mark.parametrize("piecewise", [False, True])
@pytest.mark.promise(
    "driver: reads the checkpoints of another one, which still writes and deletes them",
    "It reads a whole one; those that are deleted meanwhile are not taken for torn.",
)
def test_a_reader_finds_a_whole_checkpoint_while_another_driver_replaces_them(piecewise):
    disk, writer = written(2, more=2)

    def reader(files):
        found = CheckpointStore(files, FOLDER, SECOND).newest(pytest.fail)
        check_whole(found)
        return found.manifest.number

    ends = set()
    for state in Exploration({"writer": writer, "reader": reader}, piecewise=piecewise).states(
        disk
    ):
        if ended := state.ended.get("reader"):
            assert ended.error is None
            ends.add(ended.value)
    assert ends == {2, 3, 4}


def test_a_reader_that_is_always_too_late_ends(tmp_path):
    begun(tmp_path, 1)

    class Late(LocalFiles):
        """Between two operations, another checkpoint has taken the place of all."""

        def read_bytes(self, uri):
            (former,) = tmp_path.glob("checkpoint-*")
            former.rename(tmp_path / f"checkpoint-{int(former.name[-8:]) + 1:08}")
            return super().read_bytes(uri)

    with pytest.raises(StorageError):
        CheckpointStore(Late(), str(tmp_path), SECOND).newest(pytest.fail)


def test_another_attempt_of_the_application_goes_on_and_so_does_another_application(tmp_path):
    begun(tmp_path, 1)
    second = store_of(tmp_path, SECOND)
    assert second.is_of_former_attempt()
    assert not store_of(tmp_path).is_of_former_attempt()
    assert not store_of(tmp_path, Driver("another", attempt=2)).is_of_former_attempt()
    assert not store_of(tmp_path / "missing", SECOND).is_of_former_attempt()
    second.begin(anew=False)
    # The application of another day, whose drivers count from 1.
    store_of(tmp_path, Driver("another")).begin(anew=False)


@pytest.mark.parametrize("told", [b"", b"{", b"[]", b'{"number": -1}', b"\xff"])
def test_a_generation_that_cannot_be_read_fences_and_is_replaced(tmp_path, told):
    old = begun(tmp_path, 1)
    (tmp_path / "generation-00000001.json").write_bytes(told)
    with pytest.raises(FencedError):
        write(old)
    new = store_of(tmp_path)
    new.begin(anew=False)
    write(new)
    assert new.newest_number() == 2
