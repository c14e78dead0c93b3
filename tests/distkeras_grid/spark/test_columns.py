"""Columns of every kind that users bring: what they are, and how tasks read them."""

from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException

from distkeras_grid.errors import ConfigurationError, EmptyDataError, SchemaError
from distkeras_grid.feeding.arrays import features_from_arrow
from distkeras_grid.feeding.schema import Field
from distkeras_grid.feeding.targets import Takes
from distkeras_grid.spark.columns import (
    Columns,
    map_batches,
    resolve_columns,
    resolve_features,
    value_expression,
)
from distkeras_grid.spark.row_partitioner import summarize

pytestmark = pytest.mark.spark


def tensors(*shapes, dtype="float32"):
    return [
        SimpleNamespace(name=f"end_{n}", shape=(None, *shape), dtype=dtype)
        for n, shape in enumerate(shapes)
    ]


def model(*inputs, outputs=((1,),), dtype="float32"):
    """What is read of a Keras model."""
    return SimpleNamespace(inputs=tensors(*inputs, dtype=dtype), outputs=tensors(*outputs))


@pytest.fixture(scope="module")
def frame(spark):
    return spark.sql(
        """
        SELECT 1.0D AS c0, 2 AS c1, 3L AS `c.2`, array(array(1, 2, 3), array(4, 5, 6)) AS nested,
               array(1, 2) AS words, 0.5D AS y, 'a b' AS text, 3000000000L AS id, 0 AS label,
               X'0102' AS mask
        UNION ALL
        SELECT 4.0D, 5, 6L, array(array(1, 2, 3), array(4, 5, 7)), array(7, 8, 9), 1.5D, 'c', 4L, 1,
               X'0300'
        """
    ).cache()


def read(frame, field):
    """The values of a column as a task reads them."""
    (batch,) = frame.coalesce(1).select(value_expression(frame, field)).toArrow().to_batches()
    return features_from_arrow(batch.column(0), field)


def test_a_class_of_the_users_takes_as_many_inputs_as_there_are_columns(frame):
    found = resolve_features(frame, ["nested", "y"])
    assert [each.shape for each in found] == [(2, 3), (1,)]


def test_arrays_of_arrays_have_their_shape(frame):
    (field,) = resolve_features(frame, "nested", model((2, 3)))
    assert field.shape == (2, 3)
    assert read(frame, field)[1].tolist() == [[1, 2, 3], [4, 5, 7]]


def test_text_is_refused_with_the_way(frame):
    for columns in (("text", "y"), ("y", "text")):
        with pytest.raises(SchemaError, match=r"StringIndexer.*TextVectorization"):
            resolve_columns(frame, *columns)


def test_whole_numbers_beyond_32_bits_name_their_column(frame):
    (field,) = resolve_features(frame, "id", model((1,), dtype="int32"))
    with pytest.raises(PySparkException, match=r"Column 'id' has whole numbers beyond 32 bits"):
        frame.select(value_expression(frame, field)).collect()
    small = frame.where("id < 5")
    assert read(small, field).tolist() == [[4]]


@pytest.mark.parametrize("dtype", ["int64", "uint32", "uint64"])
def test_whole_numbers_for_an_input_of_whole_numbers_keep_their_digits(frame, dtype):
    (field,) = resolve_features(frame, "id", model((1,), dtype=dtype))
    assert frame.select(value_expression(frame, field)).first()[0] == [3_000_000_000]


def test_a_mask_is_a_label_by_its_field_and_a_feature_is_one_by_its_name(frame):
    mask = Field("mask", (2,))
    columns = resolve_columns(frame, "y", mask, model=model((1,)))
    assert columns.labels == (mask,)
    own = resolve_columns(frame, mask, "mask", model=model((2,)))
    assert own.labels == own.features
    with pytest.raises(SchemaError, match=r"label_col=Field\(\"mask\""):
        resolve_columns(frame, "y", "mask")
    with pytest.raises(SchemaError, match=r"features_col=Field\(\"mask\", shape="):
        resolve_features(frame, "mask")
    assert resolve_features(frame, mask) == (mask,)


def test_outputs_that_need_no_label(frame):
    two = model((1,), outputs=[(1,), (4,)])
    columns = resolve_columns(frame, "y", "label", model=two, losses=["mse", None])
    assert [label and label.name for label in columns.labels] == ["label", None]
    assert resolve_columns(frame, "y", None, model=two, losses=[None, None]).labels == ()
    with pytest.raises(ConfigurationError, match="nothing for 'end_0'"):
        resolve_columns(frame, "y", {"end_1": "label"}, model=two, losses=["mse", None])


def test_the_numbers_of_all_labels_are_seen_in_one_job(frame):
    labels = {"label": Takes(ignored=0), "y": Takes(whole=True), "nested": Takes()}
    fields = [resolve_columns(frame, "y", label).labels[0] for label in labels]
    columns = Columns((), (*fields, Field("mask", (2,))))
    summary = summarize(frame, columns, [*labels.values(), Takes(whole=True)])
    numbers = [(each.low, each.high, each.missing, each.fractions) for each in summary.labels]
    assert numbers == [(1, 1, 0, 0), (0.5, 1.5, 0, 2), (1, 7, 0, 0), (0, 3, 0, 0)]
    assert summary.rows == 2


def test_data_without_rows_are_told_so(frame):
    with pytest.raises(EmptyDataError):
        resolve_features(frame.where("c1 > 9"), "words")


def test_tasks_read_columns_whose_names_have_dots_and_spaces(frame):
    odd = frame.selectExpr("`c.2`", "c0 AS `a b`")
    same = map_batches(odd, lambda batches: batches, odd.schema)
    assert same.collect() == odd.collect()
    assert same.columns == ["c.2", "a b"]
