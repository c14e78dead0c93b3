import copy
import random
import time
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.splits.assign import (
    SplitSource,
    assign_splits,
    check_cells,
    check_leaks,
    connected_groups,
    parse_fractions,
    split_conflicts,
)
from distkeras_grid.errors import (
    ConfigurationError,
    EmptySplitError,
    LabelError,
    SplitLeakError,
)

FRACTIONS = parse_fractions("0.8:0.1:0.1")


def some(count, label, prefix=""):
    return [SplitSource(f"{label}/{i}.png", f"{prefix}{label}{i:04}", label) for i in range(count)]


def test_each_class_is_split_by_itself():
    sources = some(20, "a") + some(40, "b") + some(5, "c")
    assigned = assign_splits(sources, FRACTIONS, seed=0)
    counts = Counter((source.label, assigned[source.path]) for source in sources)
    assert counts == {
        ("a", "train"): 16, ("a", "validation"): 2, ("a", "test"): 2,
        ("b", "train"): 32, ("b", "validation"): 4, ("b", "test"): 4,
        ("c", "train"): 3, ("c", "validation"): 1, ("c", "test"): 1,
    }  # fmt: skip
    check_cells(sources, assigned, FRACTIONS)


def test_a_class_with_too_few_units_is_refused_by_name():
    sources = [*some(9, "a"), *(replace(each, group="g") for each in some(6, "b")), *some(2, "c")]
    assigned = assign_splits(sources, FRACTIONS, seed=0)
    with pytest.raises(EmptySplitError) as raised:
        check_cells(sources, assigned, FRACTIONS)
    assert raised.value.cells == (
        ("b", "validation", 1),
        ("b", "test", 1),
        ("c", "test", 2),
    )
    assert copy.deepcopy(raised.value).cells == raised.value.cells
    check_cells(sources, assigned, {"train": 1.0, "test": 0.0})


def test_shares_count_tiles():
    sizes = [100, *[1] * 18]
    sources = [replace(each, weight=sizes[i]) for i, each in enumerate(some(19, "a"))]
    for seed in range(50):
        assigned = assign_splits(sources, parse_fractions("0.8:0.2"), seed)
        assert assigned[sources[0].path] == "train"
        assert set(assigned.values()) == {"train", "test"}


def test_of_copies_one_is_counted():
    sources = [replace(each, sha256="S") for each in some(90, "a")] + some(9, "a", prefix="x")
    sources = [replace(each, path=f"{i}") for i, each in enumerate(sources)]
    assigned = assign_splits(sources, parse_fractions("0.5:0.5"), 0)
    assert Counter(assigned[f"{i}"] for i in range(89, 99)) == {"train": 5, "test": 5}


def test_depends_on_seed_and_bytes_only():
    sources = some(50, "a")
    assigned = assign_splits(sources, FRACTIONS, seed=1)
    shuffled = random.Random(0).sample(sources, len(sources))
    assert assign_splits(shuffled, FRACTIONS, seed=1) == assigned
    renamed = [replace(source, path="z" + source.path) for source in sources]
    assert list(assign_splits(renamed, FRACTIONS, seed=1).values()) == list(assigned.values())
    assert assign_splits(sources, FRACTIONS, seed=2) != assigned


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 30), st.sampled_from("abc"), st.sampled_from([None, "g", "h", "i"])
        ),
        max_size=60,
    ),
    st.lists(st.tuples(st.integers(0, 59), st.integers(0, 59)), max_size=3),
    st.integers(0, 5),
)
def test_never_leaks(rows, links, seed):
    """What has a group, bytes or pixels in common, or a link, is in one split."""
    labels, sources = {}, []
    for i, (content, label, group) in enumerate(rows):
        # Two contents have the pixels of one picture, in two formats.
        shown = labels.setdefault(content // 2, label)
        more = {"pixel_sha256": f"p{content // 2}"}
        sources.append(SplitSource(f"{i}.png", str(content), shown, group, **more))
    links = [(f"{i}.png", f"{j}.png") for i, j in links if max(i, j) < len(rows)]
    assigned = assign_splits(sources, FRACTIONS, seed, links=links)
    assert set(assigned) == {source.path for source in sources}
    check_leaks((assigned[s.path], s.sha256, s.group) for s in sources)
    check_leaks((assigned[s.path], s.pixel_sha256, s.group) for s in sources)
    assert all(assigned[one] == assigned[other] for one, other in links)


def test_the_same_bytes_or_pixels_with_two_labels_are_an_error():
    for one, other in (
        (SplitSource("b.png", "x", "1"), SplitSource("a.png", "x", "2")),
        (
            SplitSource("b", "x", "1", pixel_sha256="p"),
            SplitSource("a", "y", "2", pixel_sha256="p"),
        ),
    ):
        with pytest.raises(LabelError, match=rf"{one.path} has the same .* as {other.path}"):
            assign_splits([one, other], FRACTIONS, 0)


def test_chosen_splits_are_kept_and_checked():
    sources = [SplitSource("1", "x", "a", "g", "test"), SplitSource("2", "y", "a", "h", "train")]
    assert assign_splits(sources, FRACTIONS, 0) == {"1": "test", "2": "train"}
    with pytest.raises(LabelError, match="2 has the split None"):
        assign_splits([sources[0], replace(sources[1], split=None)], FRACTIONS, 0)
    with pytest.raises(LabelError, match="'val'"):
        assign_splits([replace(sources[0], split="val")], FRACTIONS, 0)
    with pytest.raises(SplitLeakError, match=r"1 \(test, group g\) and 2 \(train, group g\)"):
        assign_splits([sources[0], replace(sources[1], group="g")], FRACTIONS, 0)


def test_check_leaks_names_the_source():
    check_leaks([("train", "x", None), ("train", "x", "g"), ("test", "y", "h")])
    with pytest.raises(SplitLeakError, match="source x stands in the splits train and test"):
        check_leaks([("train", "x", None), ("test", "x", None)])


@pytest.mark.parametrize(
    "text", ["", "0.8", "0.8:0.3", "a:b", "0.7:0.1:0.1:0.1", "1.2:-0.2", "nan:1"]
)
def test_fractions_that_cannot_be_meant(text):
    with pytest.raises(ConfigurationError, match="add up to 1"):
        parse_fractions(text)


def torn_one_by_one(sources, kept, pairs, chosen):
    """What `split_conflicts` returns, found by looking at all units again after each source."""
    standing = {**chosen, **kept}
    tiles = {unit: Counter() for unit in range(len(sources))}
    units = connected_groups(sources, pairs)
    for number, unit in enumerate(units):
        for source in unit:
            if source.path not in kept:
                tiles[number][standing.get(source.path)] += source.weight
    left_out = set()
    for number, unit in enumerate(units):
        if len({standing[each.path] for each in unit if each.path in standing}) < 2:
            continue
        taken = [each for each in unit if each.path in kept]
        order = [each for each in unit if each.path not in kept]
        for source in sorted(order, key=lambda s: (-tiles[number][standing.get(s.path)], s.path)):
            both = [*taken, source]
            paths = {each.path for each in both}
            parts = connected_groups(both, [pair for pair in pairs if paths.issuperset(pair)])
            splits = [{standing[e.path] for e in part if e.path in standing} for part in parts]
            if max(map(len, splits)) > 1:
                left_out.add(source.path)
            else:
                taken = both
    return left_out


@given(st.data())
def test_a_new_source_is_left_out_if_what_was_taken_before_stands_in_another_split(data):
    names = [f"{number}" for number in range(data.draw(st.integers(1, 9)))]
    few = st.sampled_from([None, "x", "y"])
    sources = [
        SplitSource(
            name, name, "a", data.draw(few), None, data.draw(few), data.draw(st.integers(0, 3))
        )
        for name in names
    ]
    some = st.dictionaries(st.sampled_from(names), st.sampled_from(["train", "test"]))
    kept, chosen = data.draw(some), data.draw(some)
    chosen = {path: split for path, split in chosen.items() if path not in kept}
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names))))
    try:
        found = split_conflicts(sources, kept, pairs, chosen)
    except SplitLeakError:
        return
    assert set(found) == torn_one_by_one(sources, kept, pairs, chosen)


def test_a_wrong_line_of_a_table_about_a_long_series_takes_no_time():
    """Each image was compared with all before it: 100,000 of one group would have taken hours."""
    names = [f"{number}" for number in range(6000)]
    sources = [SplitSource(name, name, "a", group="video") for name in names]
    chosen = dict.fromkeys(names, "train") | {"17": "test"}
    clock = time.perf_counter()
    assert set(split_conflicts(sources, {}, [("0", "1")], chosen)) == {"17"}
    assert time.perf_counter() - clock < 20
