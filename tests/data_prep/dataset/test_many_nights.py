"""Any sequence of updates over files that come, go, break, move, change places and get lost."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from distkeras_grid.dataset.manifest import LEFT_OUT, TILED
from tests.data_prep.dataset.test_diff import FolderUpdate, scan

PATHS = ["a/0", "a/1", "a/2", "b/0"]
#: A file has one of three pictures, two of them in two formats, no label, is broken, or not there.
CONTENTS = st.sampled_from(["P", "P.tif", "Q", "Q.tif", "R", "unlabelled", "broken", None])
NIGHTS = st.fixed_dictionaries(
    {
        "contents": st.fixed_dictionaries(dict.fromkeys(PATHS, CONTENTS)),
        "prune": st.booleans(),
        # Images that are lost while they are cut.
        "lost": st.sets(st.sampled_from(PATHS), max_size=3),
    }
)
SHARES = {"train": 0.5, "test": 0.5}


def picture(content):
    return f"pixels of {content[0]}"


def night(*contents, **more):
    files = dict(zip(PATHS, [*contents, None, None, None], strict=False))
    values = {"prune": False, "lost": set()}
    return {"contents": files, **values, **more}


class Archive:
    """A data set over updates, and the split that each picture had first."""

    def __init__(self):
        self.records, self.contents, self.stamps, self.splits = {}, {}, {}, {}

    def update(self, contents, prune, lost):
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
        update.splits(SHARES)
        actions.fail(dict.fromkeys(lost & actions.to_tile.keys(), "gone"))
        self.records = actions.records | actions.to_tile
        self.check(there, actions, {picture(there[path]) for path in lost & there.keys()})
        return actions

    def check(self, there, actions, lost):
        tiled = [each for each in self.records.values() if each.status == TILED]
        pictures = [each.content for each in tiled]
        assert len(pictures) == len(set(pictures))
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
def test_a_picture_is_tiled_once_and_never_changes_its_split(nights):
    """Whatever was pruned, broken, copied, renamed, exchanged or lost in between."""
    archive = Archive()
    for each in nights:
        archive.update(**each)
    for _ in range(2):
        again = archive.update(**{**nights[-1], "lost": set()})
    changes = again.to_tile, again.dropped, again.moved, again.relabelled
    assert not any(changes)
