"""The commit of a version, stopped after each step, and two runs that meet at any point of theirs.

They run on a model of a file system that does each operation as HDFS does: whole or not at all.
`test_update.py` kills real nights on real files.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from data_prep.dataset.commit import Transaction, read_head, run_id, uncommitted, vacuum
from distkeras_grid.errors import (
    BusyError,
    GridError,
    OutputExistsError,
    PathNotFoundError,
    StorageError,
)
from tests.data_prep.dataset.test_croissant import DAY, IMAGE, manifest
from tests.interleaving import Exploration, at_once, perform

ROOT = "/tiles"
RUNS = ("20261127T113000-0000000a", "20261127T113000-0000000b")
OLD = "20200101T000000-0123abcd"


def content(number, *shards, **more):
    return {
        **manifest(IMAGE),
        **{"shards": list(shards), "last_shard": len(shards) - 1, "last_update": number},
        **more,
    }


def version(number, *shards):
    times = {"created": DAY, "replaced": DAY}
    return {"number": number, "hash": "a" * 64, **times, "shards": list(shards), "tiles": 4}


def start(*manifests):
    """Files of a data set with these manifests, each with its shards."""
    disk = {f"{ROOT}/_versions/{each['last_update']}.json": encoded(each) for each in manifests}
    return disk | {f"{ROOT}/{name}/part": b"tiles" for each in manifests for name in each["shards"]}


def encoded(manifest):
    return json.dumps(manifest).encode()


def night(run):
    """A run that adds a shard to what it finds; it returns its version."""

    def act(files):
        head = read_head(files, ROOT)
        with Transaction(files, ROOT, head) as transaction:
            transaction._run = run
            number, folder = transaction.new_shard()
            files.write_bytes(f"{folder}/half", b"")
            files.write_bytes(f"{folder}/part", b"tiles")
            names = [] if head is None else head.content["shards"]
            last = -1 if head is None else head.manifest.last_update
            name = transaction.name(number)
            done = transaction.commit(content(last + 1, *names, name, last_shard=number))
        return done.manifest.last_update

    return act


def seen(disk):
    """The version that a reader gets at this moment; all its shards are there, and whole."""
    head = read_head(at_once(dict(disk)), ROOT)
    if head is None:
        return None
    for name in head.content["shards"]:
        assert disk[f"{ROOT}/{name}/part"] == b"tiles"
    return head


@pytest.mark.parametrize("first", [[], [content(0, f"shard=0-{OLD}")]], ids=["new", "update"])
def test_of_two_runs_one_commits_whenever_they_meet_or_are_killed(first):
    begins = len(first) - 1
    runs = {"a": night(RUNS[0]), "b": night(RUNS[1])}
    ends = []
    for state in Exploration(runs, hidden=True).states(start(*first), switches=2):
        head = seen(state.disk)
        number = -1 if head is None else head.manifest.last_update
        assert begins <= number <= begins + 2
        done = {name: each for name, each in state.ended.items() if each.error is None}
        # Who has committed is read.
        assert all(each.value <= number for each in done.values())
        for each in state.ended.values():
            if each.error is not None:
                assert isinstance(each.error, BusyError)
                assert "Run it again" in str(each.error)
        if len(state.ended) == 2:
            ends.append((len(done), number - begins))
            left = at_once(dict(state.disk)).list_names(ROOT)
            assert uncommitted(left, head) == []
    # One after the other, or one against the other.
    assert set(ends) == {(2, 2), (1, 1)}


def test_the_error_names_the_version_that_another_run_has_committed():
    files = at_once(start(content(0, "shard=0-x")))
    late = Transaction(files, ROOT, read_head(files, ROOT))
    night(RUNS[0])(files)
    night(RUNS[1])(files)
    with pytest.raises(BusyError, match=r"/tiles has version 2 by now.*Run it again"):
        late.check()
    with pytest.raises(BusyError, match="version 2"):
        late.commit(content(1))
    with pytest.raises(BusyError, match="version 2"):
        Transaction(files, ROOT, None).check()
    files.delete(ROOT)
    with pytest.raises(BusyError, match="no version by now"):
        late.commit(content(1))


def test_what_a_run_has_written_reaches_the_disk_before_its_commit():
    """Spark leaves Parquet to the system's memory: after a power failure files could be empty."""
    files, persisted = at_once(start()), []
    files.persist = lambda uri: persisted.append((uri, read_head(files, ROOT)))
    night(RUNS[0])(files)
    assert persisted == [(f"{ROOT}/shard=0-{RUNS[0]}", None)]


def fails_after_the_rename(error):
    """Files on which a manifest gets its name, and an error is the answer."""
    disk = start()

    def lossy(operation):
        result = perform(disk, operation)
        if operation[0] == "create" and "/_versions/" in operation[1]:
            raise error
        return result

    files = at_once(disk)
    files._do = lossy
    return files, disk


def test_a_commit_whose_answer_was_lost_is_one():
    """A NameNode that restarts has done the rename, and the client asks again."""
    files, disk = fails_after_the_rename(OutputExistsError("there is one"))
    assert Transaction(files, ROOT, None).commit(content(0)).manifest.last_update == 0
    assert seen(disk).manifest.last_update == 0


def test_a_commit_that_the_disk_may_not_keep_is_told_and_its_shards_stay():
    """It counted as a commit like any other."""
    files, disk = fails_after_the_rename(StorageError("the disk does not keep it"))
    with pytest.raises(StorageError, match="does not keep"):
        night(RUNS[0])(files)
    assert seen(disk).content["shards"] == [f"shard=0-{RUNS[0]}"]


def test_a_refused_commit_is_told_as_it_is_and_the_former_version_stays():
    disk = start(content(0, "shard=0-x"))
    before, files = dict(disk), at_once(disk)
    files.write_text = refuse
    with pytest.raises(StorageError, match="quota"):
        night(RUNS[0])(files)
    assert disk == before


def refuse(*_, **__):
    raise StorageError("quota")


def test_a_shard_that_is_gone_is_not_committed():
    disk = start(content(0, "shard=0-x"))
    with pytest.raises(StorageError, match="is gone"):
        commit_without_shard(at_once(disk))
    assert seen(disk).manifest.last_update == 0


def commit_without_shard(files):
    with Transaction(files, ROOT, read_head(files, ROOT)) as transaction:
        transaction.new_shard()
        transaction.commit(content(1))


def test_an_interrupt_after_the_rename_deletes_nothing_that_is_committed():
    """It comes when the file system has done its part, and Python has not heard of it."""
    disk = start(content(0, "shard=0-x"))
    files = at_once(disk)
    write = files.write_text

    def interrupted(*what, **how):
        write(*what, **how)
        raise KeyboardInterrupt

    files.write_text = interrupted
    with pytest.raises(KeyboardInterrupt):
        night(RUNS[0])(files)
    assert seen(disk).manifest.last_update == 1


def test_names_of_runs_sort_by_time_and_are_their_own():
    now = datetime(2026, 11, 27, 23, 59, 58, tzinfo=UTC)
    assert run_id(now).startswith("20261127T235958-")
    assert run_id(now) != run_id(now)
    assert run_id(now) < run_id(now + timedelta(seconds=2))


class Aged:
    """Files with times: those named are old, all others are of today."""

    def __init__(self, disk, *old):
        self.disk, self._files, self._old = disk, at_once(disk), old

    def __getattr__(self, name):
        return getattr(self._files, name)

    def modified(self, uri):
        if uri not in self.disk:
            raise PathNotFoundError(uri)
        return 0.0 if uri.removeprefix(f"{ROOT}/") in self._old else datetime.now(UTC).timestamp()


def test_a_vacuum_deletes_what_is_old_and_in_no_kept_version():
    young = run_id(datetime.now(UTC))
    week = run_id(datetime.now(UTC) - timedelta(days=6, hours=23))
    older = run_id(datetime.now(UTC) - timedelta(days=7, hours=1))
    hexes = "0" * 32
    kept = content(7, f"shard=3-{older}", history=[version(5, f"shard=2-{older}")])
    stays = {
        *("_versions/7.json", "_versions/5.json", "_versions/4.json"),
        *(f"shard=3-{older}/part", f"shard=2-{older}/part"),
        # A run that began meanwhile, and one that may still work.
        *(f"shard=4-{young}/part", f"shard=4-{week}/part"),
        *("mine.txt", "shard=x/part", f"_README.md.{'1' * 32}.tmp", f"_likeness/{hexes}.msgpack"),
    }
    goes = {
        *("_versions/3.json", f"shard=1-{older}/part", f"shard=4-{older}/part"),
        # Of the layout before, in which names had no time.
        "shard=0/part",
        *(f"_README.md.{hexes}.tmp", f"_versions/_6.json.{hexes}.tmp"),
        f"_likeness/_{hexes}.msgpack.{hexes}.tmp",
    }
    disk = {f"{ROOT}/{name}": b"" for name in stays | goes}
    disk[f"{ROOT}/_versions/7.json"] = encoded(kept)
    old = (stays | goes) - {"_versions/4.json", f"_README.md.{'1' * 32}.tmp"}
    vacuum(Aged(disk, *old), ROOT, print)
    assert set(disk) == {f"{ROOT}/{name}" for name in stays}


def test_a_vacuum_after_a_long_sleep_leaves_what_another_run_has_committed_meanwhile():
    """The run that slept judged by its own version, and deleted the shards of the next one."""
    disk = start(content(0, f"shard=0-{OLD}"))
    files = at_once(disk)
    head = read_head(files, ROOT)
    night(f"{OLD[:-1]}e")(files)
    assert seen(disk).manifest.last_update == head.manifest.last_update + 1
    vacuum(Aged(disk), ROOT, print)
    assert len(seen(disk).content["shards"]) == 2


def test_a_manifest_that_could_not_be_read_is_not_committed():
    disk = start(content(0))
    files = at_once(disk)
    with Transaction(files, ROOT, read_head(files, ROOT)) as transaction:
        with pytest.raises(GridError):
            transaction.commit(content(1, last_shard="x"))
        assert read_head(files, ROOT).manifest.last_update == 0


def test_a_vacuum_that_is_refused_is_told_and_harms_nothing():
    files = at_once(start())
    said = []
    files.list_names = refuse
    vacuum(files, ROOT, said.append)
    assert len(said) == 1
    assert "quota" in said[0]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", '{"last_shard": 1e999}', '{"last_shard": "../home"}', '{"shards": ["x"]}'],
)
def test_a_damaged_manifest_is_refused_by_name(text):
    """What is no JSON was an error of the program itself."""
    files = at_once({f"{ROOT}/_versions/3.json": text.encode()})
    with pytest.raises(GridError, match=r"_versions/3\.json"):
        read_head(files, ROOT)
