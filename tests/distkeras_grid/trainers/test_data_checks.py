"""What is found in the data before a run: labels, weights, splits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from distkeras_grid.errors import (
    ConfigurationError,
    DataError,
    EmptyDataError,
    LabelError,
    SchemaError,
    SplitLeakError,
)
from distkeras_grid.spark.columns import resolve_columns
from distkeras_grid.trainers.data_checks import inspect_training, inspect_validation, naming
from distkeras_grid.trainers.validation import collect

pytestmark = pytest.mark.spark

#: Three classes.
MODEL = SimpleNamespace(
    loss="sparse_categorical_crossentropy",
    outputs=[SimpleNamespace(name="output", shape=(None, 3), dtype="float32")],
)


@pytest.fixture(scope="module")
def frame(spark):
    return spark.range(12, numPartitions=3).selectExpr(
        "cast(id as float) as features", "cast(id % 3 as int) as label"
    )


def inspected(frame, weight=None):
    columns = resolve_columns(frame, "features", "label", weight)
    return inspect_training(frame, columns, MODEL)


def validated(frame, training):
    inspect_validation(frame, resolve_columns(frame, "features", "label"), MODEL, training)


def test_labels_are_checked_against_the_model(frame):
    assert inspected(frame).rows == 12
    with pytest.raises(LabelError, match=r"from 1 to 3, but .* takes 0 to 2"):
        inspected(frame.selectExpr("features", "label + 1 as label"))


@pytest.mark.parametrize("value", ["null", "double('NaN')", "-0.5", "double('Infinity')", "1e300"])
def test_weights_that_are_none_are_counted_with_the_users_name_of_the_column(frame, value):
    broken = frame.selectExpr("*", f"if(features < 2, {value}, 1.0) as `my.weight`")
    with pytest.raises(DataError, match=r"'my\.weight'.* 2 of 12 rows"):
        inspected(broken, "my.weight")


@pytest.mark.parametrize("value", ["0.0", "1", "label = 1", "float(2.5)"])
def test_weights_of_all_kinds_of_numbers(frame, value):
    plain = inspected(frame)
    assert inspected(frame.selectExpr("*", f"{value} as w"), "w") == plain


def test_weights_of_data_without_rows(frame):
    with pytest.raises(EmptyDataError, match="no rows"):
        inspected(frame.where("label > 5").selectExpr("*", "1.0 as w"), "w")


@pytest.mark.parametrize(
    ("columns", "kind", "match"),
    [
        (("features", "label + 1 as label"), LabelError, "from 1 to 3, but"),
        (("features", "nullif(label, 1) as label"), LabelError, "4 of 12 rows"),
        (("*", "if(label = 1, 'a', 'b') as split"), SplitLeakError, "more than one split"),
        (("*", "'train' as split"), SplitLeakError, r"split 'train', as .*\.drop\(\"split\"\)"),
    ],
)
def test_validation_data_are_checked_like_training_data(frame, columns, kind, match):
    training = inspected(frame.selectExpr("*", "'train' as split"))
    with pytest.raises(kind, match=match):
        validated(frame.selectExpr(*columns), training)


def test_validation_data_of_another_split_or_of_none(frame):
    training = inspected(frame.selectExpr("*", "'train' as split"))
    validated(frame.selectExpr("*", "'test' as split"), training)
    validated(frame, training)
    validated(frame.selectExpr("*", "'train' as split"), inspected(frame))


def test_rows_that_spark_may_not_bring_to_the_driver_are_refused(spark):
    conf = spark.sparkContext._jsc.sc().conf()
    frame = spark.range(200_000, numPartitions=2).selectExpr(
        "cast(rand() as float) as features", "cast(id % 2 as int) as label"
    )
    columns = resolve_columns(frame, "features", "label")
    conf.set("spark.driver.maxResultSize", "100k")
    try:
        with pytest.raises(ConfigurationError, match=r"maxResultSize.*data\.sample"):
            collect(frame, columns)
    finally:
        conf.remove("spark.driver.maxResultSize")
    assert len(collect(frame, columns).features[0]) == 200_000


def test_an_error_about_data_keeps_its_kind_and_its_cause():
    cause = SchemaError("no column")
    with pytest.raises(SchemaError) as caught, naming("validation_data"):
        raise cause
    assert str(caught.value) == "validation_data: no column"
    assert caught.value.__cause__ is cause
