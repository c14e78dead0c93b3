from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.dataset.plan import (
    MOST_FILE_BYTES,
    TilingPlan,
    plan_tasks,
    rows_of_a_file,
)
from data_prep.spark.passes import ImageScan
from distkeras_grid.dataset.manifest import TILED, ImageRecord
from distkeras_grid.errors import NoSpaceError


def source(number, split="train", label="a", tiles=100, tile_bytes=1000.0, notes=None, **scan):
    """The record of an image, and its scan."""
    name = f"{label}/{number:03}.png"
    size = {"width": 400, "height": 300, "channels": 1, "tiles": tiles}
    record = ImageRecord(
        *(name, TILED), sha256=str(number), label=label, split=split, notes=notes, **size
    )
    more = {"dtype": "uint8", "tile_bytes": tile_bytes, "error": None, **scan}
    return record, ImageScan(f"file:/{name}", str(number), **size, **more)


def plan_of(*images):
    records = tuple(record for record, _ in images)
    return TilingPlan(records, {r.source: scan for r, scan in images}, ("a", "b"), 4, 16_384)


def test_sums_and_lines():
    plan = plan_of(source(1), source(2, "test", "b", tiles=50), source(3, "train", "b"))
    assert plan.tiles == 250
    assert plan.stored_bytes == 250_000
    assert plan.counts == {"train": {"a": 100, "b": 100}, "test": {"a": 0, "b": 50}}
    text = "\n".join(plan.describe(free=10**9))
    assert "3 images, 4 angles: 250 tiles, about 250 kB on disk (4.1 MB of pixels)" in text
    assert "1.0 GB free" in text
    assert "train: a 1 image 100 tiles, b 1 image 100 tiles" in text


def test_what_is_told_of_many_images_is_one_line():
    """A night of 10,000 images would have had 10,000 equal lines."""
    few = [(replace(record, empty_angles=2), scan) for record, scan in map(source, range(60))]
    lines = plan_of(*few, source(60, notes="page 2 of 3")).describe(free=10**9)
    told = [line for line in lines if ".png" in line]
    assert told == [
        "  a/000.png and 59 other images: no tile at 2 of 4 angles; --edge shift finds more",
        "  a/060.png: page 2 of 3",
    ]


def test_refuses_what_does_not_fit():
    plan = plan_of(source(1))
    plan.check_space(free=111_000, output="x")
    with pytest.raises(NoSpaceError, match=r"100 tiles need about 110 kB, and x has 105 kB"):
        plan.check_space(free=105_000, output="x")


def test_what_is_dropped_needs_no_space():
    """Space and the refusal were of all tiles, also if --keep stores a fifth of them."""
    whole, fifth = (
        plan_of(*(source(i, tiles=10**6, pass_rate=rate) for i in range(4))) for rate in (1.0, 0.2)
    )
    # A tenth of what seems to be dropped is planned for.
    assert (fifth.tiles, fifth.stored_bytes) == (whole.tiles, whole.stored_bytes * 0.28)
    assert "about 1.1 GB on disk (18 GB of pixels)" in fifth.describe(10**9)[0]
    fifth.check_space(1_300_000_000, "x")
    with pytest.raises(NoSpaceError, match=r"1,120,000 tiles \(--keep drops others of 4,000,000\)"):
        fifth.check_space(1_200_000_000, "x")
    assert rows_of_a_file(fifth) == rows_of_a_file(whole)


def test_dropped_tiles_do_not_count_in_the_size_of_files():
    dropping, every = (
        plan_of(*(source(i, tiles=30_000, pass_rate=rate) for i in range(40)))
        for rate in (0.0, 1.0)
    )
    # 3 MB of each image are planned for: eight are two thirds of 32 MB.
    assert len(plan_tasks(dropping, 16)) == 5
    assert len(plan_tasks(every, 16)) == 20


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["train", "test"]), st.integers(1, 500)), min_size=1, max_size=40
    ),
    st.integers(1, 16),
)
def test_every_image_once_one_split_a_task(rows, slots):
    sources = [source(i, split, tiles=tiles) for i, (split, tiles) in enumerate(rows)]
    tasks = plan_tasks(plan_of(*sources), slots)
    images = [image.source for task in tasks for image in task]
    assert sorted(images) == [each.source for each, _ in sources]
    for task in tasks:
        assert len({image.split for image in task}) == 1
        assert [image.source for image in task] == sorted(image.source for image in task)


MB = 1e6


def written(sizes, slots=2):
    """Bytes of each task, for images that become so many bytes [MB]."""
    sources = [source(i, tiles=size * 100, tile_bytes=1e4) for i, size in enumerate(sizes)]
    plan = plan_of(*sources)
    filled = (
        sum(image.tiles * plan.scan(image).tile_bytes for image in task)
        for task in plan_tasks(plan, slots)
    )
    return [size / MB for size in filled], plan


@pytest.mark.parametrize("slots", [1, 2, 16])
def test_images_of_mixed_sizes_become_files_of_about_one_size(slots):
    """Images were counted: 633 MB stood beside 5 MB."""
    sizes = [5, 5, 60, 2, 5, 90, 5, 5, 30, 120, 5, 7, 5, 60, 80, 5] * 20
    tasks, _ = written(sizes, slots)
    assert all(128 <= size <= 256 for size in tasks[:-1])
    assert sum(tasks) == pytest.approx(sum(sizes))


def test_a_large_image_becomes_several_files_of_one_task():
    tasks, plan = written([633, 5, 5, 5])
    assert tasks == pytest.approx([633, 15])
    rows = rows_of_a_file(plan)
    assert rows * 1e4 == pytest.approx(MOST_FILE_BYTES, rel=0.01)


def test_few_bytes_do_not_become_many_files():
    """One image a night made 16 files of 11 MB."""
    assert len(written([11] * 16, slots=4)[0]) == pytest.approx(11 * 16 / 44, abs=2)
    assert len(written([1] * 10, slots=16)[0]) == 1
