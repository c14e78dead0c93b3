"""What becomes of each image in a night, decided without Spark and without files."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from data_prep.dataset.diff import (
    FileInfo,
    compare,
    decide,
    decoded_images,
    mark_failed,
    names_of,
    new_pictures,
    splits_of,
    with_zones,
)
from data_prep.dataset.manifest import (
    LEFT_OUT,
    REMOVED,
    TILED,
    ImageRecord,
    UnassignedImage,
    revised,
)
from data_prep.dataset.overrides import annotated, apply_overrides, match_previous
from data_prep.geometry.regions import Zone, ZoneRules
from data_prep.spark.passes import ImageScan
from data_prep.splits.labels import Annotation
from data_prep.splits.near_duplicates import DuplicatePair
from distkeras_grid.errors import SplitLeakError
from distkeras_grid.feeding.schema import Field

IMAGE = Field("image", (32, 32, 1), classes=("a", "b"))


def tiled(path, sha=None, split="train", **more):
    label = path.split("/")[0]
    sha = sha or f"sha of {path}"
    values = {"tiles": 4, "shard": 0, "length": 10, "modified": 1, "label": label}
    values = {**values, "pixel_sha256": f"pixels of {sha}", **more}
    return ImageRecord(path, TILED, sha256=sha, split=split, **values)


def seen(path, sha=None, error=None, channels=1, pixels=None):
    sha = sha or f"sha of {path}"
    pixels = pixels or f"pixels of {sha}"
    return ImageScan(path, sha, 64, 64, channels, "uint8", 500.0, error, None, pixels, tiles=4)


class Night:
    """The images that are there, by what they are; then what the night makes of them."""

    def __init__(
        self,
        entries,
        there,
        *,
        problems=None,
        prune=False,
        stamps=None,
        groups=None,
        chosen=None,
        links=(),
    ):
        self.entries = {entry.source: entry for entry in entries}
        stamps = stamps or {}
        self.listed = {path: FileInfo(path, 10, stamps.get(path, 1)) for path in there}
        problems = problems or {}
        groups, chosen = groups or {}, chosen or {}
        self.plain = {
            p: Annotation(p.split("/")[0], groups.get(p), chosen.get(p))
            for p in there
            if p not in problems
        }
        self.said = {
            p: apply_overrides(self.entries.get(p), each) for p, each in self.plain.items()
        }
        self.comparison = compare(
            *(self.entries, self.listed, self.said, problems, ("a", "b")),
            prune=prune,
            hidden=links,
        )
        self.prune = prune

    def decide(self, *found):
        self.found = {each.uri: each for each in found}
        before = match_previous(self.entries, self.comparison.unread, self.found)
        self.said = annotated(self.plain, self.said, before, ("a", "b"))
        self.changes = decide(
            self.entries,
            self.listed,
            self.said,
            self.comparison,
            self.found,
            IMAGE,
            prune=self.prune,
        )
        return self.changes

    def splits(self, fractions=None, pairs=(), waiting=()):
        fractions = fractions or {"train": 1.0}
        pairs = [DuplicatePair(one, other, "w") for one, other in pairs]
        what = self.changes, self.entries, self.said, self.found
        return splits_of(*what, fractions, 0, pairs, waiting)


def test_only_new_and_touched_images_are_looked_at():
    entries = [tiled("a/0"), tiled("a/1"), tiled("a/gone")]
    night = Night(entries, ["a/0", "a/1", "b/new"], stamps={"a/1": 2})
    assert night.comparison.unchanged == ("a/0",)
    assert night.comparison.candidates == ("a/1", "b/new")
    assert night.comparison.removed == ("a/gone",)
    changes = night.decide(seen("a/1"), seen("b/new"))
    assert (changes.work, changes.dropped, changes.problems) == (["b/new"], [], {})
    # Touched, but the same: its new time is noted, so that it is not read again.
    assert changes.entries["a/1"] == replace(entries[1], modified=2)
    assert changes.entries["a/gone"] == entries[2]


def test_other_content_replaces_tiles():
    night = Night([tiled("a/0", split="test"), tiled("a/1")], ["a/0", "a/1"], stamps={"a/0": 2})
    assert night.comparison.candidates == ("a/0",)
    changes = night.decide(seen("a/0", "other"))
    assert changes.work == changes.replaced() == ["a/0"]
    assert {entry.source for entry in changes.dropped} == {"a/0"}
    assert night.splits() == {"a/0": "test"}


def test_a_changed_image_keeps_its_name_beside_a_copy_of_it():
    """The copy came first by its name: the old image was left out, and lost tiles and split."""
    there = ["a/9", "a/0", "b/0"]
    night = Night([tiled("a/9", split="test")], there, stamps={"a/9": 2})
    changes = night.decide(*(seen(path, "changed") for path in there))
    assert changes.work == changes.replaced() == ["a/9"]
    assert night.splits({"train": 1.0}) == {"a/9": "test"}
    assert changes.entries["a/0"].reason == "the same bytes as a/9"
    assert "keep the right one" in changes.problems["b/0"]


@pytest.mark.parametrize("touched", [False, True])
def test_another_label_is_written_into_the_table_and_no_tile_is_touched(touched):
    """It cut all tiles of the image again."""
    entry = tiled("a/1", label="b")
    night = Night([entry], ["a/1"], stamps={"a/1": 1 + touched})
    assert night.comparison.candidates == (("a/1",) if touched else ())
    changes = night.decide(*([seen("a/1")] * touched))
    assert (changes.work, changes.dropped, changes.relabelled) == ([], [], {"a/1"})
    now = changes.entries["a/1"]
    assert (now.label, now.stored_label, now.shard, now.split) == ("a", "b", 0, "train")
    # And back again.
    stored = revised(revised(entry, label="a"), label="b")
    assert (stored.label, stored.stored_label) == ("b", None)


def test_a_copy_whose_original_is_labelled_otherwise_now_is_told():
    copy = ImageRecord(
        "a/1", LEFT_OUT, sha256="S", pixel_sha256="pixels of S", length=10, modified=1
    )
    night = Night([tiled("b/0", "S", label="a"), copy], ["a/1", "b/0"])
    changes = night.decide(seen("a/1", "S"))
    assert (changes.relabelled, set(changes.problems)) == ({"b/0"}, {"a/1"})


def test_what_cannot_be_tiled_is_listed_and_tried_again():
    problems = {"x": "no label"}
    there = ["a/0", "b/cut", "a/red", "c/0", "x"]
    night = Night([tiled("a/0")], there, problems=problems, stamps={"a/0": 2})
    changes = night.decide(
        seen("a/0", error="cut"), seen("b/cut", error="cut"), seen("a/red", channels=3)
    )
    assert changes.work == changes.dropped == []
    assert set(changes.problems) == set(there)
    assert "its former tiles are kept" in changes.problems["a/0"]
    assert "3 channels" in changes.problems["a/red"]
    assert "class 'c'" in changes.problems["c/0"]
    kept = changes.entries["a/0"]
    assert (kept.status, kept.tiles, kept.shard) == (TILED, 4, 0)
    again = Night(list(changes.entries.values()), there, problems=problems, stamps={"a/0": 2})
    assert again.comparison.candidates == ("a/0", "a/red", "b/cut")


def test_a_tiled_image_that_had_lost_its_label_is_as_before_when_it_has_it_again():
    entry = tiled("a/0")
    lost = Night([entry], ["a/0"], problems={"a/0": "no label"}).decide()
    assert "its former tiles are kept" in lost.entries["a/0"].reason
    found = Night(lost.entries.values(), ["a/0"])
    assert found.decide(seen("a/0")).entries == {"a/0": entry}


def pruned_specimen():
    """Entries after an image of train, of the group g, was pruned."""
    gone = Night([tiled("a/0", "S", group="g"), tiled("a/1")], ["a/1"], prune=True)
    return gone.decide().entries


MOSTLY_TEST = {"train": 0.01, "test": 0.99}


def test_a_pruned_image_that_is_lost_while_it_is_cut_is_remembered():
    night = Night(pruned_specimen().values(), ["a/0", "a/1"])
    changes = night.decide(seen("a/0", "S"))
    assert night.splits(MOSTLY_TEST) == {"a/0": "train"}
    mark_failed(changes, "a/0", night.entries["a/0"], "gone")
    later = Night(changes.entries.values(), ["a/0", "a/1"])
    later.decide(seen("a/0", "S"))
    assert later.splits(MOSTLY_TEST) == {"a/0": "train"}


def test_a_copy_whose_file_broke_still_counts_for_its_group():
    copy = ImageRecord("a/copy", LEFT_OUT, sha256="S", pixel_sha256="pixels of S", group="h")
    night = Night([tiled("a/0", "S", group="g"), copy], ["a/0", "a/copy"], groups={"a/0": "g"})
    changes = night.decide(seen("a/copy", error="broken"))
    later = Night(
        changes.entries.values(),
        ["a/0", "a/copy", "a/2"],
        groups={"a/0": "g", "a/copy": "h", "a/2": "h"},
    )
    later.decide(seen("a/copy", error="broken"), seen("a/2"))
    assert later.splits(MOSTLY_TEST) == {"a/2": "train"}


AS_DECIDED = {"set_aside": "blurred", "by_hand": ("label", "group")}


def decided(path, sha=None, **more):
    return tiled(path, sha, label="b", group="G", **AS_DECIDED, **more)


@pytest.mark.parametrize("picture", ["S", "T"])
def test_what_was_set_by_hand_stands_if_the_file_is_saved_again(picture):
    """The image was trained on again, and the night after it had its former label."""
    night = Night([decided("a/0", "S"), tiled("a/1")], ["a/0", "a/1"], stamps={"a/0": 2})
    saved = replace(seen("a/0", "S2", pixels=f"pixels of {picture}"))
    changes = night.decide(saved)
    assert (changes.work, changes.decided) == (["a/0"], {"a/0": AS_DECIDED})
    assert changes.excluded("a/0") == "blurred"
    assert night.said["a/0"] == Annotation("b", "G")
    assert night.splits() == {"a/0": "train"}


@pytest.mark.parametrize("path", ["a/0", "a/9"])
def test_what_was_set_by_hand_stands_if_a_pruned_image_comes_back(path):
    gone = Night([decided("a/0", "S"), tiled("a/1")], ["a/1"], prune=True).decide()
    night = Night(gone.entries.values(), ["a/1", path])
    changes = night.decide(seen(path, "S"))
    assert (changes.work, changes.decided) == ([path], {path: AS_DECIDED})
    assert night.said[path] == Annotation("b", "G")


def test_what_was_set_by_hand_goes_with_the_picture_if_two_files_change_places():
    old = [decided("a/0", "S"), tiled("a/1", "T")]
    night = Night(old, ["a/0", "a/1"], stamps={"a/0": 2, "a/1": 2})
    changes = night.decide(seen("a/0", "T"), seen("a/1", "S"))
    assert changes.decided == {"a/0": {}, "a/1": AS_DECIDED}
    assert night.said == {"a/0": Annotation("a"), "a/1": Annotation("b", "G")}


def test_a_copy_takes_nothing_that_was_set_by_hand_for_its_original():
    night = Night([decided("b/0", "S")], ["b/0", "b/9"], groups={"b/9": "h"})
    changes = night.decide(seen("b/9", "S"))
    assert (changes.work, changes.entries["b/9"].group) == ([], "h")
    # And an image that is new has nobody before it.
    assert Night([], ["a/0"]).decide(seen("a/0")).decided == {"a/0": {}}


def test_a_class_that_the_data_set_lacks_is_not_taken_because_files_changed_places():
    old = [decided("c/0", "S"), tiled("a/1", "T")]
    night = Night(old, ["c/0", "a/1"], stamps={"c/0": 2, "a/1": 2})
    night.decide(seen("c/0", "T"), seen("a/1", "S"))
    assert night.said["c/0"].label == "b"


@pytest.mark.parametrize("link", ["a/0", "a"])
def test_images_behind_a_link_without_a_target_are_not_pruned(link):
    """A disk that was not mounted for a night took all their tiles."""
    old = [tiled("a/0", "S"), tiled("b/1")]
    night = Night(old, ["b/1", "b/2"], prune=True, links={link})
    changes = night.decide(seen("b/2", "S2", pixels="pixels of S"))
    assert (changes.dropped, changes.entries["a/0"]) == ([], old[0])
    # It is not removed, so that nothing has moved.
    assert (changes.work, changes.moved, set(changes.problems)) == ([], {}, {"b/2"})
    back = Night(changes.entries.values(), ["a/0", "b/1"])
    assert back.comparison.unchanged == ("a/0", "b/1")


@pytest.mark.parametrize("prune", [False, True])
def test_an_image_that_moved_to_another_class_keeps_its_tiles(prune):
    """It was left out until all removed images were pruned, and then cut again."""
    entries = [tiled("a/0", "S", "test"), tiled("a/1", "T")]
    moved = Night(entries, ["b/0"], prune=prune)
    changes = moved.decide(seen("b/0", "S"))
    assert (changes.work, changes.problems, changes.moved) == ([], {}, {"a/0": "b/0"})
    assert [entry.source for entry in changes.dropped] == ["a/1"] * prune
    now = changes.entries["b/0"]
    assert (now.label, now.split, now.stored_label, now.stored_source) == ("b", "test", "a", "a/0")
    assert "a/0" not in changes.entries
    # Once more, and home again.
    back = Night(changes.entries.values(), ["a/0"]).decide(seen("a/0", "S"))
    stored = back.entries["a/0"]
    assert (stored.label, stored.stored_label, stored.stored_source) == ("a", None, None)


def test_what_only_looks_like_a_move_is_none():
    old = tiled("a/0", "S", zones="z" * 64)
    # Other zones, the same pixels in another file, and a picture that has tiles of its own.
    other = Night([old], ["b/0"]).decide(seen("b/0", "S"))
    assert (other.moved, set(other.problems)) == ({}, {"b/0"})
    again = Night([tiled("a/0", "S")], ["a/9"]).decide(seen("a/9", "S2", pixels="pixels of S"))
    assert (again.moved, again.entries["a/9"].reason) == ({}, "the same pixels as a/0")
    both = Night([tiled("a/0", "S"), tiled("a/1", "T")], ["a/1"], stamps={"a/1": 2})
    changed = both.decide(seen("a/1", "S"))
    assert changed.moved == {}


def test_a_new_class_is_taken_where_that_is_said():
    entries, there = [tiled("a/0")], ["a/0", "c/0"]
    night = Night(entries, there)
    assert set(night.comparison.problems) == {"c/0"}
    taken = compare(
        *(night.entries, night.listed, night.said, {}, ("a", "b")), prune=False, new_classes=True
    )
    assert (taken.problems, taken.candidates) == ({}, ("c/0",))


def test_new_images_fill_what_is_missing_from_the_shares():
    old = [tiled(f"a/{i}") for i in range(6)] + [tiled("b/0", split="test")]
    new = [f"a/n{i}" for i in range(4)] + [f"b/n{i}" for i in range(3)]
    night = Night(old, [*(entry.source for entry in old), *new])
    night.decide(*map(seen, new))
    splits = night.splits({"train": 0.5, "test": 0.5})
    assert Counter((path[0], split) for path, split in splits.items()) == {
        ("a", "test"): 4,
        ("b", "train"): 2,
        ("b", "test"): 1,
    }


def waits(path, split, **more):
    """What a killed night has decided for an image that waited for its turn."""
    values = {"label": path.split("/")[0], **more}
    return UnassignedImage(f"pixels of sha of {path}", values["label"], split, values.get("group"))


SAME_GROUP = {"a/0": "g", "a/1": "g"}
SHARES = {"train": 0.6, "validation": 0.2, "test": 0.2}


def sized(weights):
    return [replace(seen(path), tiles=tiles) for path, tiles in weights.items()]


@pytest.mark.parametrize("done", list(itertools.combinations(range(6), 3)))
def test_what_a_killed_night_has_decided_stays(done):
    weights = {f"a/{i}": tiles for i, tiles in enumerate([50, 50, 40, 40, 20, 20])}
    night = Night([], weights)
    night.decide(*sized(weights))
    whole = night.splits(SHARES)
    there = [tiled(p, split=whole[p], tiles=weights[p]) for p in (f"a/{i}" for i in done)]
    names = {entry.source for entry in there}
    waiting = [waits(path, split) for path, split in whole.items() if path not in names]
    again = Night(there, weights)
    again.decide(*(each for each in sized(weights) if each.uri not in names))
    rest = {path: split for path, split in whole.items() if path not in names}
    assert again.splits(SHARES, waiting=waiting) == rest


def test_what_a_killed_night_has_decided_goes_with_the_picture():
    night = Night([], ["a/renamed", "a/1"])
    night.decide(seen("a/renamed", "sha of a/0"), seen("a/1", "another picture"))
    waiting = [waits("a/0", "test"), waits("a/1", "test"), waits("a/gone", "test")]
    assert night.splits(SHARES, waiting=waiting) == {"a/renamed": "test", "a/1": "train"}


@pytest.mark.parametrize(
    ("decided", "groups", "chosen"),
    [
        # A group that was corrected since then joins it to an image whose tiles are there.
        (waits("a/1", "test"), SAME_GROUP, {}),
        (waits("a/1", "test", group="h"), {}, {}),
        (waits("a/1", "test", label="b"), {}, {}),
        # So does a member of its group, by a correction of its own.
        (waits("a/1", "test", group="g"), SAME_GROUP, {}),
        (waits("a/1", "test"), {}, {"a/0": "train", "a/1": "train"}),
    ],
)
def test_what_a_killed_night_has_decided_gives_way_to_corrections(decided, groups, chosen):
    night = Night([tiled("a/0")], ["a/0", "a/1"], groups=groups, chosen=chosen)
    night.decide(seen("a/1"))
    assert night.splits(waiting=[decided]) == {"a/1": "train"}
    assert night.changes.problems == {}


def test_what_a_killed_night_has_decided_tears_no_unit_that_came_since_then():
    """A new image shows the places of two that wait: neither is left out."""
    night = Night([], ["a/0", "a/1", "a/2"])
    night.decide(*map(seen, ["a/0", "a/1", "a/2"]))
    waiting = [waits("a/0", "validation"), waits("a/1", "test")]
    splits = night.splits(SHARES, [("a/0", "a/2"), ("a/1", "a/2")], waiting)
    assert splits == dict.fromkeys(["a/0", "a/1", "a/2"], "validation")
    assert night.changes.problems == {}


def test_new_members_of_a_group_follow_it():
    old = [tiled("a/0", group="g"), tiled("a/1", split="test", group="h")]
    groups = {"a/0": "g", "a/1": "h", "a/2": "h"}
    night = Night(old, ["a/0", "a/1", "a/2"], groups=groups)
    night.decide(seen("a/2"))
    assert night.splits({"train": 0.9, "test": 0.1}) == {"a/2": "test"}


def test_a_group_that_is_corrected_is_applied():
    night = Night([tiled("a/0", group="g"), tiled("a/1")], ["a/0", "a/1"], groups={"a/1": "g"})
    changes = night.decide()
    assert [changes.entries[path].group for path in ("a/0", "a/1")] == [None, "g"]
    later = Night(changes.entries.values(), ["a/0", "a/1", "a/2"], groups={"a/1": "g", "a/2": "g"})
    later.decide(seen("a/2"))
    assert later.splits({"train": 0.1, "test": 0.9}) == {"a/2": "train"}


def test_a_corrected_group_that_joins_two_splits_is_refused_by_name():
    old = [tiled("a/0", group="g"), tiled("a/1", split="test", group="h")]
    for stamps in ({}, {"a/1": 2}):
        night = Night(old, ["a/0", "a/1"], groups={"a/0": "g", "a/1": "g"}, stamps=stamps)
        night.decide(*map(seen, stamps))
        with pytest.raises(SplitLeakError, match=r"a/1 \(test, group g\) and a/0 \(train"):
            night.splits()


def test_a_new_image_that_joins_two_splits_is_left_out_and_named():
    old = [tiled("a/0", group="g"), tiled("a/1", split="test", group="h")]
    groups = {"a/0": "g", "a/1": "h", "a/copy": "h", "a/new": "h"}
    night = Night(old, list(groups), groups=groups)
    changes = night.decide(seen("a/copy", "T", pixels="pixels of sha of a/0"), seen("a/new"))
    assert changes.work == ["a/new"]
    # The copy brings a picture of train into the group h, which is tested on.
    assert night.splits() == {"a/new": "test"}
    assert set(changes.problems) == {"a/copy"}
    assert night.changes.entries["a/copy"].group is None


@pytest.mark.parametrize(("groups", "pairs"), [(SAME_GROUP, []), ({}, [("a/0", "a/1")])])
def test_a_split_of_a_table_that_tears_a_unit_leaves_out_its_image_alone(groups, pairs):
    """It ended every night: nothing was tiled any more."""
    chosen = {"a/0": "train", "a/1": "test", "a/2": "test"}
    night = Night([tiled("a/0", group=groups.get("a/0"))], chosen, groups=groups, chosen=chosen)
    night.decide(seen("a/1"), seen("a/2"))
    assert night.splits(pairs=pairs) == {"a/2": "test"}
    assert set(night.changes.problems) == {"a/1"}
    # Corrected, it is tiled.
    again = Night(
        night.changes.entries.values(), chosen, groups=groups, chosen={**chosen, "a/1": "train"}
    )
    again.decide(seen("a/1"), seen("a/2"))
    assert again.splits(pairs=pairs) == {"a/1": "train", "a/2": "test"}


def test_of_new_images_that_contradict_each_other_the_fewest_are_left_out():
    chosen = {"a/0": "test", "a/1": "train", "a/2": "train", "b/3": "test"}
    night = Night([], chosen, groups=dict.fromkeys(["a/0", "a/1", "a/2"], "g"), chosen=chosen)
    night.decide(*map(seen, chosen))
    assert night.splits() == {"a/1": "train", "a/2": "train", "b/3": "test"}
    assert set(night.changes.problems) == {"a/0"}


@pytest.mark.parametrize(("split", "left_out"), [("train", set()), ("test", {"a/9"})])
@pytest.mark.parametrize("old", [[], [tiled("a/0", "S")]])
def test_a_copy_has_a_line_in_a_table_of_splits_too(old, split, left_out):
    """Any copy ended the night: it had no split."""
    chosen = {"a/0": "train", "a/1": "test", "a/9": split}
    night = Night(old, chosen, chosen=chosen)
    found = [seen("a/0", "S"), seen("a/1"), seen("a/9", "S")]
    night.decide(*found[len(old) :])
    expected = {"a/0": "train", "a/1": "test"}
    assert night.splits() == {path: expected[path] for path in night.changes.work}
    assert set(night.changes.problems) == left_out
    if not left_out:
        tonight = [tiled("a/0", "S"), tiled("a/1", split="test"), night.changes.entries["a/9"]]
        later = Night(tonight, [*chosen, "a/2"], chosen={**chosen, "a/2": "test"})
        later.decide(seen("a/2"))
        assert later.splits() == {"a/2": "test"}


def test_a_corrected_split_of_a_table_is_not_taken_and_told():
    """Not a word was said, and the image stayed where it was."""
    copy = ImageRecord(
        "a/9", LEFT_OUT, sha256="S", pixel_sha256="pixels of S", length=10, modified=1
    )
    old = [tiled("a/0", "S"), copy, tiled("a/1"), tiled("a/2"), tiled("a/gone", "T")]
    there = ["a/0", "a/1", "a/2", "a/9", "a/moved", "a/new"]
    night = Night(old, there, stamps={"a/1": 2}, chosen=dict.fromkeys(there, "test"))
    night.plain["a/2"] = night.said["a/2"] = Annotation("a", split="train")
    changes = night.decide(seen("a/1", "other"), seen("a/moved", "T"), seen("a/new"))
    assert night.splits() == {"a/1": "train", "a/new": "test"}
    assert set(changes.ignored_splits) == {"a/0", "a/1", "a/9", "a/moved"}
    assert changes.problems == {}
    # Where nobody chooses splits, nothing is told.
    plain = Night(old, there[:3])
    plain.decide()
    assert plain.splits() == plain.changes.ignored_splits == {}


def test_a_removed_image_ends_no_night_of_a_table_of_splits():
    gone = ImageRecord("a/0", REMOVED, sha256="S", pixel_sha256="P", label="a", group="g")
    night = Night([gone, tiled("a/1")], ["a/1", "a/2"], chosen={"a/1": "train", "a/2": "test"})
    night.decide(seen("a/2"))
    assert night.splits() == {"a/2": "test"}


def test_the_group_of_a_pruned_specimen_is_remembered():
    old = [tiled("a/0", group="g"), tiled("a/1")]
    pruned = Night(old, ["a/1"], prune=True)
    changes = pruned.decide()
    for _ in range(2):
        night = Night(changes.entries.values(), ["a/1", "a/2"], groups={"a/2": "g"})
        changes = night.decide(seen("a/2"))
        assert night.splits({"train": 0.01, "test": 0.99}) == {"a/2": "train"}
        changes.work.clear()


def test_the_group_of_a_copy_counts():
    old = [tiled("a/0", "S", group="g")]
    first = Night(old, ["a/0", "a/copy"], groups={"a/0": "g", "a/copy": "h"})
    changes = first.decide(seen("a/copy", "S"))
    assert first.splits() == {}
    groups = {"a/0": "g", "a/copy": "h", "a/2": "h"}
    night = Night(changes.entries.values(), list(groups), groups=groups)
    night.decide(seen("a/2"))
    assert night.splits({"train": 0.01, "test": 0.99}) == {"a/2": "train"}


def test_an_image_whose_pixel_digest_is_not_known_is_looked_at_once_and_not_tiled_again():
    night = Night([tiled("a/0", pixel_sha256=None)], ["a/0"])
    assert night.comparison.candidates == ("a/0",)
    changes = night.decide(seen("a/0"))
    assert (changes.work, changes.dropped) == ([], [])
    assert changes.entries["a/0"].pixel_sha256 == "pixels of sha of a/0"
    assert Night(changes.entries.values(), ["a/0"]).comparison.candidates == ()


def test_images_of_more_bits_than_the_data_set_are_left_out():
    image = Field("image", (32, 32, 1), dtype="uint16", scale=1 / 4095, classes=("a", "b"))
    night = Night([], ["a/0", "a/1"])
    deep = [
        replace(seen(path), dtype="uint16", bits=bits) for path, bits in (("a/0", 12), ("a/1", 14))
    ]
    found = {each.uri: each for each in deep}
    changes = decide({}, night.listed, night.said, night.comparison, found, image, prune=False)
    assert changes.work == ["a/0"]
    assert list(changes.problems) == ["a/1"]


def test_an_image_whose_zones_have_changed_is_tiled_again():
    bar = Zone("exclude", (((0.0, 90.0), (100.0, 90.0), (100.0, 100.0)),))
    rules = ZoneRules({"a/0": (bar,), "a/1": (bar,)})
    entries = [tiled("a/0"), tiled("a/1", zones=rules.digest("a/1")), tiled("a/2")]
    known = with_zones({entry.source: entry for entry in entries}, rules)
    night = Night(known.values(), ["a/0", "a/1", "a/2"])
    assert night.comparison.candidates == ("a/0",)
    changes = night.decide(replace(seen("a/0"), zones=rules.digest("a/0")))
    assert changes.work == ["a/0"]
    assert [entry.source for entry in changes.dropped] == ["a/0"]
    assert night.splits() == {"a/0": "train"}


def test_what_is_alike_goes_together_but_tears_nothing_that_stood_apart_before():
    old = [tiled("a/0"), tiled("a/1", split="test")]
    night = Night(old, ["a/0", "a/1", "a/2", "a/3"])
    night.decide(seen("a/2"), seen("a/3"))
    pairs = [("a/0", "a/1"), ("a/1", "a/2"), ("a/0", "a/3"), ("a/1", "a/3")]
    # The last one overlaps both: it can stand nowhere.
    assert night.splits({"train": 0.9, "test": 0.1}, pairs) == {"a/2": "test"}
    assert set(night.changes.problems) == {"a/3"}


def test_what_is_like_a_picture_is_looked_for_when_it_comes_or_comes_back():
    """If its fingerprint was known, it was compared with nothing, and could stand in any split."""
    old = [
        tiled("a/0", "S"),
        tiled("a/1", "T", zones="other"),
        ImageRecord("a/2", LEFT_OUT, reason="it joined two splits"),
    ]
    night = Night(old, ["a/0", "a/1", "a/2", "a/3"], stamps={"a/1": 2})
    night.decide(seen("a/1", "T"), seen("a/2", "U"), seen("a/3", "V"))
    assert night.changes.work == ["a/1", "a/2", "a/3"]
    new = new_pictures(night.changes, night.entries, night.found)
    assert new == {"pixels of U", "pixels of V"}
    # Tiled anew, all are new.
    again = Night([], ["a/0", "a/1"])
    again.decide(seen("a/0", "S"), seen("a/1", "T"))
    assert new_pictures(again.changes, {}, again.found) == {"pixels of S", "pixels of T"}


def test_a_picture_that_is_remembered_under_another_name_keeps_what_is_like_it():
    remembered = f"a/0#{'pixels of S':.16}"
    night = Night([tiled("a/0", "S"), tiled("a/1", "T")], ["a/0", "b/1"], stamps={"a/0": 2})
    changes = night.decide(seen("a/0", "U"), seen("b/1", "T"))
    now = names_of(changes, night.found)
    assert now == {"pixels of S": remembered, "pixels of T": "b/1", "pixels of U": "a/0"}
    broken = Night(pruned_specimen().values(), ["a/0", "a/1"])
    changes = broken.decide(seen("a/0", error="broken"))
    assert names_of(changes, broken.found)["pixels of S"] == remembered


@pytest.mark.parametrize(
    "gone", [ImageRecord("a/0", REMOVED), ImageRecord("a/0", LEFT_OUT, reason="copy")]
)
def test_a_picture_has_the_name_of_its_tiles(gone):
    """With a copy that was deleted, what its picture was like was forgotten."""
    copy = replace(gone, sha256="S", pixel_sha256="pixels of S", length=10, modified=1, label="a")
    listed = ["a/0", "a/1"] if gone.status == LEFT_OUT else ["a/1"]
    standing = Night([copy, tiled("a/1", "S")], listed)
    assert names_of(standing.decide(), {}) == {"pixels of S": "a/1"}
    new = Night([copy] if gone.status == REMOVED else [], ["a/1", "a/2"])
    changes = new.decide(seen("a/1", "S"), seen("a/2", "S"))
    assert names_of(changes, new.found) == {"pixels of S": "a/1"}


def test_images_without_a_fingerprint_are_looked_at_again():
    entries = {"a/0": tiled("a/0"), "a/1": tiled("a/1")}
    listed = {path: FileInfo(path, 10, 1) for path in entries}
    said = {path: Annotation("a") for path in entries}
    fingerprints = {entries["a/0"].pixel_sha256}
    found = compare(entries, listed, said, {}, ("a",), prune=False, fingerprints=fingerprints)
    assert (found.unchanged, found.candidates) == (("a/0",), ("a/1",))


def test_who_could_not_be_read_is_not_judged():
    """A moment without a network put good images into quarantine for good."""
    unread = replace(seen("a/1.png", error="no answer"), sha256="", pixel_sha256="")
    found = {"a/0.png": seen("a/0.png", error="cut off"), "a/1.png": unread}
    assert decoded_images({**found, "a/2.png": seen("a/2.png")}) == {"a/0.png"}


FORMER = "a/0#pixels of U"


@pytest.mark.parametrize(
    ("groups", "pairs"), [({"a/0": "h", "a/new": "h"}, []), ({"a/0": "h"}, [(FORMER, "a/new")])]
)
def test_what_belongs_to_the_kept_tiles_of_an_image_that_is_left_out_goes_to_their_split(
    groups, pairs
):
    """It went to any split, and a common group then ended each night.

    The file of a/0 has become a copy of an image of another specimen.
    """
    old = [tiled("a/0", "U", group="h"), tiled("a/x", "X", split="test", group="g")]
    there = ["a/0", "a/x", "a/new"]
    night = Night(old, there, stamps={"a/0": 2}, groups={**groups, "a/x": "g"})
    night.decide(seen("a/0", "X"), seen("a/new"))
    assert night.splits({"test": 1.0}, pairs) == {"a/new": "train"}
    assert set(night.changes.problems) == {"a/0"}
    assert night.changes.entries["a/0"].content == "pixels of U"


def test_a_copy_that_is_left_out_does_not_take_the_places_of_its_picture_with_it():
    """An image of the same place then went to any split."""
    old = [tiled("a/t", "T", group="h"), tiled("a/x", "X", split="test")]
    night = Night(old, ["a/0", "a/t", "a/x", "a/y"], groups={"a/0": "h", "a/t": "h"})
    night.decide(seen("a/0", "X"), seen("a/y"))
    assert night.splits({"train": 1.0}, [("a/0", "a/y")]) == {"a/y": "test"}
    assert set(night.changes.problems) == {"a/0"}


def test_places_that_only_the_new_picture_of_a_file_shows_are_not_those_of_its_former_one():
    old = [tiled("a/0", "U", group="h"), tiled("a/x", "X", split="test", group="g")]
    night = Night(old, ["a/0", "a/x", "a/y"], stamps={"a/0": 2}, groups={"a/0": "h", "a/x": "g"})
    night.decide(seen("a/0", "X"), seen("a/y"))
    assert night.splits({"train": 1.0}, [("a/0", "a/y")]) == {"a/y": "test"}


PRUNED = ImageRecord(
    "a/1", REMOVED, sha256="S", pixel_sha256="pixels of S", label="a", split="test"
)


def test_no_more_is_remembered_than_must_be():
    """Who comes back to its place, or is tiled there anew, is told by the entries of this night."""
    night = Night([PRUNED, tiled("a/2", "T", zones="former")], ["a/1", "a/2"], stamps={"a/2": 2})
    changes = night.decide(seen("a/1", "S"), seen("a/2", "T"))
    assert (changes.work, changes.entries) == (["a/1", "a/2"], {})


def test_a_picture_whose_tiles_are_kept_after_all_is_not_tiled_under_its_new_name_too():
    """Its rows were there twice until somebody mended the other file."""
    old = [tiled("a/0", "U", group="h"), tiled("a/x", "X", split="test", group="g")]
    groups = {"a/0": "h", "a/new": "h", "a/x": "g"}
    night = Night(old, groups, stamps={"a/0": 2}, groups=groups)
    night.decide(seen("a/0", "X"), seen("a/new", "U"))
    assert night.changes.work == ["a/new"]
    assert night.splits() == {}
    assert night.changes.dropped == []
    assert "a/0" in night.changes.problems["a/new"]
    # When the file is mended, the picture has the tiles of its new name.
    there = {"a/0": "V", "a/new": "U"}
    later = Night(night.changes.entries.values(), groups, stamps={"a/0": 3}, groups=groups)
    later.decide(*(seen(path, sha) for path, sha in there.items()))
    assert later.splits() == {"a/0": "train", "a/new": "train"}
