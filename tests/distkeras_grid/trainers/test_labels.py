"""Labels and class weights against the model, before any worker starts."""

from __future__ import annotations

import pytest

from distkeras_grid.errors import ConfigurationError, LabelError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.feeding.shapes import Port
from distkeras_grid.spark.columns import Columns, Label
from distkeras_grid.spark.seats import DataSummary
from distkeras_grid.trainers.labels import check_classes, check_labels, losses_of


def columns(size=None):
    return Columns((Field("image", (4,)),), (Label("label", size, integer=size is None),))


def output(size):
    return () if size is None else (Port("output", (size,)),)


def summary(low, high):
    return DataSummary(10, ((0, 10),), ((low, high),), ())


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
        check_labels(columns(size), summary(low, high), loss, output(outputs))


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
    check_labels(columns(size), summary(low, high), loss, output(outputs))


def test_an_output_of_unknown_size_leaves_the_range_of_the_labels_unchecked():
    check_labels(columns(), summary(0, 900), "sparse_categorical_crossentropy", ())
    check_labels(columns(3), summary(0, 1), "categorical_crossentropy", ())


@pytest.mark.parametrize(
    "loss",
    [
        ["mse", "sparse_categorical_crossentropy"],
        {"kind": "sparse_categorical_crossentropy", "age": "mse"},
    ],
)
def test_of_several_outputs_each_has_its_loss_and_its_labels(loss):
    outputs = (Port("age", (1,)), Port("kind", (3,)))
    both = Columns((), (Label("years", None, integer=False), Label("class", None, integer=True)))

    def ranges(*spans):
        return DataSummary(10, ((0, 10),), spans, ())

    check_labels(both, ranges((0, 90), (0, 2)), loss, outputs)
    with pytest.raises(LabelError, match=r"'class' run from 0 to 3, .* 3 classes"):
        check_labels(both, ranges((0, 90), (0, 3)), loss, outputs)


def test_an_output_without_a_loss_is_not_checked():
    outputs = (Port("age", (1,)), Port("kind", (3,)))
    assert losses_of({"age": "mse"}, outputs) == ("mse", None)
    assert losses_of(["mse"], outputs) == (None, None)


@pytest.mark.parametrize(
    ("size", "low", "high", "outputs", "number"),
    [
        (None, 0, 4, 5, 5),
        (1, 0, 4, 5, 5),
        (None, 0, 4, None, 5),
        (None, 0, 4, 5, -1),
        (None, 0, 0, 1, 2),
        (3, 0, 1, 3, 3),
    ],
)
def test_weights_of_classes_that_nobody_has_are_refused(size, low, high, outputs, number):
    with pytest.raises(ConfigurationError, match=f"names class {number}, .*'label'"):
        check_classes({0: 1.0, number: 2.0}, columns(size), summary(low, high), output(outputs))


@pytest.mark.parametrize(
    ("size", "low", "high", "outputs", "number"),
    [
        (None, 0, 2, 5, 4),  # of the model's classes not all are in the data
        (None, 0, 4, None, 4),
        (None, 0, 0, 1, 1),  # one output, two classes
        (None, -1, 1, 1, -1),
        (3, 0, 1, None, 2),
    ],
)
def test_weights_of_known_classes(size, low, high, outputs, number):
    check_classes({0: 1.0, number: 2.0}, columns(size), summary(low, high), output(outputs))
    check_classes(None, columns(size), summary(low, high), output(outputs))
