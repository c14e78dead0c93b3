"""Dealing rows to seats: every row to one seat, balanced, the same at every try."""

from __future__ import annotations

from collections import Counter

import pytest

from distkeras_grid.errors import EmptyDataError, LabelError, SplitLeakError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.dataframes import Columns, resolve_columns
from distkeras_grid.spark.seats import check_summary, deal, seat_rows, summarize

COLUMNS = Columns(Field("f", (2,), "float32"), "label", None, integer_labels=True)


def partition(number=0, rows=3, low=0, high=2, broken=0, splits=()):
    return {
        "partition": number,
        "rows": rows,
        "low": low,
        "high": high,
        "broken": broken,
        "splits": list(splits),
    }


def test_summary_joins_partitions():
    summary = check_summary([partition(1, 4, 1, 5), partition(0, 3)], COLUMNS)
    assert (summary.rows, summary.label_low, summary.label_high) == (7, 0.0, 5.0)
    assert summary.partition_rows == ((0, 3), (1, 4))


def test_no_rows_are_refused():
    with pytest.raises(EmptyDataError, match="no rows"):
        check_summary([], COLUMNS)


def test_rows_without_label_are_refused_with_their_number():
    with pytest.raises(LabelError, match="2 of 7 rows"):
        check_summary([partition(), partition(1, 4, broken=2)], COLUMNS)


def test_two_splits_are_refused_with_the_filter_to_write():
    with pytest.raises(SplitLeakError, match="split = 'train'"):
        check_summary([partition(splits=["train"]), partition(1, splits=["test"])], COLUMNS)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("rows", "seats"), [(7, 3), (1, 4), (8, 4), (5, 1), (3, 5)])
def test_seat_rows_are_balanced_and_complete(rows, seats, shuffle):
    counts = [seat_rows(rows, seats, seat, shuffle=shuffle) for seat in range(seats)]
    assert sum(counts) == rows
    assert max(counts) - min(counts) <= 1
    assert counts[0] == max(counts)


@pytest.fixture(scope="module")
def frame(spark):
    return spark.range(11, numPartitions=3).selectExpr(
        "id", "cast(id % 3 as int) as label", "array(cast(id as float), 1.0f) as f"
    )


def dealt_rows(frame, seats, *, shuffle):
    """Return (seat, row number, first feature) of every row."""
    columns = resolve_columns(frame, "f", "label")
    summary = summarize(frame, columns)

    def tell(batches):
        import pyarrow as pa
        from pyspark import TaskContext

        for batch in batches:
            seat = TaskContext.get().partitionId()
            yield pa.RecordBatch.from_pydict(
                {
                    "seat": pa.array([seat] * batch.num_rows, pa.int64()),
                    "row": batch.column("row"),
                    "value": pa.array([int(v[0]) for v in batch.column("features").to_pylist()]),
                }
            )

    dealt = deal(frame, columns, summary, seats, shuffle=shuffle)
    rows = dealt.mapInArrow(tell, "seat long, row long, value long").collect()
    return sorted(tuple(row) for row in rows)


@pytest.mark.spark
def test_shuffled_rows_alternate_between_seats(frame):
    rows = dealt_rows(frame, 2, shuffle=True)
    assert [row for seat, row, _ in rows if seat == 0] == [0, 2, 4, 6, 8, 10]
    assert [row for seat, row, _ in rows if seat == 1] == [1, 3, 5, 7, 9]


@pytest.mark.spark
def test_unshuffled_seats_hold_consecutive_rows_in_the_data_order(frame):
    rows = dealt_rows(frame, 2, shuffle=False)
    assert [value for seat, _, value in rows if seat == 0] == [0, 1, 2, 3, 4, 5]
    assert [value for seat, _, value in rows if seat == 1] == [6, 7, 8, 9, 10]


@pytest.mark.spark
def test_a_plan_with_a_shuffle_loses_and_repeats_nothing(frame):
    rows = dealt_rows(frame.orderBy("label").limit(9), 4, shuffle=True)
    assert len({value for _, _, value in rows}) == 9
    assert max(Counter(seat for seat, _, _ in rows).values()) <= 3


@pytest.mark.spark
def test_fewer_rows_than_seats(frame):
    rows = dealt_rows(frame.limit(1), 3, shuffle=True)
    assert [(seat, row) for seat, row, _ in rows] == [(0, 0)]


@pytest.mark.spark
def test_dealing_twice_gives_the_same_seats(frame):
    assert dealt_rows(frame, 3, shuffle=True) == dealt_rows(frame, 3, shuffle=True)
