"""A run that is being saved, stopped after each file operation, and two that are saved at once.

Files are in memory, and each operation happens whole or not at all. `test_saved_run.py` saves with
Spark and Keras.
"""

from __future__ import annotations

import json

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


def save(files, uri, who, *, overwrite):
    output = Output(files, str(uri), SAVED_RUN, overwrite=overwrite)
    output.check()
    write(files, output, who.encode(), History({"who": who}), {"who": who})


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
    "driver: stops after any file operation of a saved run",
    "The former or the new run is there, whole; or none, and the next one finds both.",
)
def test_whoever_stops_in_the_middle_leaves_a_whole_run(before):
    disk, seen = {}, set()
    if before:
        save(at_once(disk), NAME, "old", overwrite=False)
    for state in Exploration({"new": saving("new", overwrite=before)}).states(disk):
        files, runs = at_once(state.disk), runs_in(state.disk)
        assert ("run" in runs) == files.exists(NAME)
        seen.add(runs.get("run"))
        if state.ended:
            assert files.list_names(HOME) == ["run"]
            assert History.from_lines(files.read_lines(f"{NAME}/{HISTORY}")).params["who"] == "new"
            continue
        if before and "run" not in runs:
            check_that_it_is_found(state.disk)
        # The next one is not hindered, whatever is left.
        save(files, NAME, "next", overwrite=before)
        assert runs_in(state.disk)["run"] == "next"
    # Without a former run the last operation is the rename itself.
    assert seen == ({"old", "new", None} if before else {"new", None})


def check_that_it_is_found(disk):
    """A reader is told where both runs are, and the next writer gives the new one its name."""
    with pytest.raises(PathNotFoundError) as raised:
        check_present(at_once(disk), NAME)
    runs = runs_in(disk)
    assert sorted(runs.values()) == ["new", "old"]
    assert all(f"{HOME}/{name}" in str(raised.value) for name in runs)
    after = dict(disk)
    with pytest.raises(OutputExistsError):
        Output(at_once(after), NAME, SAVED_RUN).check()
    assert runs_in(after) == {"run": "new"}
    assert at_once(after).list_names(HOME) == ["run"]


@pytest.mark.parametrize("left", [["old"], ["tmp"], ["run", "old", "tmp"]])
def test_what_is_left_of_other_faults_is_not_taken_for_an_interrupted_replacement(left):
    disk = {}
    for ending in left:
        folder = NAME if ending == "run" else f"{HOME}/_run.{'a' * 32}.{ending}"
        save(at_once(disk), folder, ending, overwrite=False)
    before = dict(disk)
    check_present(at_once(disk), NAME)
    Output(at_once(disk), NAME, SAVED_RUN, overwrite=True).check()
    assert disk == before


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
