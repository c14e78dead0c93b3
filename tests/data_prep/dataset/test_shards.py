"""Planning and publishing many images on the driver: what is written, and how often."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import replace

import pytest

from data_prep import TileSpec, TilingSettings
from data_prep.dataset import shards
from data_prep.dataset.commit import read_head
from data_prep.dataset.manifest import DataSet
from data_prep.dataset.plan import stored_bytes
from data_prep.dataset.shards import Shards
from data_prep.dataset.shards import divide_shards as divide
from data_prep.spark.passes import ImageScan
from distkeras_grid.dataset.manifest import REMOVED, DuplicatePair, shard_number
from distkeras_grid.errors import BusyError, EmptyDataError, EmptySplitError
from tests.data_prep.dataset.test_update_plan import plan_of
from tests.interleaving import Files, perform

SPEC = TileSpec(256, angles=range(0, 360, 5))
SETTINGS = TilingSettings(
    *("/raw", "/tiles", SPEC),
    labels="folder:1",
    group=r"/(?P<group>specimen\d+)/",
)
#: Without a look at the classes of each split.
PLANNED = replace(SETTINGS, allow_empty=True)


class Disk(Files):
    """Files by path; counts what goes through."""

    def __init__(self):
        super().__init__(self.do)
        self.held, self.moved, self.manifests = {}, 0, 0

    def do(self, operation):
        result = perform(self.held, operation)
        name, uri, *more = operation
        if name in ("create", "put", "read"):
            self.moved += len(result if name == "read" else more[0])
            self.manifests += name != "read" and uri.startswith("/tiles/_versions/")
        return result

    def modified(self, uri):
        assert uri in self.held
        return time.time()

    def persist(self, uri):
        assert uri in self.held

    @property
    def head(self):
        """The present version."""
        return read_head(self, "/tiles")


def divide_shards(plan):
    return divide(plan.planned, {path: stored_bytes(each) for path, each in plan.scans.items()})


def scan_of(name):
    """What the first pass finds in an image."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    return ImageScan(
        *(name, digest, 2272, 1704, 1, "uint8", 15_600.0, None),
        bits=8,
        pixel_sha256=digest,
        tiles=11_864,
    )


def first_night(images=60):
    """An archive, of which each image becomes 185 MB of tiles."""
    names = [f"class{i % 5}/specimen{i // 50:05}/{i:06}.tif" for i in range(images)]
    return plan_of(names, PLANNED, measure=scan_of)


def next_night(disk, there, **records):
    """An update that scans these files again; some records of the one before are other ones."""
    head = disk.head
    base = replace(head, entries=head.entries | {each.source: each for each in records.values()})
    return plan_of(there, PLANNED, base=base, head=head, measure=scan_of)


def publish(
    monkeypatch, disk, night, *, lost=(), keeps_none=(), killed_in=None, meanwhile=None, **more
):
    """Publish a night whose shards are cut by nobody; return the last manifest."""
    cut = []

    def write(_spark, plan, _reader, _image, _settings, folder, _say):
        cut.append(folder)
        if len(cut) == killed_in:
            raise KeyboardInterrupt
        if meanwhile is not None:
            meanwhile()
        disk.held[folder] = b"tiles"
        missing = {each.sha256: "it is gone" for each in plan.sources if each.source in lost}
        dropped = {each.sha256: each.tiles for each in plan.sources if each.source in keeps_none}
        return missing, dropped

    monkeypatch.setattr(shards, "cut_tiles", write)
    monkeypatch.setattr(shards, "copy_tiles", lambda *what: disk.held.update({what[-1]: b"tiles"}))
    return Shards(None, disk, replace(SETTINGS, **more), None, [].append, night).publish()


@pytest.fixture
def disk(monkeypatch):
    """The first night is over."""
    disk = Disk()
    publish(monkeypatch, disk, first_night())
    return disk


@pytest.mark.parametrize("update", [False, True])
def test_a_night_of_many_shards_appears_complete_or_not_at_all(monkeypatch, update):
    """Its manifest was written twice for each shard: 45 GB for 100,000 images."""
    disk, night = Disk(), first_night(400)
    count = len(divide_shards(night))
    assert count > 3
    with pytest.raises(KeyboardInterrupt):
        publish(monkeypatch, disk, night, killed_in=count, update=update)
    assert disk.held == {}
    disk = Disk()
    manifest = publish(monkeypatch, disk, first_night(400), update=update)
    assert (disk.manifests, manifest["last_update"]) == (1, 0)
    assert [shard_number(name) for name in manifest["shards"]] == [*range(count)]
    text = disk.held["/tiles/_versions/0.json"]
    assert len(text) < 600 * 400
    assert disk.moved < 4 * len(text)
    assert json.loads(text) == json.loads(json.dumps(manifest))
    assert {entry.shard for entry in disk.head.entries.values()} == {*range(count)}
    names = {*manifest["shards"], "_versions/0.json", *CARDS}
    assert set(disk.held) == {f"/tiles/{name}" for name in names}


def test_a_night_that_another_one_overtakes_while_it_cuts_leaves_nothing(monkeypatch, disk):
    one, other = (next_night(disk, ["class0/specimen99999/new.tif"]) for _ in range(2))
    after = {}

    def overtake():
        publish(monkeypatch, disk, other, update=True)
        after.update(disk.held)

    with pytest.raises(BusyError, match="has version 1 by now"):
        publish(monkeypatch, disk, one, meanwhile=overtake, update=True)
    assert disk.held == after


@pytest.mark.full
def test_what_replaces_a_data_set_is_new_to_who_knows_the_former_one(monkeypatch):
    """Its numbers began at 0 again, and `retrain` found nothing new for as many nights."""
    disk = Disk()
    former = {**publish(monkeypatch, disk, first_night()), "last_update": 41}
    disk.held["/tiles/_versions/41.json"] = json.dumps(former).encode()
    for keep, numbers in ((None, [41]), ("1", [])):
        night = first_night()
        night.head = disk.head
        after = publish(monkeypatch, disk, night, keep_versions=keep)
        number = after["last_update"]
        assert number == night.head.manifest.last_update + 1
        # Who trains on it has some days to end, unless it is said otherwise.
        assert [each["number"] for each in after["history"]] == numbers
        assert {each["update"] for each in after["sources"]} == {number}
    assert number == 43


def test_an_image_that_came_back_and_is_lost_while_it_is_cut_is_remembered(monkeypatch, disk):
    """Its split was forgotten, and a specimen of train came back in test."""
    name = "class0/specimen00000/000005.tif"
    former = disk.head.entries[name]
    gone = replace(former, status=REMOVED, tiles=0, shard=None)
    night = next_night(disk, [name], gone=gone)
    assert set(night.actions.to_tile) == {name}
    after = DataSet.from_json(publish(monkeypatch, disk, night, lost={name}))
    known = {each.source: each for each in after.entries.values() if name in each.source}
    assert {(each.status, each.split, each.group) for each in known.values()} == {
        ("left out", None, None),
        (REMOVED, former.split, former.group),
    }
    again = next_night(disk, [name])
    assert [each.split for each in again.planned] == [former.split]


def test_what_a_lost_picture_was_like_is_not_told_of_the_former_tiles(monkeypatch, disk):
    """The manifest said it of the picture whose tiles are kept under this path."""
    name, other, third = (f"class{n}/specimen00000/00000{n}.tif" for n in range(3))
    former = disk.head.entries[name]
    changed = replace(former, sha256="0" * 64, pixel_sha256="0" * 64, modified=2)
    night = next_night(disk, [name], changed=changed)
    night.pairs = [DuplicatePair(name, other, "w"), DuplicatePair(other, third, "w")]
    manifest = publish(monkeypatch, disk, night, lost={name}, update=True)
    assert manifest["near_duplicates"] == [{"one": other, "other": third, "why": "w"}]


def test_a_night_without_new_images_commits_what_it_learns_of_known_ones(monkeypatch, disk):
    """The pairs were printed once and lost: nobody searches known fingerprints again."""
    names = sorted(disk.head.entries)
    pair = DuplicatePair(names[0], names[1], "seen")

    def idle(**more):
        night = next_night(disk, names)
        assert not night.planned
        night.pairs = [pair]
        return publish(monkeypatch, disk, night, update=True, **more)

    first = idle()
    assert first["near_duplicates"] == [{"one": pair.one, "other": pair.other, "why": "seen"}]
    assert (first["last_update"], idle()["last_update"]) == (1, 1)
    # Folds and corrections take the pairs only if they join.
    report = idle(near_duplicates="report")
    assert (report["last_update"], report["settings"]["near_duplicates"]) == (2, "report")


def test_new_tiles_of_an_excluded_image_are_not_read(monkeypatch, disk):
    """It was trained on again as soon as somebody saved the file again."""
    name = "class0/specimen00000/000005.tif"
    former = disk.head.entries[name]
    former = replace(former, set_aside="blurred", by_hand=("label",))
    former = replace(former, zones="other", modified=0)
    night = next_night(disk, [name], former=former)
    after = DataSet.from_json(publish(monkeypatch, disk, night)).entries[name]
    assert (after.set_aside, after.by_hand, after.has_rows) == ("blurred", ("label",), False)


def test_conditions_that_leave_a_class_without_tiles_in_a_split_are_refused(monkeypatch):
    """Nothing was said of it."""
    night = first_night()
    cell = night.planned[0].label, night.planned[0].split
    none = {each.source for each in night.planned if (each.label, each.split) == cell}
    disk = Disk()
    with pytest.raises(EmptySplitError) as raised:
        publish(monkeypatch, disk, night, keeps_none=none, keep="mean>0")
    assert [each[:2] for each in raised.value.cells] == [cell]
    assert disk.head is None
    every = {each.source for each in night.planned}
    with pytest.raises(EmptyDataError, match="keep"):
        publish(monkeypatch, disk, first_night(), keeps_none=every, keep="mean>0", allow_empty=True)
    assert disk.held == {}
    accepted = publish(monkeypatch, disk, first_night(), keeps_none=none, allow_empty=True)
    assert accepted["counts"][cell[1]].get(cell[0], 0) == 0


CARDS = [".huggingface.yaml", "_croissant.json", "_README.md"]


def test_shards_are_bounded_in_size():
    night = first_night(400)
    sizes = [
        sum(night.scans[each.source].tile_bytes * each.tiles for each in some)
        for some in divide_shards(night)
    ]
    largest = max(night.scans[each.source].tile_bytes * each.tiles for each in night.planned)
    assert all(shards.SHARD_BYTES <= size < shards.SHARD_BYTES + largest for size in sizes[:-1])
