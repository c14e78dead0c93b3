"""What every source of rows promises, wherever the rows lie: one suite, run for each.

A source of another kind adds a class with a `make` of its own, and must pass.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from distkeras_grid.errors import ConfigurationError, DataError
from distkeras_grid.feeding.batches import EpochSampler
from distkeras_grid.feeding.row_cache import RowCache
from distkeras_grid.feeding.schema import Field
from distkeras_grid.feeding.source import ArraySource, ClassWeightedSource, weighted_by
from distkeras_grid.rows import ALIGNMENT

ROWS = 23
FIELDS = (
    Field("image", (3, 5, 1), "uint8", scale=1 / 255),
    Field("size", (2,), "float32"),
    Field("word", (), "int32"),
)
LABELS = (Field("kind", (), "int64"), Field("place", (2,), "float32"))


def table(rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    features = (
        rng.integers(0, 256, (rows, 3, 5, 1), np.uint8),
        rng.normal(size=(rows, 2)).astype(np.float32),
        rng.integers(-9, 9, rows, np.int32),
    )
    labels = (np.arange(rows) % 3, rng.normal(size=(rows, 2)).astype(np.float32))
    return features, labels, rng.random(rows).astype(np.float32)


def batch_of(features, labels, weights, numbers):
    """The rows of these numbers as Spark brings them."""
    columns = {"row": pa.array(numbers), "hash": pa.array(numbers)}
    for place, array in enumerate(features):
        if array.dtype == np.uint8:
            values = pa.array([value.tobytes() for value in array[numbers]], pa.binary())
        else:
            values = pa.array(array[numbers].tolist(), as_arrow(array))
        columns[f"features_{place}"] = values
    for place, array in enumerate(labels):
        columns[f"label_{place}"] = pa.array(array[numbers].tolist(), as_arrow(array))
    if weights is not None:
        columns["weight"] = pa.array(weights[numbers])
    return pa.record_batch(columns)


def as_arrow(array):
    kind = pa.from_numpy_dtype(array.dtype)
    return kind if array.ndim == 1 else pa.list_(kind)


class SourceContract:
    """What holds for rows that an engine can train on."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder, self._made = tmp_path, []
        yield
        for source in self._made:
            if isinstance(source, RowCache):
                source.close()
                source.close()

    def make(self, features, labels, weights, fields, labelled):
        raise NotImplementedError

    def source(self, rows=ROWS, *, weighted=True):
        features, labels, weights = table(rows)
        weights = weights if weighted else None
        made = self.make(features, labels, weights, FIELDS, LABELS)
        self._made.append(made)
        return made, (features, labels, weights)

    @pytest.mark.parametrize("weighted", [True, False])
    def test_the_same_places_give_the_same_rows_whatever_holds_them(self, weighted):
        source, (features, labels, weights) = self.source(weighted=weighted)
        assert len(source) == ROWS
        window = [np.array([[22, 0, 7], [7, 7, 1]]), np.array([[3]])]
        blocks = list(source.blocks(window))
        assert [block.shape for block in blocks] == [(2, 3), (1, 1)]
        for places, block in zip(window, blocks, strict=True):
            expected = [*features, *labels, *([weights] if weighted else [])]
            assert len(block.x) == len(features)
            for array, stored in zip(block.arrays, expected, strict=True):
                assert array.dtype == stored.dtype
                np.testing.assert_array_equal(array, stored[places])
            assert (block.weight is None) is not weighted

    @pytest.mark.parametrize("window", [1, 3, None])
    def test_an_epoch_gives_every_row_once_with_a_shorter_last_batch(self, window):
        source, (features, _, _) = self.source()
        policy = EpochSampler(rows=len(source), batch_size=4, window=window)
        blocks = [b for each in policy.windows() for b in source.blocks(each.blocks)]
        assert blocks[-1].shape == (1, 3)
        seen = np.concatenate([block.x[1].reshape(-1, 2) for block in blocks])
        assert sorted(seen.tolist()) == sorted(features[1].tolist())

    def test_an_empty_seat_has_no_rows_and_gives_none(self):
        source, _ = self.source(rows=0)
        assert len(source) == 0
        assert list(source.blocks([])) == []
        with pytest.raises(IndexError):
            list(source.blocks([np.array([[0]])]))

    @pytest.mark.parametrize("place", [-1, ROWS, -ROWS - 1])
    def test_a_row_that_is_not_there_is_refused(self, place):
        source, _ = self.source()
        with pytest.raises(IndexError):
            list(source.blocks([np.array([[0, place]])]))

    def test_an_engine_can_share_the_memory_of_every_array(self):
        source, _ = self.source()
        window = [np.arange(places).reshape(1, -1) for places in range(1, ROWS)]
        for block in source.blocks(window):
            for array in block.arrays:
                assert array.ctypes.data % ALIGNMENT == 0
                assert array.flags.c_contiguous
                assert array.flags.writeable
                assert array.dtype.isnative

    def test_a_block_belongs_to_its_receiver(self):
        source, (features, labels, weights) = self.source()
        kept = [array.copy() for array in (*features, *labels, weights)]
        places = np.arange(ROWS)[np.newaxis]
        (first,) = source.blocks([places])
        for array in first.arrays:
            array[...] = 1
        (second,) = source.blocks([places])
        for array, stored in zip(second.arrays, kept, strict=True):
            np.testing.assert_array_equal(array[0], stored)
        for one, other in zip(first.arrays, second.arrays, strict=True):
            assert not np.shares_memory(one, other)

    def test_the_only_copy_of_a_row_is_the_block_and_one_block_is_made_at_a_time(self):
        """Large rows, so that they stand out from everything else that is allocated."""
        field, rows, size = Field("image", (64, 64), "uint8"), 200, 64 * 64
        pixels = np.random.default_rng(1).integers(0, 256, (rows, 64, 64), np.uint8)
        source = self.make((pixels,), (np.arange(rows),), None, (field,), LABELS[:1])
        self._made.append(source)
        window = [np.random.default_rng(n).permutation(rows).reshape(4, 50) for n in range(5)]
        tracemalloc.start()
        try:
            for block in source.blocks(window):
                assert block.samples == rows
                del block
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert rows * size < peak < 1.1 * rows * size

    @pytest.mark.tensorflow
    def test_tensorflow_reads_the_blocks_where_they_are(self):
        from distkeras_grid.engine.tensorflow import to_tensor

        source, _ = self.source()
        (block,) = source.blocks([np.array([[5, 1, 2]])])
        for array in block.arrays:
            tensor = to_tensor(array)
            assert np.asarray(memoryview(tensor)).ctypes.data == array.ctypes.data


class TestArrays(SourceContract):
    def make(self, features, labels, weights, fields, labelled):
        return ArraySource(features, labels, weights, fields=fields, label_fields=labelled)


class TestStridedArraysOfForeignByteOrder(SourceContract):
    """NumPy copies such an array as a whole to take a few rows of it."""

    def make(self, features, labels, weights, fields, labelled):
        def awkward(array):
            double = np.zeros((2 * len(array), *array.shape[1:]), array.dtype.newbyteorder(">"))
            double[::2] = array
            return double[::2]

        return ArraySource(
            [awkward(array) for array in features],
            [awkward(array) for array in labels],
            None if weights is None else awkward(weights),
            fields=fields,
            label_fields=labelled,
        )


class TestMappedSpool(SourceContract):
    mapped_bytes = 1 << 20

    def make(self, features, labels, weights, fields, labelled):
        spool = RowCache(fields, labelled, self.folder, self.mapped_bytes)
        order = np.random.default_rng(7).permutation(len(labels[0]))
        for numbers in np.array_split(order, 3):
            spool.append(batch_of(features, labels, weights, numbers))
        spool.seal()
        return spool


class TestReadSpool(TestMappedSpool):
    mapped_bytes = 0


class TestPartOfArrays(SourceContract):
    def make(self, features, labels, weights, fields, labelled):
        """Every other row of twice as many, backwards."""

        def hidden(array):
            double = np.zeros((2 * len(array), *array.shape[1:]), array.dtype)
            double[::-2] = array
            return double

        rows = ArraySource(
            [hidden(array) for array in features],
            [hidden(array) for array in labels],
            None if weights is None else hidden(weights),
            fields=fields,
            label_fields=labelled,
        )
        return rows.part(np.arange(len(rows))[::-2])


# -- what is special about one of them ----------------------------------------------------------


def test_arrays_are_held_and_not_copied():
    features, labels, weights = table()
    source = ArraySource(features, labels, weights)
    for held, given in zip(
        (*source.features, *source.labels, source.weights),
        (*features, *labels, weights),
        strict=True,
    ):
        assert np.shares_memory(held, given)


def test_arrays_describe_themselves():
    source = ArraySource([np.zeros((2, 3)), np.zeros(2, np.int16)], [np.zeros(2)])
    assert source.fields == (Field("features_0", (3,), "float64"), Field("features_1", (), "int16"))
    assert source.label_fields == (Field("label_0", (), "float64"),)


@pytest.mark.parametrize(
    ("features", "labels", "weights"),
    [
        ([np.zeros((2, 1))], [np.zeros(3)], None),
        ([np.zeros((2, 1))], [np.zeros(2)], np.zeros(3)),
        ([np.zeros((2, 1)), np.zeros(1)], [np.zeros(2)], None),
        ([np.zeros(())], [np.zeros(())], None),
        ([], [np.zeros(2)], None),
    ],
)
def test_arrays_of_unequal_length_are_no_rows(features, labels, weights):
    with pytest.raises(DataError):
        ArraySource(features, labels, weights)


def test_features_that_no_field_describes_are_refused():
    with pytest.raises(ConfigurationError):
        ArraySource([np.zeros((2, 1), complex)], [np.zeros(2)])


def test_a_part_of_rows_that_are_not_there_is_refused():
    features, labels, _ = table()
    for places in ([ROWS], [-1]):
        with pytest.raises(IndexError):
            ArraySource(features, labels).part(np.array(places))


def test_a_spool_tells_the_types_that_came_and_not_those_that_were_thought():
    with RowCache((Field("x", (2,), "uint8"),), LABELS[:1]) as spool:
        columns = {"row": [0], "hash": [0], "features_0": [[1.5, 2.5]], "label_0": [1]}
        spool.append(pa.record_batch({name: pa.array(values) for name, values in columns.items()}))
        spool.seal()
        (block,) = spool.blocks([np.array([[0]])])
    assert block.x[0].dtype == np.float32


def test_a_label_that_is_a_feature_is_sent_and_kept_once():
    features, _, _ = table()
    with RowCache(FIELDS, (LABELS[0], FIELDS[0])) as spool:
        spool.append(batch_of(features, [np.arange(ROWS)], None, np.arange(ROWS)))
        spool.seal()
        (block,) = spool.blocks([np.array([[4, 2]])])
    assert block.y[1] is block.x[0]
    assert block.y[0].tolist() == [[4, 2]]


def test_a_spool_that_is_not_sealed_gives_no_rows():
    features, labels, weights = table()
    with RowCache(FIELDS, LABELS) as spool:
        spool.append(batch_of(features, labels, weights, np.arange(ROWS)))
        with pytest.raises(IndexError):
            list(spool.blocks([np.array([[0]])]))


# -- class weights ------------------------------------------------------------------------------

CLASS_WEIGHT = {0: 2.0, 2: 0.25}


@pytest.mark.parametrize(
    "labels",
    [
        np.array([0, 1, 2], np.int64),
        np.array([0.0, 1.0, 2.0]),
        np.array([[0], [1], [2]], np.int64),
        np.array([[0.0], [0.999], [2.0]], np.float32),
        np.eye(3, dtype=np.float32),
    ],
)
@pytest.mark.parametrize("weights", [None, np.array([1.0, 2.0, 4.0], np.float32)])
def test_class_weights_of_labels_of_all_kinds(labels, weights):
    rows = ArraySource([np.zeros((3, 1))], [labels], weights)
    weighted = weighted_by(rows, CLASS_WEIGHT)
    assert len(weighted) == 3
    expected = np.array([2.0, 1.0, 0.25]) * (1.0 if weights is None else weights)
    for places in (np.array([[2, 0], [1, 1]]), np.array([[1]])):
        (block,) = weighted.blocks([places])
        assert block.weight.dtype == np.float32
        assert block.weight.ctypes.data % ALIGNMENT == 0
        np.testing.assert_array_equal(block.weight, expected[places])
        np.testing.assert_array_equal(block.y[0], labels[places])


def test_without_class_weights_the_source_stays():
    rows = ArraySource([np.zeros((3, 1))], [np.zeros(3)])
    assert weighted_by(rows, None) is rows
    assert isinstance(weighted_by(rows, {}), ClassWeightedSource)
