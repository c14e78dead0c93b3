"""What becomes of each image in an update, decided without Spark and without files."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from data_prep.dataset.actions import (
    OF_SCANS,
    assign_update_splits,
    decide_actions,
    names_of,
    new_pictures,
)
from data_prep.dataset.diff import FileInfo, diff_folder, with_zones
from data_prep.dataset.manifest import revised
from data_prep.dataset.overrides import apply_overrides, effective_labels, match_previous
from data_prep.geometry.regions import Zone, ZoneRules
from data_prep.spark.passes import ImageScan
from data_prep.splits.labels import Annotation
from distkeras_grid.dataset.manifest import (
    LEFT_OUT,
    REMOVED,
    TILED,
    DuplicatePair,
    ImageRecord,
)
from distkeras_grid.errors import SplitLeakError
from distkeras_grid.feeding.schema import Field

IMAGE = Field("image", (32, 32, 1), classes=("a", "b"))


def tiled(path, sha=None, split="train", **more):
    label = path.split("/")[0]
    sha = sha or f"sha of {path}"
    values = {"tiles": 4, "shard": 0, "length": 10, "modified": 1, "label": label}
    values = {**values, "pixel_sha256": f"pixels of {sha}", **more}
    return ImageRecord(path, TILED, sha256=sha, split=split, **values)


def copy_of(sha, path, **more):
    """The record of a file with the picture of another."""
    values = {"pixel_sha256": f"pixels of {sha}", "length": 10, "modified": 1, **more}
    return ImageRecord(path, LEFT_OUT, sha256=sha, **values)


def scan(path, sha=None, error=None, channels=1, pixels=None):
    sha = sha or f"sha of {path}"
    pixels = pixels or f"pixels of {sha}"
    return ImageScan(path, sha, 64, 64, channels, "uint8", 500.0, error, None, pixels, tiles=4)


class FolderUpdate:
    """The files that are there, by path; then what an update makes of them."""

    def __init__(
        self,
        records,
        there,
        *,
        problems=None,
        prune=False,
        stamps=None,
        groups=None,
        chosen=None,
        **of_diff,
    ):
        self.base_records = {record.source: record for record in records}
        stamps, problems = stamps or {}, problems or {}
        groups, chosen = groups or {}, chosen or {}
        self.files = {path: FileInfo(path, 10, stamps.get(path, 1)) for path in there}
        self.labels = {
            p: Annotation(p.split("/")[0], groups.get(p), chosen.get(p))
            for p in there
            if p not in problems
        }
        self.annotations = {
            p: apply_overrides(self.base_records.get(p), each) for p, each in self.labels.items()
        }
        self.prune = prune
        self.diff = diff_folder(
            *(self.base_records, self.files, self.annotations, problems, ("a", "b")),
            prune=prune,
            **of_diff,
        )

    def decide(self, *scans, image=IMAGE):
        self.scans = {each.uri: each for each in scans}
        previous = match_previous(self.base_records, self.diff.unread, self.scans)
        self.annotations = effective_labels(self.labels, self.annotations, previous, ("a", "b"))
        self.actions = decide_actions(
            *(self.base_records, self.files, self.annotations, self.diff, self.scans, previous),
            image,
            prune=self.prune,
        )
        return self.actions

    def splits(self, fractions=None, pairs=()):
        table = {path: each.split for path, each in self.annotations.items() if each.split}
        pairs = [DuplicatePair(one, other, "w") for one, other in pairs]
        shares = fractions or {"train": 1.0}
        assign_update_splits(self.actions, table, shares, 0, pairs)
        return {path: record.split for path, record in self.actions.to_tile.items()}


def test_only_new_and_touched_images_are_looked_at():
    entries = [tiled("a/0"), tiled("a/1"), tiled("a/gone")]
    update = FolderUpdate(entries, ["a/0", "a/1", "b/new"], stamps={"a/1": 2})
    assert update.diff.unchanged == ("a/0",)
    assert update.diff.to_scan == ("a/1", "b/new")
    assert update.diff.removed == ("a/gone",)
    actions = update.decide(scan("a/1"), scan("b/new"))
    assert (set(actions.to_tile), actions.dropped, actions.problems) == ({"b/new"}, {}, {})
    # Touched, but the same: its new time is noted, so that it is not read again.
    assert actions.records["a/1"] == replace(entries[1], modified=2)
    assert actions.records["a/gone"] == entries[2]


def test_a_changed_image_keeps_its_name_beside_a_copy_of_it():
    """The copy came first by its name: the old image was left out, and lost tiles and split."""
    there = ["a/9", "a/0", "b/0"]
    update = FolderUpdate([tiled("a/9", split="test")], there, stamps={"a/9": 2})
    actions = update.decide(*(scan(path, "changed") for path in there))
    assert actions.to_tile.keys() == actions.replaced == {"a/9"}
    assert update.splits({"train": 1.0}) == {"a/9": "test"}
    assert actions.records["a/0"].reason == "the same bytes as a/9"
    assert "keep the right one" in actions.problems["b/0"]


@pytest.mark.parametrize("touched", [False, True])
def test_another_label_is_written_into_the_table_and_no_tile_is_touched(touched):
    """It cut all tiles of the image again."""
    entry = tiled("a/1", label="b")
    update = FolderUpdate([entry], ["a/1"], stamps={"a/1": 1 + touched})
    assert update.diff.to_scan == (("a/1",) if touched else ())
    actions = update.decide(*([scan("a/1")] * touched))
    assert (actions.to_tile, actions.dropped, actions.relabelled) == ({}, {}, {"a/1"})
    now = actions.records["a/1"]
    assert (now.label, now.stored_label, now.shard, now.split) == ("a", "b", 0, "train")
    # And back again.
    stored = revised(revised(entry, label="a"), label="b")
    assert (stored.label, stored.stored_label) == ("b", None)


def test_a_copy_whose_original_is_labelled_otherwise_now_is_told():
    update = FolderUpdate([tiled("b/0", "S", label="a"), copy_of("S", "a/1")], ["a/1", "b/0"])
    actions = update.decide(scan("a/1", "S"))
    assert (actions.relabelled, set(actions.problems)) == ({"b/0"}, {"a/1"})


def test_what_cannot_be_tiled_is_listed_and_tried_again():
    problems = {"x": "no label"}
    there = ["a/0", "b/cut", "a/red", "c/0", "x"]
    update = FolderUpdate([tiled("a/0")], there, problems=problems, stamps={"a/0": 2})
    actions = update.decide(
        scan("a/0", error="cut"), scan("b/cut", error="cut"), scan("a/red", channels=3)
    )
    assert actions.to_tile == actions.dropped == {}
    assert set(actions.problems) == set(there)
    assert "its former tiles are kept" in actions.problems["a/0"]
    assert "3 channels" in actions.problems["a/red"]
    assert "class 'c'" in actions.problems["c/0"]
    kept = actions.records["a/0"]
    assert (kept.status, kept.tiles, kept.shard) == (TILED, 4, 0)
    again = FolderUpdate(
        list(actions.records.values()), there, problems=problems, stamps={"a/0": 2}
    )
    assert again.diff.to_scan == ("a/0", "a/red", "b/cut")


def pruned_specimen():
    """Entries after an image of train, of the group g, was pruned."""
    gone = FolderUpdate([tiled("a/0", "S", group="g"), tiled("a/1")], ["a/1"], prune=True)
    return gone.decide().records


MOSTLY_TEST = {"train": 0.01, "test": 0.99}


@pytest.mark.parametrize("error", [None, "broken"])
def test_the_group_of_a_copy_counts_also_if_its_file_broke(error):
    copy = copy_of("S", "a/copy", group="h", modified=None)
    groups = {"a/0": "g", "a/copy": "h"}
    update = FolderUpdate([tiled("a/0", "S", group="g"), copy], groups, groups=groups)
    actions = update.decide(scan("a/copy", "S", error=error))
    groups["a/2"] = "h"
    later = FolderUpdate(actions.records.values(), groups, groups=groups)
    later.decide(
        *(scan(path, *({"a/copy": ["S", error]}.get(path, []))) for path in later.diff.to_scan)
    )
    assert later.splits(MOSTLY_TEST) == {"a/2": "train"}


AS_DECIDED = {"set_aside": "blurred", "by_hand": ("label", "group")}
NONE = dict.fromkeys(AS_DECIDED)


def overrides(records):
    return {
        path: {name: getattr(record, name) for name in AS_DECIDED}
        for path, record in records.items()
    }


def decided(path, sha=None, **more):
    return tiled(path, sha, label="b", group="G", **AS_DECIDED, **more)


@pytest.mark.parametrize("picture", ["S", "T"])
def test_what_was_set_by_hand_stands_if_the_file_is_saved_again(picture):
    """The image was trained on again, and the update after it had its former label."""
    update = FolderUpdate([decided("a/0", "S"), tiled("a/1")], ["a/0", "a/1"], stamps={"a/0": 2})
    saved = replace(scan("a/0", "S2", pixels=f"pixels of {picture}"))
    actions = update.decide(saved)
    assert overrides(actions.to_tile) == {"a/0": AS_DECIDED}
    assert update.annotations["a/0"] == Annotation("b", "G")
    assert update.splits() == {"a/0": "train"}


@pytest.mark.parametrize("path", ["a/0", "a/9"])
def test_what_was_set_by_hand_stands_if_a_pruned_image_comes_back(path):
    gone = FolderUpdate([decided("a/0", "S"), tiled("a/1")], ["a/1"], prune=True).decide()
    update = FolderUpdate(gone.records.values(), ["a/1", path])
    actions = update.decide(scan(path, "S"))
    assert overrides(actions.to_tile) == {path: AS_DECIDED}
    assert update.annotations[path] == Annotation("b", "G")


def test_what_was_set_by_hand_goes_with_the_picture_if_two_files_change_places():
    old = [decided("a/0", "S"), tiled("a/1", "T")]
    update = FolderUpdate(old, ["a/0", "a/1"], stamps={"a/0": 2, "a/1": 2})
    actions = update.decide(scan("a/0", "T"), scan("a/1", "S"))
    assert overrides({p: actions.records[p] for p in update.files}) == {
        "a/0": NONE,
        "a/1": AS_DECIDED,
    }
    assert (actions.to_tile, actions.relabelled) == ({}, set())
    assert actions.moved == {"a/0": "a/1", "a/1": "a/0"}
    assert update.annotations == {"a/0": Annotation("a"), "a/1": Annotation("b", "G")}


def test_a_copy_takes_nothing_that_was_set_by_hand_for_its_original():
    update = FolderUpdate([decided("b/0", "S")], ["b/0", "b/9"], groups={"b/9": "h"})
    actions = update.decide(scan("b/9", "S"))
    assert (actions.to_tile, actions.records["b/9"].group) == ({}, "h")
    # And an image that is new has nobody before it.
    assert overrides(FolderUpdate([], ["a/0"]).decide(scan("a/0")).to_tile) == {"a/0": NONE}


def test_a_class_that_the_data_set_lacks_is_not_taken_because_files_changed_places():
    old = [decided("c/0", "S"), tiled("a/1", "T")]
    update = FolderUpdate(old, ["c/0", "a/1"], stamps={"c/0": 2, "a/1": 2})
    update.decide(scan("c/0", "T"), scan("a/1", "S"))
    assert update.annotations["c/0"].label == "b"


@pytest.mark.parametrize("link", ["a/0", "a"])
def test_images_behind_a_link_without_a_target_are_not_pruned(link):
    """A disk that was not mounted for a update took all their tiles."""
    old = [tiled("a/0", "S"), tiled("b/1")]
    update = FolderUpdate(old, ["b/1", "b/2"], prune=True, unseen={link})
    actions = update.decide(scan("b/2", "S2", pixels="pixels of S"))
    assert (actions.dropped, actions.records["a/0"]) == ({}, old[0])
    # It is not removed, so that nothing has moved.
    assert (actions.to_tile, actions.moved, set(actions.problems)) == ({}, {}, {"b/2"})
    back = FolderUpdate(actions.records.values(), ["a/0", "b/1"])
    assert back.diff.unchanged == ("a/0", "b/1")


@pytest.mark.parametrize("prune", [False, True])
def test_an_image_that_moved_to_another_class_keeps_its_tiles(prune):
    """It was left out until all removed images were pruned, and then cut again."""
    entries = [tiled("a/0", "S", "test"), tiled("a/1", "T")]
    moved = FolderUpdate(entries, ["b/0"], prune=prune)
    actions = moved.decide(scan("b/0", "S"))
    assert (actions.to_tile, actions.problems, actions.moved) == ({}, {}, {"a/0": "b/0"})
    assert list(actions.dropped) == ["a/1"] * prune
    now = actions.records["b/0"]
    assert (now.label, now.split, now.stored_label, now.stored_source) == ("b", "test", "a", "a/0")
    assert "a/0" not in actions.records
    # Once more, and home again.
    back = FolderUpdate(actions.records.values(), ["a/0"]).decide(scan("a/0", "S"))
    stored = back.records["a/0"]
    assert (stored.label, stored.stored_label, stored.stored_source) == ("a", None, None)


def test_what_only_looks_like_a_move_is_none():
    old = tiled("a/0", "S", zones="z" * 64)
    # Other zones, and the same pixels in another file.
    other = FolderUpdate([old], ["b/0"]).decide(scan("b/0", "S"))
    assert (other.moved, set(other.problems)) == ({}, {"b/0"})
    again = FolderUpdate([tiled("a/0", "S")], ["a/9"]).decide(
        scan("a/9", "S2", pixels="pixels of S")
    )
    assert (again.moved, again.records["a/9"].reason) == ({}, "the same pixels as a/0")


def test_a_file_takes_over_the_tiles_of_its_new_picture_and_its_own_are_dropped():
    old = [tiled("a/0", "S"), tiled("a/1", "T", group="g")]
    update = FolderUpdate(old, ["a/1", "a/2"], stamps={"a/1": 2})
    actions = update.decide(scan("a/1", "S"), scan("a/2", "T2", pixels="pixels of T"))
    assert (actions.moved, set(actions.dropped)) == ({"a/0": "a/1"}, {"a/1"})
    assert (set(actions.to_tile), actions.records["a/1"].stored_source) == ({"a/2"}, "a/0")


def test_a_new_class_is_taken_where_that_is_said():
    entries, there = [tiled("a/0")], ["a/0", "c/0"]
    assert set(FolderUpdate(entries, there).diff.problems) == {"c/0"}
    taken = FolderUpdate(entries, there, new_classes=True).diff
    assert (taken.problems, taken.to_scan) == ({}, ("c/0",))


def test_new_images_fill_what_is_missing_from_the_shares():
    old = [tiled(f"a/{i}") for i in range(6)] + [tiled("b/0", split="test")]
    new = [f"a/n{i}" for i in range(4)] + [f"b/n{i}" for i in range(3)]
    update = FolderUpdate(old, [*(entry.source for entry in old), *new])
    update.decide(*map(scan, new))
    splits = update.splits({"train": 0.5, "test": 0.5})
    assert Counter((path[0], split) for path, split in splits.items()) == {
        ("a", "test"): 4,
        ("b", "train"): 2,
        ("b", "test"): 1,
    }


def test_a_group_that_is_corrected_is_applied():
    update = FolderUpdate(
        [tiled("a/0", group="g"), tiled("a/1")], ["a/0", "a/1"], groups={"a/1": "g"}
    )
    actions = update.decide()
    assert [actions.records[path].group for path in ("a/0", "a/1")] == [None, "g"]
    later = FolderUpdate(
        actions.records.values(), ["a/0", "a/1", "a/2"], groups={"a/1": "g", "a/2": "g"}
    )
    later.decide(scan("a/2"))
    assert later.splits({"train": 0.1, "test": 0.9}) == {"a/2": "train"}


def test_a_corrected_group_that_joins_two_splits_is_refused_by_name():
    old = [tiled("a/0", group="g"), tiled("a/1", split="test", group="h")]
    for stamps in ({}, {"a/1": 2}):
        update = FolderUpdate(old, ["a/0", "a/1"], groups={"a/0": "g", "a/1": "g"}, stamps=stamps)
        update.decide(*map(scan, stamps))
        with pytest.raises(SplitLeakError, match=r"a/1 \(test, group g\) and a/0 \(train"):
            update.splits()


def test_a_file_overwritten_with_another_split_s_specimen_is_left_out_and_keeps_its_tiles():
    """It used to end every update."""
    old = [tiled("a/0", group="g"), tiled("a/1", split="test", group="h")]
    update = FolderUpdate(
        old,
        ["a/0", "a/1"],
        groups={"a/0": "g", "a/1": "g"},
        stamps={"a/1": 2},
        chosen={"a/1": "train"},
    )
    actions = update.decide(scan("a/1", "other"))
    assert update.splits() == {}
    assert "another name" in actions.problems["a/1"]
    kept = actions.records["a/1"]
    assert (kept.status, kept.split, kept.group, kept.sha256) == (TILED, "test", "h", old[1].sha256)
    assert actions.dropped == {}
    # Under another name it goes where its specimen stands.
    update = FolderUpdate(old, ["a/0", "a/1", "a/2"], groups={"a/0": "g", "a/1": "h", "a/2": "g"})
    update.decide(scan("a/2", "other"))
    assert update.splits({"test": 1.0}) == {"a/2": "train"}


def test_a_new_image_that_joins_two_splits_is_left_out_and_named():
    old = [tiled("a/0", group="g"), tiled("a/1", split="test", group="h")]
    groups = {"a/0": "g", "a/1": "h", "a/copy": "h", "a/new": "h"}
    update = FolderUpdate(old, list(groups), groups=groups)
    actions = update.decide(scan("a/copy", "T", pixels="pixels of sha of a/0"), scan("a/new"))
    assert set(actions.to_tile) == {"a/new"}
    # The copy brings a picture of train into the group h, which is tested on.
    assert update.splits() == {"a/new": "test"}
    assert set(actions.problems) == {"a/copy"}
    assert update.actions.records["a/copy"].group is None


GROUPED = {"a/0": "g", "a/1": "g"}


@pytest.mark.parametrize(("groups", "pairs"), [(GROUPED, []), ({}, [("a/0", "a/1")])])
def test_a_split_of_a_table_that_tears_a_unit_leaves_out_its_image_alone(groups, pairs):
    """It ended every update: nothing was tiled any more."""
    chosen = {"a/0": "train", "a/1": "test", "a/2": "test"}
    update = FolderUpdate(
        [tiled("a/0", group=groups.get("a/0"))], chosen, groups=groups, chosen=chosen
    )
    update.decide(scan("a/1"), scan("a/2"))
    assert update.splits(pairs=pairs) == {"a/2": "test"}
    assert set(update.actions.problems) == {"a/1"}
    # Corrected, it is tiled.
    again = FolderUpdate(
        update.actions.records.values(), chosen, groups=groups, chosen={**chosen, "a/1": "train"}
    )
    again.decide(scan("a/1"), scan("a/2"))
    assert again.splits(pairs=pairs) == {"a/1": "train", "a/2": "test"}


def test_of_new_images_that_contradict_each_other_the_fewest_are_left_out():
    chosen = {"a/0": "test", "a/1": "train", "a/2": "train", "b/3": "test"}
    update = FolderUpdate(
        [], chosen, groups=dict.fromkeys(["a/0", "a/1", "a/2"], "g"), chosen=chosen
    )
    update.decide(*map(scan, chosen))
    assert update.splits() == {"a/1": "train", "a/2": "train", "b/3": "test"}
    assert set(update.actions.problems) == {"a/0"}


@pytest.mark.parametrize(("split", "left_out"), [("train", set()), ("test", {"a/9"})])
@pytest.mark.parametrize("old", [[], [tiled("a/0", "S")]])
def test_a_copy_has_a_line_in_a_table_of_splits_too(old, split, left_out):
    """Any copy ended the update: it had no split."""
    chosen = {"a/0": "train", "a/1": "test", "a/9": split}
    update = FolderUpdate(old, chosen, chosen=chosen)
    found = [scan("a/0", "S"), scan("a/1"), scan("a/9", "S")]
    update.decide(*found[len(old) :])
    expected = {"a/0": "train", "a/1": "test"}
    assert update.splits() == {path: expected[path] for path in update.actions.to_tile}
    assert set(update.actions.problems) == left_out
    if not left_out:
        standing = [tiled("a/0", "S"), tiled("a/1", split="test"), update.actions.records["a/9"]]
        later = FolderUpdate(standing, [*chosen, "a/2"], chosen={**chosen, "a/2": "test"})
        later.decide(scan("a/2"))
        assert later.splits() == {"a/2": "test"}


def test_a_corrected_split_of_a_table_is_not_taken_and_told():
    """Not a word was said, and the image stayed where it was."""
    old = [tiled("a/0", "S"), copy_of("S", "a/9"), tiled("a/1"), tiled("a/2"), tiled("a/gone", "T")]
    there = ["a/0", "a/1", "a/2", "a/9", "a/moved", "a/new"]
    update = FolderUpdate(old, there, stamps={"a/1": 2}, chosen=dict.fromkeys(there, "test"))
    update.labels["a/2"] = update.annotations["a/2"] = Annotation("a", split="train")
    actions = update.decide(scan("a/1", "other"), scan("a/moved", "T"), scan("a/new"))
    assert update.splits() == {"a/1": "train", "a/new": "test"}
    assert set(actions.ignored_splits) == {"a/0", "a/1", "a/9", "a/moved"}
    assert actions.problems == {}
    # Where nobody chooses splits, nothing is told.
    plain = FolderUpdate(old, there[:3])
    plain.decide()
    assert plain.splits() == plain.actions.ignored_splits == {}


def test_a_removed_image_ends_no_update_of_a_table_of_splits():
    gone = ImageRecord("a/0", REMOVED, sha256="S", pixel_sha256="P", label="a", group="g")
    update = FolderUpdate(
        [gone, tiled("a/1")], ["a/1", "a/2"], chosen={"a/1": "train", "a/2": "test"}
    )
    update.decide(scan("a/2"))
    assert update.splits() == {"a/2": "test"}


def test_an_image_whose_pixel_digest_is_not_known_is_looked_at_once_and_not_tiled_again():
    update = FolderUpdate([tiled("a/0", pixel_sha256=None)], ["a/0"])
    assert update.diff.to_scan == ("a/0",)
    actions = update.decide(scan("a/0"))
    assert (actions.to_tile, actions.dropped) == ({}, {})
    assert actions.records["a/0"].pixel_sha256 == "pixels of sha of a/0"
    assert FolderUpdate(actions.records.values(), ["a/0"]).diff.to_scan == ()


def test_images_of_more_bits_than_the_data_set_are_left_out():
    image = Field("image", (32, 32, 1), dtype="uint16", scale=1 / 4095, classes=("a", "b"))
    update = FolderUpdate([], ["a/0", "a/1"])
    deep = [
        replace(scan(path), dtype="uint16", bits=bits) for path, bits in (("a/0", 12), ("a/1", 14))
    ]
    actions = update.decide(*deep, image=image)
    assert set(actions.to_tile) == {"a/0"}
    assert list(actions.problems) == ["a/1"]


def test_an_image_whose_zones_have_changed_is_tiled_again():
    bar = Zone("exclude", (((0.0, 90.0), (100.0, 90.0), (100.0, 100.0)),))
    rules = ZoneRules({"a/0": (bar,), "a/1": (bar,)})
    entries = [tiled("a/0"), tiled("a/1", zones=rules.digest("a/1")), tiled("a/2")]
    known = with_zones({entry.source: entry for entry in entries}, rules)
    update = FolderUpdate(known.values(), ["a/0", "a/1", "a/2"])
    assert update.diff.to_scan == ("a/0",)
    actions = update.decide(replace(scan("a/0"), zones=rules.digest("a/0")))
    assert actions.to_tile.keys() == actions.dropped.keys() == {"a/0"}
    assert update.splits() == {"a/0": "train"}


def test_what_is_alike_goes_together_but_tears_nothing_that_stood_apart_before():
    old = [tiled("a/0"), tiled("a/1", split="test")]
    update = FolderUpdate(old, ["a/0", "a/1", "a/2", "a/3"])
    update.decide(scan("a/2"), scan("a/3"))
    pairs = [("a/0", "a/1"), ("a/1", "a/2"), ("a/0", "a/3"), ("a/1", "a/3")]
    # The last one overlaps both: it can stand nowhere.
    assert update.splits({"train": 0.9, "test": 0.1}, pairs) == {"a/2": "test"}
    assert set(update.actions.problems) == {"a/3"}


def test_what_is_like_a_picture_is_looked_for_when_it_comes_or_comes_back():
    """If its fingerprint was known, it was compared with nothing, and could stand in any split."""
    old = [
        tiled("a/0", "S"),
        tiled("a/1", "T", zones="other"),
        ImageRecord("a/2", LEFT_OUT, reason="it joined two splits"),
    ]
    update = FolderUpdate(old, ["a/0", "a/1", "a/2", "a/3"], stamps={"a/1": 2})
    update.decide(scan("a/1", "T"), scan("a/2", "U"), scan("a/3", "V"))
    assert set(update.actions.to_tile) == {"a/1", "a/2", "a/3"}
    assert new_pictures(update.actions) == {"pixels of U", "pixels of V"}
    # Tiled anew, all are new.
    again = FolderUpdate([], ["a/0", "a/1"])
    again.decide(scan("a/0", "S"), scan("a/1", "T"))
    assert new_pictures(again.actions) == {"pixels of S", "pixels of T"}


def test_a_picture_that_is_remembered_under_another_name_keeps_what_is_like_it():
    remembered = f"a/0#{'pixels of S':.16}"
    update = FolderUpdate([tiled("a/0", "S"), tiled("a/1", "T")], ["a/0", "b/1"], stamps={"a/0": 2})
    actions = update.decide(scan("a/0", "U"), scan("b/1", "T"))
    assert names_of(actions) == {
        "pixels of S": remembered,
        "pixels of T": "b/1",
        "pixels of U": "a/0",
    }
    broken = FolderUpdate(pruned_specimen().values(), ["a/0", "a/1"])
    actions = broken.decide(scan("a/0", error="broken"))
    assert names_of(actions)["pixels of S"] == remembered


@pytest.mark.parametrize("status", [REMOVED, LEFT_OUT])
def test_a_picture_has_the_name_of_its_tiles(status):
    """With a copy that was deleted, what its picture was like was forgotten."""
    copy = replace(copy_of("S", "a/0", label="a"), status=status)
    listed = ["a/0", "a/1"] if status == LEFT_OUT else ["a/1"]
    standing = FolderUpdate([copy, tiled("a/1", "S")], listed)
    assert names_of(standing.decide()) == {"pixels of S": "a/1"}
    new = FolderUpdate([copy] if status == REMOVED else [], ["a/1", "a/2"])
    actions = new.decide(scan("a/1", "S"), scan("a/2", "S"))
    assert names_of(actions) == {"pixels of S": "a/1"}


def test_images_without_a_fingerprint_are_looked_at_again():
    known = {"pixels of sha of a/0"}
    diff = FolderUpdate([tiled("a/0"), tiled("a/1")], ["a/0", "a/1"], fingerprints=known).diff
    assert (diff.unchanged, diff.to_scan) == (("a/0",), ("a/1",))


FORMER = "a/0#pixels of U"


@pytest.mark.parametrize(
    ("groups", "pairs"), [({"a/0": "h", "a/new": "h"}, []), ({"a/0": "h"}, [(FORMER, "a/new")])]
)
def test_what_belongs_to_the_kept_tiles_of_an_image_that_is_left_out_goes_to_their_split(
    groups, pairs
):
    """It went to any split, and a common group then ended each update.

    The file of a/0 has become a copy of an image of another specimen.
    """
    old = [tiled("a/0", "U", group="h"), tiled("a/x", "X", split="test", group="g")]
    there = ["a/0", "a/x", "a/new"]
    update = FolderUpdate(old, there, stamps={"a/0": 2}, groups={**groups, "a/x": "g"})
    update.decide(scan("a/0", "X"), scan("a/new"))
    assert update.splits({"test": 1.0}, pairs) == {"a/new": "train"}
    assert set(update.actions.problems) == {"a/0"}
    assert update.actions.records["a/0"].content == "pixels of U"


def test_a_copy_that_is_left_out_does_not_take_the_places_of_its_picture_with_it():
    """An image of the same place then went to any split."""
    old = [tiled("a/t", "T", group="h"), tiled("a/x", "X", split="test")]
    update = FolderUpdate(old, ["a/0", "a/t", "a/x", "a/y"], groups={"a/0": "h", "a/t": "h"})
    update.decide(scan("a/0", "X"), scan("a/y"))
    assert update.splits({"train": 1.0}, [("a/0", "a/y")]) == {"a/y": "test"}
    assert set(update.actions.problems) == {"a/0"}


def test_places_that_only_the_new_picture_of_a_file_shows_are_not_those_of_its_former_one():
    old = [tiled("a/0", "U", group="h"), tiled("a/x", "X", split="test", group="g")]
    update = FolderUpdate(
        old, ["a/0", "a/x", "a/y"], stamps={"a/0": 2}, groups={"a/0": "h", "a/x": "g"}
    )
    update.decide(scan("a/0", "X"), scan("a/y"))
    assert update.splits({"train": 1.0}, [("a/0", "a/y")]) == {"a/y": "test"}


def test_no_more_is_remembered_than_must_be():
    """Who comes back to its place, or is tiled there anew, needs no memory."""
    pruned = replace(copy_of("S", "a/1", label="a", split="test"), status=REMOVED)
    update = FolderUpdate(
        [pruned, tiled("a/2", "T", zones="former")], ["a/1", "a/2"], stamps={"a/2": 2}
    )
    actions = update.decide(scan("a/1", "S"), scan("a/2", "T"))
    assert (set(actions.to_tile), actions.records) == ({"a/1", "a/2"}, {})


@pytest.mark.parametrize("sha", ["U", "U.tif"])
def test_a_picture_whose_former_file_is_left_out_has_tiles_under_its_new_name_alone(sha):
    """Its rows were there twice until somebody mended the other file."""
    old = [tiled("a/0", "U", group="h"), tiled("a/x", "X", split="test", group="g")]
    groups = {"a/0": "h", "a/new": "h", "a/x": "g"}
    update = FolderUpdate(old, groups, stamps={"a/0": 2}, groups=groups)
    actions = update.decide(scan("a/0", "X"), scan("a/new", sha, pixels="pixels of U"))
    assert update.splits() == ({} if sha == "U" else {"a/new": "train"})
    assert set(actions.problems) == {"a/0"}
    assert actions.records["a/0"].status == LEFT_OUT


def test_what_a_scan_measures_is_recorded_if_a_record_has_a_field_of_this_name():
    measured = replace(scan("a/0"), pixel_size=0.25, low=1.0, high=9.0, stain="s", notes="page 2")
    record = FolderUpdate([], ["a/0"]).decide(measured).to_tile["a/0"]
    assert len(OF_SCANS) > 10
    assert {name: getattr(record, name) for name in OF_SCANS} == {
        name: getattr(measured, name) for name in OF_SCANS
    }
