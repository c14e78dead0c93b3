from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.plan import FILE_BYTES, Plan, PlannedSource, format_bytes, plan_units
from distkeras_grid.errors import NoSpaceError


def source(number, split="train", label="a", tiles=100, tile_bytes=1000.0):
    name = f"{label}/{number:03}.png"
    return PlannedSource(
        name, f"file:/{name}", str(number), label, split, None, 400, 300, 1, tiles, tile_bytes
    )


def plan_of(*sources):
    return Plan(tuple(sources), ("a", "b"), 4, 16_384, {"a/bad.png": "it is cut short"})


def test_sums_and_lines():
    plan = plan_of(source(1), source(2, "test", "b", tiles=50), source(3, "train", "b"))
    assert plan.tiles == 250
    assert plan.stored_bytes == 250_000
    assert plan.counts == {"train": {"a": 100, "b": 100}, "test": {"a": 0, "b": 50}}
    text = "\n".join(plan.describe(free=10**9))
    assert "3 images, 4 angles: 250 tiles, about 250.0 kB on disk (4.1 MB of pixels)" in text
    assert "1.0 GB free" in text
    assert "train: a 1 image 100 tiles, b 1 image 100 tiles" in text
    assert "left out: a/bad.png: it is cut short" in text


def test_refuses_what_does_not_fit():
    plan = plan_of(source(1))
    plan.check_space(free=111_000, output="x")
    with pytest.raises(NoSpaceError, match=r"100 tiles need about 110\.0 kB, and x has 105\.0 kB"):
        plan.check_space(free=105_000, output="x")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["train", "test"]), st.integers(1, 500)), min_size=1, max_size=40
    ),
    st.integers(1, 18),
    st.integers(1, 16),
)
def test_every_step_once_one_split_a_task(rows, group_count, slots):
    groups = [[5.0 * i, 5.0 * i + 90] for i in range(group_count)]
    sources = [source(i, split, tiles=tiles) for i, (split, tiles) in enumerate(rows)]
    units = plan_units(plan_of(*sources), groups, slots)
    steps = Counter((unit.source.source, angle) for unit in units for angle in unit.angles)
    assert set(steps.values()) == {1}
    assert len(steps) == len(rows) * 2 * group_count
    partitions = [unit.partition for unit in units]
    assert partitions == sorted(partitions)
    assert set(partitions) == set(range(partitions[-1] + 1))
    assert len({(unit.partition, unit.source.split) for unit in units}) == partitions[-1] + 1
    for number in set(partitions):
        mine = [(u.source.source, u.angles) for u in units if u.partition == number]
        assert mine == sorted(mine)


def test_few_images_are_cut_by_angles_and_many_are_not():
    groups = [[float(a)] for a in range(18)]
    assert len(plan_units(plan_of(source(1)), groups, slots=4)) == 16
    assert len(plan_units(plan_of(*map(source, range(100))), groups, slots=4)) == 100


def test_large_data_sets_become_files_of_a_bounded_size():
    sources = [source(i, tiles=10_000, tile_bytes=20_000.0) for i in range(100)]
    units = plan_units(plan_of(*sources), [[float(a)] for a in range(18)], slots=1)
    assert units[-1].partition + 1 == pytest.approx(100 * 2e8 / FILE_BYTES, rel=0.1)


def test_bytes_for_people():
    assert [format_bytes(n) for n in (0, 1500, 2**40)] == ["0 bytes", "1.5 kB", "1.1 TB"]
    assert format_bytes(3e18) == "3000.0 PB"
