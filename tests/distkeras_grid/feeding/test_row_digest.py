import numpy as np
import pytest

from distkeras_grid.feeding.row_digest import RowDigest, hashes_of, hashes_of_contents

ROWS = 50
NUMBERS = np.arange(ROWS)
FEATURES = np.random.default_rng(1).normal(size=(ROWS, 3, 5)).astype(np.float32)
LABELS = NUMBERS % 4


def digest(numbers=NUMBERS, features=FEATURES, labels=LABELS, batch=ROWS):
    found = RowDigest()
    for start in range(0, len(numbers), batch):
        part = slice(start, start + batch)
        found.add(numbers[part], [hashes_of(labels[part]), hashes_of(features[part])])
    return found.hexdigest()


def test_the_order_of_rows_and_batches_does_not_matter():
    order = np.random.default_rng(2).permutation(ROWS)
    for batch in (1, 7, ROWS):
        assert digest(NUMBERS[order], FEATURES[order], LABELS[order], batch) == digest()


def changed(array, place, value):
    other = array.copy()
    other[place] = value
    return other


@pytest.mark.parametrize(
    "other",
    [
        {"numbers": NUMBERS + 1},
        {"numbers": changed(NUMBERS, [0, 1], [1, 0])},
        {"labels": changed(LABELS, 3, 9)},
        {"labels": changed(LABELS, [0, 1], LABELS[[1, 0]])},
        {"features": changed(FEATURES, (0, 0, 0), 0)},
        {"features": changed(FEATURES, [0, 1], FEATURES[[1, 0]])},
        {"features": FEATURES[:, ::-1]},
        {"numbers": NUMBERS[:-1], "features": FEATURES[:-1], "labels": LABELS[:-1]},
    ],
)
def test_other_rows_have_another_digest(other):
    assert digest(**other) != digest()


def test_equal_rows_do_not_cancel():
    same = np.zeros((ROWS, 2), np.float32)
    assert len({digest(NUMBERS[:n], same[:n], LABELS[:n] * 0) for n in range(1, 10)}) == 9


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (4,), (4, 1), (4, 7), (4, 8), (4, 9)])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64", "bool"])
def test_any_row_has_a_hash(shape, dtype):
    values = np.ones(shape, dtype)
    assert hashes_of(values).shape == (len(values),)


def test_contents_are_told_apart():
    hashes = hashes_of_contents([b"", b"a", b"b", b"a"])
    assert len(set(hashes.tolist())) == 3
    assert hashes_of_contents([]).shape == (0,)
