"""Labels and features against the model, before any worker starts."""

from __future__ import annotations

import pytest

from distkeras_grid.errors import LabelError, SchemaError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.dataframes import Columns
from distkeras_grid.spark.seats import DataSummary
from distkeras_grid.trainers.labels import check_features, check_labels


def columns(size=None):
    return Columns(Field("image", (4,)), "label", size, integer_labels=size is None)


def summary(low, high):
    return DataSummary(10, ((0, 10),), low, high, ())


@pytest.mark.parametrize(
    ("size", "low", "high", "loss", "outputs"),
    [
        (None, 0, 10, "sparse_categorical_crossentropy", 10),
        (None, -1, 9, "sparse_categorical_crossentropy", 10),
        (10, 0, 1, "sparse_categorical_crossentropy", 10),
        (None, 0, 1, "categorical_crossentropy", 10),
        (3, 0, 1, "categorical_crossentropy", 10),
        (None, 0, 2, "binary_crossentropy", 1),
    ],
)
def test_labels_outside_the_range_name_the_column(size, low, high, loss, outputs):
    with pytest.raises(LabelError, match="label"):
        check_labels(columns(size), summary(low, high), loss, (None, outputs))


@pytest.mark.parametrize(
    ("size", "low", "high", "loss", "outputs"),
    [
        (None, 0, 9, "sparse_categorical_crossentropy", 10),
        (10, 0, 1, "categorical_crossentropy", 10),
        (None, 0, 1, "binary_crossentropy", 1),
        (None, -50, 900, "mse", 1),
        (None, -50, 900, lambda y, p: p - y, 1),
    ],
)
def test_labels_that_fit(size, low, high, loss, outputs):
    check_labels(columns(size), summary(low, high), loss, (None, outputs))


def test_features_of_another_shape_print_the_field():
    with pytest.raises(SchemaError, match=r"\(28, 28, 1\)"):
        check_features(Field("image", (784,)), (None, 28, 28, 1))


def test_a_free_axis_takes_any_size():
    check_features(Field("image", (30, 28, 1)), (None, None, 28, 1))
