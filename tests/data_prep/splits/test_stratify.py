"""Shares of tiles by whole units: near, complete, the same in any order."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.splits.stratify import SplitGroup, assign_groups

SHARES = {"train": 0.6, "validation": 0.2, "test": 0.2}


def units_of_class(sizes, label="a", prefix=""):
    return [SplitGroup(f"{prefix}{label}{i:04}", {label: size}) for i, size in enumerate(sizes)]


def cells(units, splits):
    counts = Counter()
    for unit, split in zip(units, splits, strict=True):
        for name, weight in unit.weights.items():
            counts[name, split] += weight
    return counts


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from("abc"), st.lists(st.integers(1, 60), min_size=3, max_size=30), min_size=1
    )
)
@pytest.mark.full
def test_every_class_of_three_units_has_tiles_in_every_split(sizes):
    units = [unit for label, each in sizes.items() for unit in units_of_class(each, label)]
    counts = cells(units, assign_groups(units, SHARES))
    assert all(counts[label, split] for label in sizes for split in SHARES)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=10, max_size=60),
    st.sampled_from([(0.8, 0.1, 0.1), (0.6, 0.2, 0.2), (0.34, 0.33, 0.33)]),
)
@pytest.mark.full
def test_shares_of_tiles_are_met_within_the_largest_unit(sizes, shares):
    units = units_of_class(sizes)
    fractions = dict(zip(SHARES, shares, strict=True))
    counts = cells(units, assign_groups(units, fractions))
    for split, share in fractions.items():
        assert abs(counts["a", split] - share * sum(sizes)) <= max(sizes) + 1


def test_equal_units_meet_shares_to_the_unit():
    for count in range(3, 200):
        counts = cells(units := units_of_class([7] * count), assign_groups(units, SHARES))
        for split, share in SHARES.items():
            assert abs(counts["a", split] / 7 - share * count) < 1


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.sampled_from("abc"), st.integers(1, 9), min_size=1),
        min_size=1,
        max_size=30,
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_means_nothing(weights, rng):
    units = [SplitGroup(f"{i:03}", each) for i, each in enumerate(weights)]
    mixed = rng.sample(units, len(units))
    by_rank = dict(zip((unit.rank for unit in mixed), assign_groups(mixed, SHARES), strict=True))
    assert [by_rank[unit.rank] for unit in units] == assign_groups(units, SHARES)


def test_kept_units_stay_and_new_ones_fill_what_is_missing():
    kept = [SplitGroup(f"k{i}", {"a": 10}, "train") for i in range(8)]
    units = [*kept, *units_of_class([10] * 4)]
    splits = assign_groups(units, SHARES)
    assert splits[:8] == ["train"] * 8
    assert Counter(splits[8:]) == {"validation": 2, "test": 2}


def test_units_of_several_classes_are_moved_into_empty_cells_where_that_empties_none():
    rng = random.Random(4)
    for _ in range(200):
        units = [
            SplitGroup(f"{i:02}", {name: rng.randint(1, 9) for name in rng.sample("abcd", 2)})
            for i in range(24)
        ]
        counts = cells(units, assign_groups(units, SHARES))
        held = Counter(name for unit in units for name in unit.weights)
        assert all(counts[name, split] for name in held if held[name] > 5 for split in SHARES)


def test_a_split_without_a_share_gets_nothing():
    units = units_of_class([1] * 20)
    assert "validation" not in assign_groups(units, {"train": 0.8, "validation": 0.0, "test": 0.2})


def test_the_order_in_which_a_unit_names_its_classes_decides_nothing():
    # Sums of three costs round differently in another order, and then break a tie differently.
    told = "a2c1 a2c3d2 a3b3 a3b1c1d3 a3b1c1d2 a2b1d1 a1b1c3 b2c3d3 b3 b3c3 a1b3c1 a1c2d1"
    weights = [{unit[i]: int(unit[i + 1]) for i in range(0, len(unit), 2)} for unit in told.split()]
    units = [SplitGroup(f"{i}", each) for i, each in enumerate(weights)]
    turned = [SplitGroup(unit.rank, dict(reversed(unit.weights.items()))) for unit in units]
    assert assign_groups(units, SHARES) == assign_groups(turned, SHARES)
