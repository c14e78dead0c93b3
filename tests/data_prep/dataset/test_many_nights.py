"""Any sequence of nights over files that come, go, break, move and change places."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.dataset.diff import decoded_images, quarantine
from data_prep.dataset.manifest import LEFT_OUT, TILED
from tests.data_prep.dataset.test_diff import Night, seen, tiled

PATHS = ["a/0", "a/1", "a/2", "b/0"]
#: A file has one of three pictures, two of them in two formats, no label, is broken, or not there.
CONTENTS = st.sampled_from(["P", "P.tif", "Q", "Q.tif", "R", "unlabelled", "broken", None])
NIGHTS = st.tuples(
    st.fixed_dictionaries(dict.fromkeys(PATHS, CONTENTS)), st.booleans(), st.booleans()
)
SHARES = {"train": 0.5, "test": 0.5}


def picture(content):
    return f"pixels of {content[0]}"


class Archive:
    """A data set over nights, and the split that each picture had first."""

    def __init__(self):
        self.entries, self.contents, self.stamps, self.splits = {}, {}, {}, {}

    def night(self, contents, prune, quarantines):
        there = {path: each for path, each in contents.items() if each}
        for path, each in there.items():
            self.stamps[path] = self.stamps.get(path, 0) + (self.contents.get(path) != each)
        self.contents |= there
        unlabelled = {path: "no label" for path, each in there.items() if each == "unlabelled"}
        night = Night(
            self.entries.values(), there, prune=prune, stamps=self.stamps, problems=unlabelled
        )
        looks = {path: there[path] for path in night.comparison.candidates}
        changes = night.decide(
            *(
                seen(path, each, "broken" if each == "broken" else None, pixels=picture(each))
                for path, each in looks.items()
            )
        )
        if quarantines:
            quarantine(changes, night.listed, decoded_images(night.found))
        splits = night.splits(SHARES)
        self.entries = changes.entries | {
            path: tiled(
                *(path, there[path], splits[path]),
                **{"modified": self.stamps[path], "pixel_sha256": picture(there[path])},
            )
            for path in changes.work
        }
        self.check(there, changes.problems)
        return changes

    def check(self, there, problems):
        standing = [each for each in self.entries.values() if each.status == TILED]
        pictures = [each.pixel_sha256 for each in standing]
        assert len(pictures) == len(set(pictures))
        for each in standing:
            assert self.splits.setdefault(each.pixel_sha256, each.split) == each.split
        for path, content in there.items():
            entry = self.entries.get(path)
            if path not in problems and content not in ("broken", "unlabelled"):
                assert picture(content) in pictures
                assert entry.status == LEFT_OUT or entry.sha256 == content


@settings(max_examples=300, deadline=None)
@given(st.lists(NIGHTS, min_size=1, max_size=6))
def test_a_picture_is_tiled_once_and_never_changes_its_split(nights):
    """Whatever was pruned, broken, copied, renamed or exchanged in between."""
    archive = Archive()
    for night in nights:
        archive.night(*night)
    contents, prune, _ = nights[-1]
    for _ in range(2):
        again = archive.night(contents, prune, False)
    assert (again.work, again.dropped, again.moved, again.relabelled) == ([], [], {}, set())
