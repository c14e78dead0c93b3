"""Labels and class weights against the model, before any worker starts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from distkeras_grid.errors import ConfigurationError, LabelError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.feeding.shapes import Port
from distkeras_grid.feeding.targets import LabelSummary, check_numbers
from distkeras_grid.spark.columns import Columns
from distkeras_grid.spark.row_partitioner import DataSummary
from distkeras_grid.trainers.labels import (
    check_classes,
    check_labels,
    fitted,
    losses_of,
    taken_by,
)


def columns(shape=()):
    field = Field("label", shape, "float32" if shape else "int64")
    return Columns((Field("image", (4,)),), (field,))


def output(size):
    return () if size is None else (Port("output", (size,)),)


def model(loss, *ports):
    """What the checks read of a compiled model."""
    outputs = [SimpleNamespace(name=p.name, shape=(None, *p.shape), dtype=p.dtype) for p in ports]
    return SimpleNamespace(loss=loss, outputs=outputs)


def summary(*spans):
    return DataSummary(10, ((0, 10),), tuple(LabelSummary(*span) for span in spans), ())


def checked(described, found, compiled):
    """Return the labels of a run, in the shapes in which the model takes them."""
    described = fitted(described, compiled)
    check_labels(described, found, compiled)
    return [None if label is None else label.shape for label in described.labels]


SPARSE, ONE_HOT = "sparse_categorical_crossentropy", "categorical_crossentropy"


@pytest.mark.parametrize(
    ("shape", "low", "high", "loss", "outputs", "match"),
    [
        ((), 0, 10, SPARSE, (10,), "from 0 to 10, but .* takes 0 to 9"),
        ((), -1, 9, SPARSE, (10,), "from -1 to 9"),
        ((10,), 0, 1, SPARSE, (10,), "Use categorical_crossentropy"),
        ((36,), 0, 1, SPARSE, (12, 3), r"shape \(12,\) .* values of shape \(36,\)"),
        ((), 0, 1, ONE_HOT, (10,), "Use sparse_categorical_crossentropy"),
        ((3,), 0, 1, ONE_HOT, (10,), r"\(10,\).*\(3,\)"),
        ((), 0, 2, "binary_crossentropy", (1,), "from 0 to 2"),
        ((5,), 0, 2, "mse", (1,), r"shape \(1,\) .* values of shape \(5,\)"),
        ((), 0, 2, "mse", (5,), "single numbers"),
        ((2,), 0, 2, "mae", (2, 2), r"\(2, 2\)"),
    ],
)
def test_labels_that_do_not_fit_name_the_column(shape, low, high, loss, outputs, match):
    with pytest.raises(LabelError, match=f"(?s)(?=.*'label').*{match}"):
        checked(columns(shape), summary((low, high)), model(loss, Port("output", outputs)))


def own(y, p):
    return p - y


@pytest.mark.parametrize(
    ("shape", "loss", "outputs", "taken"),
    [
        ((), SPARSE, (10,), ()),
        ((1,), SPARSE, (10,), (1,)),
        ((12,), SPARSE, (12, 3), (12,)),  # a class for each step
        ((8, 8), SPARSE, (8, 8, 3), (8, 8)),  # ... or pixel
        ((8, 8, 1), SPARSE, (8, 8, 3), (8, 8, 1)),
        ((64,), SPARSE, (8, 8, 3), (8, 8)),
        ((12,), SPARSE, (None, 3), (12,)),
        ((10,), ONE_HOT, (10,), (10,)),
        ((36,), ONE_HOT, (12, 3), (12, 3)),
        ((12, 3), ONE_HOT, (12, 3), (12, 3)),
        ((), "binary_crossentropy", (1,), ()),
        ((), "mse", (1,), ()),
        ((12,), "mse", (12, 1), (12,)),
        ((6,), "mse", (1, 6), (1, 6)),  # Keras would broadcast it over the batch
        ((6,), own, (1, 6), (1, 6)),
        ((5,), own, (1,), (5,)),
        ((4,), "ctc", (9, 3), (4,)),
        ((3,), SPARSE, None, (3,)),
    ],
)
def test_labels_that_fit_get_the_shape_of_the_output(shape, loss, outputs, taken):
    ports = () if outputs is None else (Port("output", outputs),)
    assert checked(columns(shape), summary((0, 1)), model(loss, *ports)) == [taken]


def test_numbers_that_a_loss_does_not_take_are_counted():
    port, found = Port("output", (3,)), LabelSummary(0, 2, missing=4, fractions=2)
    for loss, match in ((SPARSE, "NaN in 4 of 10 rows"), ("mse", "NaN in 4 of 10")):
        with pytest.raises(LabelError, match=match):
            check_numbers(Field("label", ()), 10, found, taken_by(loss, port))
    with pytest.raises(LabelError, match=r"integer labels.* other numbers in 2 of 10 rows"):
        check_numbers(Field("label", ()), 10, replace(found, missing=0), taken_by(SPARSE, port))
    check_numbers(Field("label", ()), 10, found, taken_by(own, port))


def test_an_output_of_unknown_size_leaves_the_range_of_the_labels_unchecked():
    checked(columns(), summary((0, 900)), model(SPARSE))
    checked(columns((3,)), summary((0, 1)), model(ONE_HOT))


@pytest.mark.parametrize("loss", [["mse", SPARSE], {"kind": SPARSE, "age": "mse"}])
def test_of_several_outputs_each_has_its_loss_and_its_labels(loss):
    compiled = model(loss, Port("age", (1,)), Port("kind", (3,)))
    both = Columns((), (Field("years", (), "float32"), Field("class", (), "int64")))
    checked(both, summary((0, 90), (0, 2)), compiled)
    with pytest.raises(LabelError, match=r"'class' run from 0 to 3, .* 0 to 2"):
        checked(both, summary((0, 90), (0, 3)), compiled)
    second = Columns((), (None, Field("class", (), "int64")))
    assert checked(second, summary((0, 2)), compiled) == [None, ()]


def test_an_output_without_a_loss_is_not_checked():
    outputs = (Port("age", (1,)), Port("kind", (3,)))
    assert losses_of({"kind": SPARSE, "age": "mse"}, outputs) == ("mse", SPARSE)
    assert losses_of("mse", outputs) == ("mse", "mse")
    assert losses_of({"age": "mse"}, outputs) == ("mse", None)
    assert losses_of(["mse"], outputs) == (None, None)


@pytest.mark.parametrize(
    ("size", "low", "high", "outputs", "number"),
    [
        ((), 0, 4, 5, 5),
        ((1,), 0, 4, 5, 5),
        ((), 0, 4, None, 5),
        ((), 0, 4, 5, -1),
        ((), 0, 0, 1, 2),
        ((3,), 0, 1, 3, 3),
    ],
)
def test_weights_of_classes_that_nobody_has_are_refused(size, low, high, outputs, number):
    with pytest.raises(ConfigurationError, match=f"names class {number}, .*'label'"):
        check_classes({0: 1.0, number: 2.0}, columns(size), summary((low, high)), output(outputs))


@pytest.mark.parametrize(
    ("size", "low", "high", "outputs", "number"),
    [
        ((), 0, 2, 5, 4),  # of the model's classes not all are in the data
        ((), 0, 4, None, 4),
        ((), 0, 0, 1, 1),  # one output, two classes
        ((), -1, 1, 1, -1),
        ((3,), 0, 1, None, 2),
    ],
)
def test_weights_of_known_classes(size, low, high, outputs, number):
    check_classes({0: 1.0, number: 2.0}, columns(size), summary((low, high)), output(outputs))
    check_classes(None, columns(size), summary((low, high)), output(outputs))
