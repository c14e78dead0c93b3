import itertools

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.weights import (
    StateSection,
    Variable,
    WeightLayout,
    shard_sections,
    vector_size,
)

LAYOUT = WeightLayout(
    trainable=(Variable("a/kernel", (2, 3)), Variable("a/scale", ())),
    statistics=(Variable("bn/mean", (4,)),),
)
STATE = StateSection(
    (
        Variable("iteration", (), "int64"),
        Variable("key", (3,), "uint32"),
        Variable("slot", (2, 1)),
        Variable("none", (0,)),
    )
)


def test_sections_are_slices_in_order_each_with_its_policy():
    found = [(each.name, each.policy, each.span) for each in LAYOUT.sections]
    assert found == [
        ("trainable", "rule", slice(0, 7)),
        ("statistics", "average", slice(7, 11)),
    ]
    assert (LAYOUT.trainable_size, LAYOUT.statistics_size, LAYOUT.size) == (7, 4, 11)


@pytest.mark.parametrize("cuts", [[0, 11], [0, 3, 11], [0, 7, 9, 11], [0, 8, 9, 10, 11]])
def test_shards_cover_each_section_once(cuts):
    """Each number of the vector stands in one shard, in the same section, in the same order."""
    vector, found = np.arange(11), {"trainable": [], "statistics": []}
    for start, stop in itertools.pairwise(cuts):
        shard = vector[start:stop]
        sections = shard_sections(LAYOUT.sections, start, stop)
        assert vector_size(sections) == shard.size
        for section in sections:
            found[section.name] += shard[section.span].tolist()
    assert found == {each.name: vector[each.span].tolist() for each in LAYOUT.sections}


def test_a_vector_holds_no_other_type_than_float32():
    with pytest.raises(ConfigurationError):
        WeightLayout((Variable("iteration", (), "int64"),))


def test_state_keeps_every_type_bit_for_bit():
    arrays = [np.int64(2**53 + 1), np.array([1, 2, 2**32 - 1], np.uint32), np.ones((2, 1), "f")]
    arrays.append(np.empty(0, np.float32))
    data = STATE.pack(arrays)
    assert data.nbytes == STATE.nbytes == 8 + 12 + 8
    for array, given in zip(STATE.unpack(data), arrays, strict=True):
        assert array.dtype == given.dtype
        np.testing.assert_array_equal(array, given)


def test_state_of_another_form_is_refused():
    good = [np.int64(1), np.zeros(3, np.uint32), np.ones((2, 1), "f"), np.empty(0, np.float32)]
    for number, wrong in ((0, np.int32(1)), (1, np.zeros(2, np.uint32)), (2, np.ones((2, 1)))):
        with pytest.raises(ConfigurationError):
            STATE.pack([*good[:number], wrong, *good[number + 1 :]])
    with pytest.raises(ConfigurationError):
        STATE.pack(good[:3])
    with pytest.raises(ConfigurationError):
        STATE.unpack(np.zeros(STATE.nbytes + 1, np.uint8))


@pytest.mark.parametrize("dtype", ["no type", "object", "U3", "complex64"])
def test_a_state_of_other_types_is_refused(dtype):
    with pytest.raises(ConfigurationError):
        StateSection((Variable("a", (1,), dtype),))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_state_is_finite_if_its_floats_are(dtype, value):
    section = StateSection((Variable("count", (), "int64"), Variable("slot", (2,), dtype)))
    for count in (0, -1, 2**62):
        good = [np.int64(count), np.array([1, -2], dtype)]
        assert section.is_finite(section.pack(good))
        assert not section.is_finite(section.pack([good[0], np.array([1, value], dtype)]))


def test_names_do_not_make_another_state():
    renamed = StateSection(tuple(Variable("other", v.shape, v.dtype) for v in STATE.variables))
    assert STATE.is_like(renamed)
    assert not STATE.is_like(StateSection(STATE.variables[1:]))
    assert not STATE.is_like(StateSection(STATE.variables[::-1]))
    assert not StateSection((Variable("a", ()),)).is_like(StateSection((Variable("a", (1,)),)))


def test_flatten_then_unflatten_gives_the_arrays_back_as_views():
    arrays = [np.arange(6.0).reshape(2, 3), np.float64(7), np.arange(4.0)]
    vector = LAYOUT.flatten(arrays)
    assert vector.dtype == np.float32
    for array, view in zip(arrays, LAYOUT.unflatten(vector), strict=True):
        np.testing.assert_array_equal(array, view)
        view[...] = 1
    assert vector.sum() == 11


def test_wrong_arrays_are_refused():
    for arrays in ([np.zeros((2, 3))], [np.zeros((3, 2)), np.zeros(()), np.zeros(4)]):
        with pytest.raises(ConfigurationError):
            LAYOUT.flatten(arrays)
    with pytest.raises(ConfigurationError):
        LAYOUT.unflatten(np.zeros(10, np.float32))
