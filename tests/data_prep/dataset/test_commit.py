"""A change of a data set, stopped after each step, and two runs that meet in the middle of theirs.

The plans run on a model of a file system that does each operation as HDFS does: whole or not at
all. `test_update.py` kills real nights on real files.
"""

from __future__ import annotations

import functools
import itertools
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from data_prep.dataset import commit
from data_prep.dataset.commit import (
    Delete,
    Move,
    Names,
    Read,
    ShardDelta,
    Write,
    execute,
    new_name,
    owner_of,
    owners,
    publish,
    read_decision,
    recover,
    recover_commit,
    shard_name,
)
from distkeras_grid.errors import (
    BusyError,
    DataError,
    GridError,
    OutputExistsError,
    PathNotFoundError,
    SchemaError,
    StorageError,
)
from distkeras_grid.spark.dataframes import read_shards
from tests.interleaving import Exploration

A, B, C = ("a" * 32, "b" * 32, "c" * 32)
ROOT = "/tiles"


@dataclass
class Disk:
    """Names in one folder and what they hold."""

    held: dict[str, str] = field(default_factory=dict)

    def exists(self, uri):
        name = uri.removeprefix(f"{ROOT}/")
        return uri == ROOT or any(each == name or each.startswith(f"{name}/") for each in self.held)

    def list_names(self, uri):
        if not self.exists(uri):
            raise PathNotFoundError(uri)
        below = f"{uri}/".removeprefix(f"{ROOT}/")
        inside = (each.removeprefix(below) for each in self.held if each.startswith(below))
        return sorted({each.split("/")[0] for each in inside})

    def make_dirs(self, uri):
        assert uri == f"{ROOT}/_versions"

    def read_text(self, uri):
        if not self.exists(uri):
            raise PathNotFoundError(uri)
        return self.held[uri.removeprefix(f"{ROOT}/")]

    def write_in_place(self, uri, text):
        self.held[uri.removeprefix(f"{ROOT}/")] = text

    def rename(self, source, target, *, overwrite=False):
        source, target = (uri.removeprefix(f"{ROOT}/") for uri in (source, target))
        if target in self.held and not overwrite:
            raise OutputExistsError(target)
        self.held[target] = self.held.pop(source)

    def delete(self, uri):
        return self.held.pop(uri.removeprefix(f"{ROOT}/"), None) is not None


def manifest(*shards, note=""):
    shards = {"shards": [shard_name(number) for number in shards], "last_shard": max(shards)}
    return json.dumps({**shards, "note": note})


class Actor:
    """A run that does one operation at a time, and gives up what it has begun when it fails."""

    def __init__(self, disk, plan, name):
        self.disk, self.name = disk, name
        self.plan = self._whole(plan)
        self.pending = next(self.plan)
        self.error: GridError | None = None
        self.ended = False
        self.steps = 0

    def _whole(self, plan):
        try:
            yield from plan
        except GridError as error:
            self.error = error
            yield from recover({self.name}, finish=False)
        else:
            yield Delete(commit.owner_name(self.name))

    def step(self):
        """Do one operation and check that a reader sees a whole data set."""
        if self.ended:
            return
        self.steps += 1
        try:
            result: Any = commit._do(self.disk, ROOT, self.pending)
        except GridError as error:
            self._advance(self.plan.throw, error)
        else:
            self._advance(self.plan.send, result)
        seen(self.disk)

    def _advance(self, how, value):
        try:
            self.pending = how(value)
        except StopIteration:
            self.ended = True

    def run(self, steps=10**6):
        for _ in range(steps):
            if self.ended:
                return self
            self.step()
        return self


def seen(disk):
    """What a reader of the manifest sees."""
    return {name: disk.held[name] for name in read_shards(disk.held["_dataset.json"], "")}


def start():
    """Shards 0 and 1 are there; run A has written 2 and 3, which replace 0."""
    disk = Disk({"shard=0": "a b", "shard=1": "c", "_dataset.json": manifest(0, 1)})
    disk.held |= {f"_owner.{A}": "", new_name(2, A): "a", new_name(3, A): "b2 d"}
    return disk


def plan_of_a(come=(2, 3)):
    return publish(A, ShardDelta(list(come), go=[0]), manifest(1, *come), manifest(0, 1))


def night_of_a(disk):
    return Actor(disk, plan_of_a(), A)


def plan_of_b():
    """B takes A for dead, ends what A began, and publishes one more shard that replaces 1."""
    yield Write(f"_owner.{B}", "")
    taken = yield from recover_commit({A})
    basis = yield Read("_dataset.json")
    stand = [int(name[6:]) for name in read_shards(basis, "")]
    number = max(*stand, taken.last) + 1
    yield Write(new_name(number, B), "new of B")
    after = manifest(*[n for n in stand if n != 1], number, note="B")
    yield from publish(B, ShardDelta([number], [1]), after, basis)


BEFORE = {"shard=0": "a b", "shard=1": "c"}
AFTER = {"shard=1": "c", "shard=2": "a", "shard=3": "b2 d"}


def clean(disk):
    """No name but those of the data set."""
    return set(disk.held) == {*seen(disk), "_dataset.json"}


def count_steps(night):
    return night(start()).run().steps


def test_a_whole_night():
    disk = start()
    night = night_of_a(disk).run()
    assert (night.error, seen(disk)) == (None, AFTER)
    assert clean(disk)


@pytest.mark.parametrize("steps", range(count_steps(night_of_a) + 1))
def test_killed_after_any_step_it_is_all_or_nothing_after_the_next(steps):
    disk = start()
    night_of_a(disk).run(steps)
    journal = disk.held.get("_update.json")
    outcome = execute(disk, ROOT, recover({A}))
    assert (outcome is None) == (journal is None)
    assert seen(disk) in (BEFORE, AFTER)
    if journal is not None:
        assert (outcome, seen(disk)) == ("finished", AFTER)
    assert clean(disk)


@pytest.mark.parametrize("steps", range(count_steps(night_of_a) + 1))
def test_the_one_that_recovers_can_be_killed_too(steps):
    disk = start()
    night_of_a(disk).run(steps)
    for killed in range(30):
        again = Disk(dict(disk.held))
        Actor(again, recover({A}), C).run(killed)
        execute(again, ROOT, recover({A}))
        assert seen(again) in (BEFORE, AFTER)
        assert clean(again)


@pytest.mark.parametrize("lost", [new_name(2, A), new_name(3, A), f"_dataset.{A}"])
def test_a_change_that_cannot_be_finished_is_undone_once_and_for_all(lost):
    """Today's defect: a journal without its source failed every night until somebody deleted it."""
    for steps in range(count_steps(night_of_a) + 1):
        disk = start()
        night = night_of_a(disk).run(steps)
        was_there = disk.held.pop(lost, None) is not None
        outcome = execute(disk, ROOT, recover({A}))
        if was_there and "_update.json" in disk.held:
            raise AssertionError("the journal stays")
        assert seen(disk) == (BEFORE if was_there else seen(disk))
        assert seen(disk) in (BEFORE, AFTER)
        assert outcome in (None, "undone", "finished")
        assert clean(disk), (steps, night.pending)


def test_a_night_whose_shard_was_swept_decides_nothing():
    disk = start()
    del disk.held[new_name(3, A)]
    night = night_of_a(disk).run()
    assert isinstance(night.error, OutputExistsError)
    assert seen(disk) == BEFORE
    assert clean(disk)


def test_a_night_planned_for_another_data_set_decides_nothing():
    disk = start()
    night = night_of_a(disk)
    disk.held["_dataset.json"] = manifest(0, 1, note="another")
    night.run()
    assert isinstance(night.error, OutputExistsError)
    assert seen(disk) == BEFORE
    assert clean(disk)


def acting(name, plan):
    """A run that gives up what it has begun when it fails, as an actor of an `Exploration`."""

    def act(files):
        try:
            execute(files, ROOT, plan())
        except GridError:
            execute(files, ROOT, recover({name}, finish=False))
            raise
        execute(files, ROOT, (x for x in [Delete(commit.owner_name(name))]))

    return act


def held_in(state):
    """The data set of a state of an `Exploration`."""
    return Disk({name.removeprefix(f"{ROOT}/"): text.decode() for name, text in state.disk.items()})


@functools.cache
def left_by_the_third(held):
    """What lies beside the data set when somebody has taken it over from A and B, both killed."""
    disk = Disk(dict(held))
    execute(disk, ROOT, recover_commit({A, B}))
    return set(disk.held) - {*seen(disk), "_dataset.json"}


@pytest.mark.full
@pytest.mark.parametrize(
    ("come", "switches"),
    [
        ([2], 3),
        pytest.param([2, 3], 3, marks=pytest.mark.full),
        pytest.param([2], 4, marks=pytest.mark.full),
    ],
)
def test_a_sleeper_that_was_taken_for_dead_spoils_nothing_when_it_wakes(come, switches):
    """Both can be killed between any two operations, and the third cleans up."""
    rows = {2: "a", 3: "b2 d"}
    disk = {f"{ROOT}/{name}": text.encode() for name, text in start().held.items()}
    for number in rows.keys() - set(come):
        del disk[f"{ROOT}/{new_name(number, A)}"]
    actors = {"A": acting(A, lambda: plan_of_a(come)), "B": acting(B, plan_of_b)}
    ends = set()
    for state in Exploration(actors).states(disk, switches):
        held = held_in(state)
        found = set(seen(held).values())
        # A that sleeps between its look at _update.json and the deletion of it deletes B's. If B
        # is killed then, a former shard stays, which no reader of the manifest sees.
        assert left_by_the_third(frozenset(held.held.items())) <= {"shard=1"}
        if len(state.ended) == 2:
            assert all(isinstance(each.error, StorageError | None) for each in state.ended.values())
            ended = tuple(name for name, each in state.ended.items() if each.error is None)
            ends.add((ended, frozenset(found)))
    of_a = {rows[number] for number in come}
    both, only_b = frozenset({*of_a, "new of B"}), frozenset({"a b", "new of B"})
    # What one of them was told to be published is there.
    expected = {(("A", "B"), both), (("B",), both), (("B",), only_b)}
    assert ends - {(("A",), frozenset({*of_a, "c"})), ((), frozenset({"a b", "c"}))} == expected


@pytest.mark.full
def test_a_sleeper_publishes_no_shard_that_was_deleted_in_part():
    """A local disk deletes a folder file by file."""
    disk = {f"{ROOT}/_dataset.json": manifest(0, 1).encode(), f"{ROOT}/_owner.{A}": b""}
    for folder, part in itertools.product(["shard=0", "shard=1", new_name(2, A)], "12"):
        disk[f"{ROOT}/{folder}/{part}"] = b"rows"
    actors = {
        "A": acting(A, lambda: plan_of_a([2])),
        "B": acting(B, lambda: recover_commit({A})),
    }
    ends = set()
    for state in Exploration(actors, piecewise=True).states(disk, switches=2):
        named = read_shards(state.disk[f"{ROOT}/_dataset.json"].decode(), "")
        assert {f"{ROOT}/{name}/{part}" for name in named for part in "12"} <= state.disk.keys()
        if len(state.ended) == 2:
            ends.add(("shard=2" in named, state.ended["A"].error is None))
    assert ends == {(True, True), (True, False), (False, False)}


@pytest.mark.parametrize("refused", ["shard=3", "_dataset.json"])
def test_a_change_whose_rename_is_refused_is_undone(refused):
    disk = start()
    rename = disk.rename

    def refuse(source, target, **how):
        if target.endswith(f"/{refused}"):
            raise StorageError("refused")
        rename(source, target, **how)

    disk.rename = refuse
    night = night_of_a(disk).run()
    assert isinstance(night.error, StorageError)
    assert seen(disk) == BEFORE
    assert clean(disk)
    # So it is by the next one, where the run was killed.
    disk = start()
    night_of_a(disk).run(8)
    assert "_update.json" in disk.held
    rename, disk.rename = disk.rename, refuse
    assert execute(disk, ROOT, recover({A})) == "undone"
    assert seen(disk) == BEFORE
    assert clean(disk)


def test_only_what_is_proven_dead_is_swept():
    """Today's defect: a second night deleted the first one's finished shard."""
    disk = start()
    disk.held |= {"_mine": "x", "_new-1.not": "x", new_name(4, C): "x", f"_owner.{C}": ""}
    before = dict(disk.held)
    assert execute(disk, ROOT, recover(set())) is None
    assert disk.held == before
    assert execute(disk, ROOT, recover({C})) is None
    assert before.items() - disk.held.items() == {(new_name(4, C), "x"), (f"_owner.{C}", "")}
    assert not execute(Disk(), ROOT, recover({A}))


def test_files_that_a_dead_run_was_writing_are_swept():
    """They stayed for ever: a description, and fingerprints."""
    disk = start()
    left = [
        f"__croissant.json.{C}.tmp",
        f"__README.md.{C}.tmp",
        f"_likeness/_{A}.msgpack.{C}.tmp",
    ]
    others = ["_README.md", f"_likeness/{A}.msgpack", f"_mine.{C}.tmp", f"_likeness/mine.{C}.tmp"]
    disk.held |= dict.fromkeys([*left, *others], "x")
    execute(disk, ROOT, recover_commit({A}))
    assert set(others) < set(disk.held)
    assert not set(left) & set(disk.held)


def test_a_run_that_was_taken_for_dead_and_never_stops_writing_is_told_of():
    """Deleting its files again and again had no end."""
    disk, deleted = start(), []
    delete = disk.delete

    def delete_in_vain(uri):
        deleted.append(uri)
        there = delete(uri)
        disk.held[f"_owner.{A}"] = ""
        return there

    disk.delete = delete_in_vain
    with pytest.raises(BusyError):
        execute(disk, ROOT, recover_commit({A}))
    assert seen(disk) == BEFORE
    assert len(deleted) < 100


def test_numbers_of_shards_that_come_while_a_run_is_swept_are_not_used_again():
    disk = start()
    delete = disk.delete

    def delete_and_see(uri):
        there = delete(uri)
        if uri.endswith(f"_old-3.{A}"):
            disk.held[new_name(7, A)] = "late"
        return there

    disk.delete = delete_and_see
    assert execute(disk, ROOT, recover_commit({A})).last == 7
    assert clean(disk)


def test_the_highest_number_of_a_shard_is_known_also_if_only_the_journal_has_it():
    disk = start()
    decision = {**HOSTILE, "owner": C, "come": [2, 8]}
    disk.held["_update.json"] = json.dumps(decision)
    assert execute(disk, ROOT, recover_commit({A})).last == 8
    assert execute(Disk(), ROOT, recover_commit(set())).last == -1


@pytest.mark.parametrize("operation", [Read("_dataset.json"), Names(), Move("shard=0", "shard=9")])
def test_what_another_run_deletes_at_this_moment_counts_as_missing(operation):
    """It was an error of a run that had nothing to do with it."""

    def gone(uri, *_, **__):
        raise PathNotFoundError(uri)

    disk = start()
    disk.read_text = disk.list_names = disk.rename = gone
    assert commit._do(disk, ROOT, operation) in (None, [], False)


def test_the_change_of_a_living_run_is_left_alone():
    disk = start()
    night_of_a(disk).run(8)
    assert "_update.json" in disk.held
    before = dict(disk.held)
    assert execute(disk, ROOT, recover({B, C})) is None
    assert disk.held == before
    assert owners(disk.held, disk.held["_update.json"]) == {A}


HOSTILE = {
    "owner": A,
    "come": [2],
    "go": [0],
    "basis": None,
    "manifest": "0" * 64,
}


@pytest.mark.parametrize(
    "change",
    [
        {"go": ["../home"]},
        {"go": [[".", "../home"]]},
        {"come": [["_new-1", "../../etc"]]},
        {"come": [-1]},
        {"come": "all"},
        {"owner": "../" + "a" * 29},
        {"owner": "a" * 31 + "/"},
        {"owner": A + "\n"},
        {"manifest": "' or 1=1 --"},
        {"command": "rm"},
    ],
)
def test_a_hostile_journal_is_refused_and_nothing_is_touched(change):
    disk = start()
    disk.held["_update.json"] = json.dumps({**HOSTILE, **change})
    before = dict(disk.held)
    with pytest.raises(DataError):
        execute(disk, ROOT, recover({A}))
    assert disk.held == before


def test_a_hostile_journal_cannot_delete_what_the_manifest_names():
    disk = start()
    known = commit.digest(disk.held["_dataset.json"])
    told = {**HOSTILE, "come": [0], "go": [0, 1], "manifest": known}
    disk.held["_update.json"] = json.dumps(told)
    assert execute(disk, ROOT, recover({A})) == "finished"
    assert seen(disk) == BEFORE


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"owner": 1}', "\x00"])
def test_a_damaged_journal_is_refused(text):
    with pytest.raises(DataError):
        read_decision(text)


@pytest.mark.parametrize("name", ["..", "../home", "shard=0/../..", "/etc", "thesis", "shard=x"])
def test_no_plan_can_touch_another_name(name):
    disk = Disk({name: "x"})

    def plan(operation):
        yield operation

    for operation in (Read(name), Write(name, ""), Move(name, "shard=0"), Delete(name)):
        with pytest.raises(DataError):
            execute(disk, ROOT, plan(operation))
    with pytest.raises(DataError):
        execute(Disk({"shard=0": "x"}), ROOT, plan(Move("shard=0", name)))
    assert execute(disk, ROOT, (x for x in [Names()])) is None
    assert disk.held == {name: "x"}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"last_shard": "../home"}', '{"last_shard": 1e30}']
)
def test_a_damaged_manifest_is_refused_before_anything_is_touched(text):
    """It was an error of the program itself."""
    disk = start()
    disk.held["_dataset.json"] = text
    before = dict(disk.held)
    with pytest.raises(SchemaError):
        execute(disk, ROOT, recover_commit(set()))
    assert disk.held == before


def test_hidden_names_carry_their_owner():
    assert owner_of(new_name(3, A)) == A
    for name in ("_new-3.mine", "_mine", "shard=3", f"_new-3.{A}.tmp", "_dataset.json"):
        assert owner_of(name) is None


def versioned(number, *shards, former=()):
    """A manifest with a history: (number, shards) of each former version."""
    history = [
        {
            "number": each,
            "hash": "0" * 64,
            "created": "2026-11-23T00:00:00+00:00",
            "replaced": "2026-11-23T00:00:00+00:00",
            "manifest": "0" * 64,
            "shards": [shard_name(shard) for shard in held],
            "tiles": 1,
        }
        for each, held in former
    ]
    told = json.loads(manifest(*shards))
    return json.dumps({**told, "last_update": number, "history": history})


KEPT = versioned(7, 0, 1, former=[(6, [0])])


def versioned_start():
    """The present version is 7; 6 can be read, and 5 was left by a killed run."""
    disk = start()
    disk.held |= {"_dataset.json": KEPT, "_versions/6.json": "six", "_versions/5.json": "five"}
    return disk


def versioned_night(disk, former):
    after = versioned(8, 1, 2, 3, former=former)
    go = sorted({0} - commit.shards_of(after))
    return Actor(disk, publish(A, ShardDelta([2, 3], go), after, disk.held["_dataset.json"]), A)


VERSIONED_STEPS = versioned_night(versioned_start(), [(7, [0, 1])]).run().steps


@pytest.mark.parametrize(
    ("former", "kept"),
    [
        ([(7, [0, 1])], {"_versions/7.json": KEPT, "shard=0": "a b"}),
        ([(6, [0])], {"_versions/6.json": "six", "shard=0": "a b"}),
        ([], {}),
    ],
)
@pytest.mark.parametrize("steps", range(VERSIONED_STEPS + 1))
def test_killed_after_any_step_each_listed_version_is_there_and_no_other(former, kept, steps):
    disk = versioned_start()
    versioned_night(disk, former).run(steps)
    held = disk.held
    # Whoever reads meanwhile finds what the manifest lists.
    for each in commit.read_history(held["_dataset.json"], "").history:
        assert f"_versions/{each.number}.json" in held
        assert held.keys() >= set(each.shards)
    taken = execute(disk, ROOT, recover_commit({A}))
    if seen(disk) == AFTER:
        now = {name for name in held if name not in {*AFTER, "_dataset.json"}}
        assert {name: held[name] for name in now} == kept
    else:
        assert taken.outcome is None
        assert (seen(disk), held["_versions/6.json"]) == (BEFORE, "six")


@pytest.mark.full
def test_a_sleeper_spoils_no_version_when_it_wakes():
    for first, second in itertools.product(range(VERSIONED_STEPS + 1), repeat=2):
        disk = versioned_start()
        sleeper = versioned_night(disk, [(7, [0, 1])]).run(first)

        def other():
            yield Write(f"_owner.{B}", "")
            yield from recover_commit({A})
            basis = yield Read("_dataset.json")
            number = commit.read_last(basis).last_update
            shards = {int(name[6:]) for name in read_shards(basis, "")}
            yield Write(new_name(9, B), "new of B")
            former = [(number, sorted(shards))]
            after = versioned(number + 1, *shards, 9, former=former)
            yield from publish(B, ShardDelta([9], []), after, basis)

        b = Actor(disk, other(), B).run(second)
        sleeper.run()
        b.run()
        history = commit.read_history(disk.held["_dataset.json"], "").history
        for each in history:
            assert disk.held.keys() >= {f"_versions/{each.number}.json", *each.shards}
            told = commit.read_last(disk.held[f"_versions/{each.number}.json"])
            assert told.last_update == each.number
