"""What tasks say of the rows and labels of a batch; needs Arrow, and no JVM."""

import math

import pyarrow as pa
import pytest

from distkeras_grid.errors import LabelError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.feeding.targets import LabelSummary, Takes
from distkeras_grid.spark.label_columns import (
    SUMMARIES,
    count_broken,
    merge_summaries,
    summarize_batches,
    summarize_label,
)

NUMBER, PAIR = Field("y", (), "int64"), Field("y", (2,), "float32")
MASK = Field("y", (2,))
MASKS = pa.array([b"\1\2", b"\3\0"])
NAN = math.nan


@pytest.mark.parametrize(
    ("column", "label", "takes", "expected"),
    [
        (pa.array([0, 1]), NUMBER, Takes(), (0, 1, 0, 0)),
        (pa.array([0, 1]), NUMBER, Takes(ignored=0), (1, 1, 0, 0)),
        (pa.array([0.5, NAN, 2.0]), Field("y", (), "float32"), Takes(), (0.5, 2, 1, 1)),
        (pa.array([[1.0, 7.0], [2.5, 3.5]]), PAIR, Takes(), (1, 7, 0, 1)),
        (MASKS, MASK, Takes(whole=True), (0, 3, 0, 0)),
        (MASKS, MASK, Takes(whole=True, ignored=3), (0, 2, 0, 0)),
    ],
)
def test_the_numbers_of_labels(column, label, takes, expected):
    assert summarize_label(column, label, takes) == (*expected, 0)


def test_bytes_that_the_loss_takes_whatever_they_are_stay_encoded():
    images = Field("y", (1, 2, 1), encoding="png")
    low, *_, broken = summarize_label(pa.array([b"no image"]), images, Takes())
    assert math.isnan(low)
    assert broken == 0


@pytest.mark.parametrize(
    ("column", "label", "broken"),
    [
        (pa.array([1, None, 3]), NUMBER, 1),
        (pa.array([[1.0, 2.0], None, [1.0], [None, None], [3.0, None]]), PAIR, 4),
        (pa.array([None, [1.0], [1.0, 2.0], [1.0, None]])[2:], PAIR, 1),
        (pa.array([b"\1\2", b"\1", None]), MASK, 2),
        (pa.array([b"\1", None]), Field("y", (1, 2, 1), encoding="png"), 1),
    ],
)
def test_rows_without_a_label_are_counted(column, label, broken):
    assert count_broken(column, label) == broken
    assert summarize_label(column, label, Takes(whole=True))[-1] == broken


def test_each_partition_of_a_batch_has_a_row_with_its_splits_and_labels():
    batch = pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([3, 3, 5], pa.int32()),
            "split": pa.array(["train", None, "test"]),
            "label_0": pa.array([1, 4, 2]),
        }
    )
    parts = [part.to_pylist()[0] for part in summarize_batches([NUMBER], [Takes()], iter([batch]))]
    assert [(each["partition"], each["rows"], each["splits"]) for each in parts] == [
        (3, 2, ["train"]),
        (5, 1, ["test"]),
    ]
    assert [*parts[0]] == [column.split()[0] for column in SUMMARIES.split(", ")]
    assert merge_summaries(parts, [NUMBER]) == (LabelSummary(1.0, 4.0),)
    (bare,) = summarize_batches([], [], iter([batch.slice(2), batch.slice(3)]))
    assert (bare["rows"].to_pylist(), bare["low"].to_pylist()) == ([1], [[]])


def test_rows_without_label_are_refused_with_their_number():
    part = {"rows": 3, "low": [NAN], "high": [NAN], "missing": [0], "fractions": [0], "broken": [0]}
    with pytest.raises(LabelError, match=r"'y' must have a label that is a number.* 2 of 7 rows"):
        merge_summaries([part, {**part, "rows": 4, "broken": [2]}], [NUMBER])
