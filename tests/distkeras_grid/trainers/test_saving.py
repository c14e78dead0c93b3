"""A run that is being saved, stopped after each file operation, and two that are saved at once.

The files are those of a local folder, without a JVM; each operation happens whole or not at all, as
on HDFS, but for a file that is being written. `test_saved_run.py` saves with Spark and Keras.
"""

from __future__ import annotations

import itertools
import json
import threading
import uuid
from pathlib import Path

import pytest

from distkeras_grid.errors import GridError, OutputExistsError, PathNotFoundError
from distkeras_grid.history import History
from distkeras_grid.spark.outputs import Output
from distkeras_grid.trainers.saved_run import HISTORY, MODEL, RUN, SAVED_RUN, write
from tests.local_files import LocalFiles, Stop


class RunFiles(LocalFiles):
    """What `Output` and `write` use of `Storage`; before each operation it waits for its turn."""

    def __init__(self, stop_at=None, turn=lambda: None):
        super().__init__(stop_at)
        self._turn = turn

    def _do(self, *what):
        self._turn()
        super()._do(*what)

    def exists(self, uri):
        self._do("exists", uri)
        return super().exists(uri)

    def list_names(self, uri):
        self._do("list", uri)
        return super().list_names(uri)

    def hidden_beside(self, uri, ending="tmp"):
        return f"{Path(uri).parent}/_{Path(uri).name}.{uuid.uuid4().hex}.{ending}"

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
    assert History.from_jsonl(folder / HISTORY).params == {"who": who}
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
    "The former or the new run is there, whole; or for a moment neither, and both whole beside it.",
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
        # The next one is not hindered, whatever is left, and takes nothing away.
        save(RunFiles(), uri, "next", overwrite=before)
        assert run_in(uri) == "next"
    # Without a former run the last operation is the rename itself.
    assert seen == ({"old", "new", None} if before else {None})


class Actor:
    """Saves a run in a thread, one file operation at a time."""

    def __init__(self, uri, who, *, overwrite):
        self.who, self.error, self.steps = who, None, 0
        self._permits, self._arrived = threading.Semaphore(0), threading.Semaphore(0)
        self._free = self.ended = False
        self._thread = threading.Thread(target=self._save, args=(uri, overwrite))
        self._thread.start()
        self._arrived.acquire()

    def _turn(self):
        if not self._free:
            self._arrived.release()
            self._permits.acquire()

    def _save(self, uri, overwrite):
        try:
            save(RunFiles(turn=self._turn), uri, self.who, overwrite=overwrite)
        except GridError as error:
            self.error = error
        self.ended = True
        self._arrived.release()

    def run(self, steps):
        """Do so many operations, or all that are left."""
        for _ in range(steps):
            if self.ended:
                return
            self.steps += 1
            self._permits.release()
            self._arrived.acquire()

    def finish(self):
        self._free = True
        self._permits.release()
        self._thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True], ids=["new", "replaced"])
@pytest.mark.promise(
    "drivers: two that save a run to the same folder at once",
    "One of them is there, whole; the other one has an error, or was replaced.",
)
def test_of_two_that_save_at_once_one_is_there_and_nothing_is_lost(tmp_path, before):
    """The first pauses after any operation, the second after any of its own, and they end."""
    count, ends = operations(tmp_path, before, overwrite=before), set()
    for number, (first, second) in enumerate(itertools.product(range(count + 1), repeat=2)):
        uri = tmp_path / str(number) / "run"
        if before:
            save(RunFiles(), uri, "old", overwrite=False)
        actors = [Actor(uri, who, overwrite=before) for who in ("one", "other")]
        for actor, steps in zip(actors, (first, second), strict=True):
            actor.run(steps)
            # A reader sees a whole run or none, whatever both have done so far.
            assert run_in(uri) in (None, "old", "one", "other")
        for actor in actors:
            actor.finish()
        succeeded = {actor.who for actor in actors if actor.error is None}
        assert succeeded
        assert run_in(uri) in succeeded
        for actor in actors:
            # Hours of work are not lost: the error says where they are.
            if actor.error is not None:
                assert isinstance(actor.error, OutputExistsError)
                kept = actor.who in beside(uri, "tmp")
                assert kept == bool(getattr(actor.error, "__notes__", ()))
        ends.add(frozenset(succeeded))
    assert ends >= {frozenset({"one"}), frozenset({"other"})}
