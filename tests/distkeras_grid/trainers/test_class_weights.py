from __future__ import annotations

from types import SimpleNamespace

import pytest

from distkeras_grid.errors import ConfigurationError, LabelError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.feeding.targets import LabelSummary
from distkeras_grid.spark.columns import Columns
from distkeras_grid.spark.row_partitioner import DataSummary
from distkeras_grid.trainers.class_weights import (
    balanced_weights,
    count_classes,
    settle_class_weight,
)

MODEL = SimpleNamespace(outputs=[SimpleNamespace(name="output", shape=(None, 3), dtype="float32")])


def settle(asked, counts=None):
    columns = Columns((Field("image", (4,)),), (Field("label", (), "int64"),))
    summary = DataSummary(10, ((0, 10),), (LabelSummary(0, 2),), ())

    def count():
        if counts is None:
            pytest.fail("counted for nothing")
        return counts

    return settle_class_weight(asked, columns, summary, MODEL, count)


def test_balanced_classes_weigh_the_same_and_a_row_one_in_the_mean():
    """Checked with scikit-learn 1.9: compute_class_weight("balanced", ...) of these rows."""
    counts = {0: 50, 2: 30, 1: 20}
    weights = balanced_weights(counts)
    assert weights == pytest.approx({0: 2 / 3, 1: 5 / 3, 2: 10 / 9})
    assert len({round(weights[number] * counts[number], 9) for number in counts}) == 1
    assert sum(weights[number] * counts[number] for number in counts) == pytest.approx(100)


def test_weights_are_given_or_balanced():
    assert settle(None) is None
    assert settle({2: 3.0, 0: 2.0}) == {2: 3.0, 0: 2.0}
    assert settle("balanced", counts={0: 6, 1: 2, 2: 4}) == {0: 2 / 3, 1: 2.0, 2: 1.0}


def test_a_class_that_the_data_do_not_have_is_refused():
    with pytest.raises(ConfigurationError, match=r"names class 3, .* from 0 to 2"):
        settle({3: 2.0})


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
def test_classes_are_counted_in_columns_of_all_kinds(spark, labels, counts):
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
