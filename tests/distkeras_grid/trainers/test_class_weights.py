from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError, LabelError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.feeding.targets import LabelSummary
from distkeras_grid.spark.columns import Columns
from distkeras_grid.spark.row_partitioner import DataSummary
from distkeras_grid.trainers.class_weights import (
    balanced_weights,
    by_numbers,
    count_classes,
    count_in_array,
    number_classes,
    settle_class_weight,
)

NAMES = ("dark", "gray", "light")
MODEL = SimpleNamespace(outputs=[SimpleNamespace(name="output", shape=(None, 3), dtype="float32")])


def settle(asked, names=NAMES, counts=None):
    columns = Columns((Field("image", (4,), classes=names),), (Field("label", (), "int64"),))
    summary = DataSummary(10, ((0, 10),), (LabelSummary(0, 2),), ())

    def count():
        if counts is None:
            pytest.fail("counted for nothing")
        return counts

    return settle_class_weight(number_classes(asked, columns), columns, summary, MODEL, count)


def test_balanced_classes_weigh_the_same_and_a_row_one_in_the_mean():
    """Checked with scikit-learn 1.9: compute_class_weight("balanced", ...) of these rows."""
    counts = {0: 50, 2: 30, 1: 20}
    weights = balanced_weights(counts)
    assert weights == pytest.approx({0: 2 / 3, 1: 5 / 3, 2: 10 / 9})
    assert len({round(weights[number] * counts[number], 9) for number in counts}) == 1
    assert sum(weights[number] * counts[number] for number in counts) == pytest.approx(100)


def test_classes_are_known_by_number_and_by_name():
    assert settle(None) is None
    assert settle({"light": 3.0, 0: 2.0}) == {2: 3.0, 0: 2.0}
    assert settle("balanced", counts={0: 6, 1: 2, 2: 4}) == {0: 2 / 3, 1: 2.0, 2: 1.0}


@pytest.mark.parametrize(
    ("asked", "names", "match"),
    [
        ({"lite": 2.0}, NAMES, "'lite'.*dark, gray, light"),
        ({"light": 2.0}, (), "'light'"),
        ({"1": 2.0}, (), "'1'"),
        ({"light": 2.0, 2: 1.0}, NAMES, "class 2 by its number and by its name"),
        ({3: 2.0}, NAMES, "names class 3, .* from 0 to 2"),
    ],
)
def test_classes_that_the_data_do_not_have_are_refused(asked, names, match):
    with pytest.raises(ConfigurationError, match=match):
        settle(asked, names)


def test_a_class_whose_name_is_a_number_is_not_that_number():
    assert by_numbers({"10": 2.0}, ("1", "10", "2")) == {1: 2.0}


@pytest.mark.parametrize(
    ("labels", "counts"),
    [
        ([1, 0, 1, 1], {0: 1, 1: 3}),
        ([1.0, 0.0, 2.0, 2.0], {0: 1, 1: 1, 2: 2}),
        ([[1], [0], [1], [1]], {0: 1, 1: 3}),
        ([[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0]], {0: 1, 1: 3}),
    ],
)
@pytest.mark.spark
def test_classes_are_counted_in_arrays_as_in_columns(spark, labels, counts):
    assert count_in_array("label", np.array(labels)) == counts
    several = isinstance(labels[0], list)
    kind = "double" if isinstance(labels[0], float) else "int"
    frame = spark.createDataFrame(
        [(each,) for each in labels], f"label {f'array<{kind}>' if several else kind}"
    )
    shape = (len(labels[0]),) if several else ()
    label = Field("label", shape, "int64" if kind == "int" else "float32")
    assert count_classes(frame, label) == counts


@pytest.mark.spark
def test_labels_that_are_no_classes_cannot_be_balanced(spark):
    values = [0.5, 1.0, 2.5]
    frame = spark.createDataFrame([(each,) for each in values], "label double")
    with pytest.raises(LabelError, match="2 rows of column 'label'"):
        count_classes(frame, Field("label", (), "float32"))
    with pytest.raises(LabelError, match="2 rows of column 'label'"):
        count_in_array("label", np.array(values))
