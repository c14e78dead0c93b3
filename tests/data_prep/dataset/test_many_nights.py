"""Any sequence of updates over files that come, go, break, move, change places and get lost."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from distkeras_grid.dataset.manifest import LEFT_OUT, REMOVED, TILED, UnassignedImage
from tests.data_prep.dataset.test_diff import FolderUpdate, scan

PATHS = ["a/0", "a/1", "a/2", "b/0"]
#: A file has one of three pictures, two of them in two formats, no label, is broken, or not there.
CONTENTS = st.sampled_from(["P", "P.tif", "Q", "Q.tif", "R", "unlabelled", "broken", None])
NIGHTS = st.fixed_dictionaries(
    {
        "contents": st.fixed_dictionaries(dict.fromkeys(PATHS, CONTENTS)),
        "prune": st.booleans(),
        # Images that are lost while they are cut, and the number of shards before a kill.
        "lost": st.sets(st.sampled_from(PATHS), max_size=3),
        "killed": st.sampled_from([None, None, 0, 1, 2]),
    }
)
SHARES = {"train": 0.5, "test": 0.5}


def picture(content):
    return f"pixels of {content[0]}"


def night(*contents, **more):
    files = dict(zip(PATHS, [*contents, None, None, None], strict=False))
    values = {"prune": False, "lost": set(), "killed": None}
    return {"contents": files, **values, **more}


class Archive:
    """A data set over updates, and the split that each picture had first."""

    def __init__(self):
        self.records, self.contents, self.stamps, self.splits = {}, {}, {}, {}
        self.unassigned = []

    def update(self, contents, prune, lost, killed):
        there = {path: each for path, each in contents.items() if each}
        for path, each in there.items():
            self.stamps[path] = self.stamps.get(path, 0) + (self.contents.get(path) != each)
        self.contents |= there
        update = FolderUpdate(
            *(self.records.values(), there),
            prune=prune,
            stamps=self.stamps,
            problems={path: "no label" for path, each in there.items() if each == "unlabelled"},
        )
        actions = update.decide(
            *(
                scan(
                    path, there[path], there[path] == "broken" or None, pixels=picture(there[path])
                )
                for path in update.diff.to_scan
            )
        )
        update.splits(SHARES, unassigned=self.unassigned)
        self.cut(actions, lost, killed)
        if killed is None:
            self.check(there, actions, {picture(there[path]) for path in lost & there.keys()})
        return actions

    def cut(self, actions, lost, killed):
        """Cut one image after another as `Shards` does; each time, a version is published."""
        base, waiting = actions.base_records, dict(actions.to_tile)
        removed = {p: base[p] for p in waiting if p in base and base[p].status == REMOVED}
        self.records = removed | actions.dropped | actions.records
        for number, path in enumerate([*waiting, None]):
            self.unassigned = [
                UnassignedImage(each.content, each.label, each.split, each.group)
                for each in waiting.values()
            ]
            if number == killed:
                return
            record = waiting.pop(path, None)
            tiled = {path: record} if record and path not in lost else {}
            if record and not tiled:
                for name in actions.fail({path: "gone"}):
                    self.records.pop(name, None)
                    self.records |= {
                        each: actions.records[each] for each in {name} & actions.records.keys()
                    }
            for name in actions.outdated(tiled.values(), waiting):
                former = actions.dropped.pop(name)
                if self.records.get(name) == former:
                    del self.records[name]
            self.records |= tiled
            pictures = [each.content for each in self.records.values() if each.status == TILED]
            assert len(pictures) == len(set(pictures))

    def check(self, there, actions, lost):
        tiled = [each for each in self.records.values() if each.status == TILED]
        pictures = [each.content for each in tiled]
        for each in tiled:
            assert self.splits.setdefault(each.content, each.split) == each.split
        for path, content in there.items():
            is_good = content not in ("broken", "unlabelled") and path not in actions.problems
            if is_good and picture(content) not in lost:
                assert picture(content) in pictures
                record = self.records[path]
                assert record.status == LEFT_OUT or record.sha256 == content


@settings(max_examples=300, deadline=None)
@given(st.lists(NIGHTS, min_size=1, max_size=6))
# A picture that lies elsewhere too was tiled twice if its former file was lost while it was cut.
@example([night("P"), night("Q", "P", lost={"a/0"})])
@example([night("P"), night("Q", "P.tif", lost={"a/0"})])
@example([night("P", "Q"), night("R", "P.tif", lost={"a/0", "a/1"})])
@example([night("P", "Q"), night("Q", "P", lost={"a/0"})])
@example([night("P", "Q"), night("Q.tif", "P.tif", lost={"a/1"})])
@example([night("P", "Q"), night("Q.tif", "R", "P.tif", killed=1), night("broken", "R", "P.tif")])
def test_a_picture_is_tiled_once_and_never_changes_its_split(nights):
    """Whatever was pruned, broken, copied, renamed, exchanged, lost or killed in between."""
    archive = Archive()
    for each in nights:
        archive.update(**each)
    for _ in range(2):
        again = archive.update(**{**nights[-1], "lost": set(), "killed": None})
    changes = again.to_tile, again.dropped, again.moved, again.relabelled
    assert not any(changes)
