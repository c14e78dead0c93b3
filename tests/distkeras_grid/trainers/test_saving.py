"""A run that is being saved, stopped after each file operation, and two that are saved at once.

The files are those of a local folder, without a JVM; each operation happens whole or not at all, as
on HDFS, but for a file that is being written. `test_saved_run.py` saves with Spark and Keras.
"""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path

import pytest

from distkeras_grid.errors import OutputExistsError, PathNotFoundError
from distkeras_grid.history import History
from distkeras_grid.spark.atomic_output import Output
from distkeras_grid.trainers.saved_run import (
    HISTORY,
    MODEL,
    RUN,
    SAVED_RUN,
    check_present,
    write,
)
from tests.interleaving import Exploration, at_once
from tests.local_files import LocalFiles, Stop


class RunFiles(LocalFiles):
    """What `Output` and `write` use of `Storage`."""

    def exists(self, uri):
        self._do("exists", uri)
        return super().exists(uri)

    def list_names(self, uri):
        self._do("list", uri)
        return super().list_names(uri)

    def hidden_beside(self, uri, ending="tmp"):
        return f"{Path(uri).parent}/_{Path(uri).name}.{uuid.uuid4().hex}.{ending}"

    def resolve(self, uri):
        return uri

    def write_lines(self, uri, lines):
        self.write_bytes(uri, "".join(lines).encode())

    def write_text(self, uri, text):
        self.write_bytes(uri, text.encode())

    def rename(self, source, target):
        self._do("rename", source)
        if Path(target).exists():
            raise OutputExistsError(target)
        if not Path(source).exists():
            raise PathNotFoundError(source)
        Path(source).rename(target)

    def discard(self, uri, error):  # noqa: ARG002
        self.delete(uri)


def save(files, uri, who, *, overwrite):
    output = Output(files, str(uri), SAVED_RUN, overwrite=overwrite)
    output.check()
    write(files, output, who.encode(), History({"who": who}), {"who": who})


def run_in(folder):
    """Return whose run a folder holds, whole; None if there is no folder."""
    if not folder.exists():
        return None
    assert sorted(path.name for path in folder.iterdir()) == sorted([MODEL, HISTORY, RUN])
    who = json.loads((folder / RUN).read_text())["who"]
    assert (folder / MODEL).read_text() == who
    lines = (folder / HISTORY).read_text().splitlines()
    assert History.from_lines(lines).params == {"who": who}
    return who


def beside(uri, ending):
    """Return whose runs are kept beside a folder under hidden names of this ending."""
    return [run_in(path) for path in uri.parent.glob(f"_{uri.name}.*.{ending}")]


def operations(tmp_path, before, *, overwrite):
    """How many file operations it takes to save a run."""
    uri = tmp_path / "counted" / "run"
    if before:
        save(RunFiles(), uri, "old", overwrite=False)
    files = RunFiles()
    save(files, uri, "new", overwrite=overwrite)
    assert run_in(uri) == "new"
    assert [path.name for path in uri.parent.iterdir()] == ["run"]
    return len(files.done)


@pytest.mark.parametrize("before", [False, True], ids=["new", "replaced"])
@pytest.mark.promise(
    "driver: stops after any file operation of a saved run",
    "The former or the new run is there, whole; or none, and the next one finds both.",
)
def test_whoever_stops_in_the_middle_leaves_a_whole_run(tmp_path, before):
    count, seen = operations(tmp_path, before, overwrite=before), set()
    assert count > 10
    for stop_at in range(count):
        uri = tmp_path / str(stop_at) / "run"
        if before:
            save(RunFiles(), uri, "old", overwrite=False)
        with pytest.raises(Stop):
            save(RunFiles(stop_at), uri, "new", overwrite=before)
        found = run_in(uri)
        seen.add(found)
        if found is None and before:
            assert (beside(uri, "old"), beside(uri, "tmp")) == (["old"], ["new"])
            check_that_it_is_found(uri)
        # The next one is not hindered, whatever is left, and takes nothing away.
        save(RunFiles(), uri, "next", overwrite=before)
        assert run_in(uri) == "next"
    # Without a former run the last operation is the rename itself.
    assert seen == ({"old", "new", None} if before else {None})


def check_that_it_is_found(uri):
    """A reader is told where both runs are, and the next writer gives the new one its name."""
    with pytest.raises(PathNotFoundError) as raised:
        check_present(RunFiles(), str(uri))
    for ending in ("tmp", "old"):
        (path,) = uri.parent.glob(f"_*.{ending}")
        assert str(path) in str(raised.value)
    other = uri.parent / "other" / uri.name
    shutil.copytree(uri.parent, other.parent)
    with pytest.raises(OutputExistsError):
        Output(RunFiles(), str(other), SAVED_RUN).check()
    assert run_in(other) == "new"
    assert [path.name for path in other.parent.iterdir()] == [other.name]
    shutil.rmtree(other.parent)


@pytest.mark.parametrize("left", [["old"], ["tmp"], ["run", "old", "tmp"]])
def test_what_is_left_of_other_faults_is_not_taken_for_an_interrupted_replacement(tmp_path, left):
    uri = tmp_path / "run"
    for ending in left:
        folder = uri if ending == "run" else tmp_path / f"_run.{'a' * 32}.{ending}"
        save(RunFiles(), folder, ending, overwrite=False)
    before = sorted(tmp_path.iterdir())
    check_present(RunFiles(), str(uri))
    Output(RunFiles(), str(uri), SAVED_RUN, overwrite=True).check()
    assert sorted(tmp_path.iterdir()) == before


HOME, NAME = "/runs", "/runs/run"


def runs_in(disk):
    """Return whose runs the disk holds whole, by the names of their folders."""
    files, found = at_once(dict(disk)), {}
    for name in files.list_names(HOME) if files.exists(HOME) else ():
        if {*files.list_names(f"{HOME}/{name}")} == {MODEL, HISTORY, RUN}:
            found[name] = json.loads(files.read_text(f"{HOME}/{name}/{RUN}"))["who"]
            assert files.read_text(f"{HOME}/{name}/{MODEL}") == found[name]
    return found


def saving(who, *, overwrite):
    return lambda files: save(files, NAME, who, overwrite=overwrite)


@pytest.mark.parametrize("before", [False, True], ids=["new", "replaced"])
@pytest.mark.promise(
    "drivers: two that save a run to the same folder at once",
    "One of them is there, whole; the other one has an error, or was replaced.",
)
def test_of_two_that_save_at_once_one_is_there_and_nothing_is_lost(before):
    """In each order of their operations, and when either is killed after any of them."""
    disk, ends = {}, set()
    if before:
        save(at_once(disk), NAME, "old", overwrite=False)
    actors = {who: saving(who, overwrite=before) for who in ("one", "other")}
    for state in Exploration(actors).states(disk):
        runs = runs_in(state.disk)
        # A reader sees a whole run or none, whatever both have done so far.
        assert ("run" in runs) == at_once(dict(state.disk)).exists(NAME)
        if before:
            # Who replaces a run deletes it when another one is there.
            assert "run" in runs or len({*runs.values()}) > 1
        if len(state.ended) < 2:
            continue
        succeeded = {who for who, ended in state.ended.items() if ended.error is None}
        assert runs["run"] in succeeded
        assert before or len(succeeded) == 1
        assert not {each for name, each in runs.items() if name != "run"} & succeeded
        for who, ended in state.ended.items():
            # Hours of work are not lost: the error says where they are.
            if ended.error is not None:
                assert isinstance(ended.error, OutputExistsError)
                notes = "".join(getattr(ended.error, "__notes__", ()))
                kept = [name for name, each in runs.items() if each == who]
                assert all(f"{HOME}/{name}" in notes for name in kept)
                assert bool(kept) == bool(notes)
        ends.add(frozenset(succeeded))
    assert ends >= {frozenset({"one"}), frozenset({"other"})}


@pytest.mark.promise(
    "driver: taken for dead while it replaces a saved run",
    "Whoever looks gives the new run its name; the driver finds its work done.",
)
def test_who_finishes_the_replacement_of_a_driver_that_lives_harms_nobody():
    disk, ends = {}, set()
    save(at_once(disk), NAME, "old", overwrite=False)

    def check(files):
        Output(files, NAME, SAVED_RUN, overwrite=True).finish_replacement()

    actors = {"new": saving("new", overwrite=True), "one": check, "other": check}
    for state in Exploration(actors).states(disk):
        runs = runs_in(state.disk)
        assert {*runs.values()} & {"old", "new"}
        assert all(ended.error is None for ended in state.ended.values())
        if "new" in state.ended:
            assert runs["run"] == "new"
        if len(state.ended) == len(actors):
            ends.add(tuple(runs))
    assert ends == {("run",)}
