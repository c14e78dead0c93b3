"""Dealing rows to seats: every row to one seat, balanced, the same at every try."""

import re
from collections import Counter

import pyarrow as pa
import pytest
from pyspark import TaskContext

from distkeras_grid.errors import EmptyDataError, SplitLeakError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.columns import Columns, resolve_columns
from distkeras_grid.spark.materialized_rows import read_rows, store_rows
from distkeras_grid.spark.row_partitioner import (
    CHANGED,
    DataSummary,
    check_summary,
    largest_seat,
    partition_rows,
    summarize,
)

UNLABELLED = Columns((Field("f", (2,), "float32"),), ())


def part(number=0, rows=3, splits=()):
    return {"partition": number, "rows": rows, "splits": list(splits)}


def test_summary_joins_partitions():
    summary = check_summary([part(1, 4), part(0, 3), part(1, 2)], UNLABELLED)
    assert (summary.rows, summary.partition_rows) == (9, ((0, 3), (1, 6)))


def test_no_rows_are_refused():
    with pytest.raises(EmptyDataError, match="no rows"):
        check_summary([], UNLABELLED)


def test_two_splits_are_refused_with_the_filter_to_write():
    with pytest.raises(SplitLeakError, match="split = 'train'"):
        check_summary([part(splits=["train"]), part(1, splits=["test"])], UNLABELLED)


@pytest.fixture(scope="module")
def frame(spark):
    return spark.range(11, numPartitions=3).selectExpr(
        "id", "cast(id % 3 as int) as label", "array(cast(id as float), 1.0f) as f"
    )


def dealt_rows(frame, seats, *, stored=None, **options):
    """Return (seat, row number, first feature) of every row."""
    columns = resolve_columns(frame, "f", "label")

    def tell(batches):
        for batch in batches:
            seat = TaskContext.get().partitionId()
            yield pa.RecordBatch.from_pydict(
                {
                    "seat": pa.array([seat] * batch.num_rows, pa.int64()),
                    "row": batch.column("row"),
                    "value": pa.array([int(v[0]) for v in batch.column("features_0").to_pylist()]),
                }
            )

    if stored is not None:
        frame = store_rows(frame, columns, str(stored)).frame
    summary = summarize(frame, columns)
    dealt = partition_rows(frame, columns, summary, seats, **options)
    rows = dealt.mapInArrow(tell, "seat long, row long, value long").collect()
    return sorted(tuple(row) for row in rows)


@pytest.mark.spark
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("count", "seats"), [(7, 3), (1, 4), (8, 4), (5, 1), (3, 5)])
def test_seats_are_balanced_and_complete(frame, count, seats, shuffle):
    rows = dealt_rows(frame.where(f"id < {count}"), seats, shuffle=shuffle, seed=3)
    assert sorted(row for _, row, _ in rows) == list(range(count))
    sizes = Counter(seat for seat, _, _ in rows)
    assert max(sizes.values()) == largest_seat(count, seats)
    assert min(sizes[seat] for seat in range(seats)) >= count // seats


@pytest.mark.spark
def test_data_that_alternate_between_classes_give_each_seat_both(spark):
    frame = spark.range(400, numPartitions=2).selectExpr(
        "cast(id % 2 as int) as label", "array(cast(id % 2 as float), 1.0f) as f"
    )
    classes = {0: set(), 1: set()}
    for seat, _, value in dealt_rows(frame, 2, shuffle=True):
        classes[seat].add(value)
    assert classes == {0: {0, 1}, 1: {0, 1}}


@pytest.mark.spark
def test_shuffled_neighbours_go_to_different_seats(frame):
    seats = {row: seat for seat, row, _ in dealt_rows(frame, 2, shuffle=True)}
    assert all({seats[row], seats[row + 1]} == {0, 1} for row in range(0, 10, 2))


@pytest.mark.spark
def test_stored_rows_keep_their_numbers_in_other_partitions(frame, tmp_path):
    ordered = frame.orderBy("id", ascending=False)
    rows = dealt_rows(ordered, 2, shuffle=False, stored=tmp_path / "rows")
    assert [(row, value) for _, row, value in rows] == [(n, 10 - n) for n in range(11)]
    # Without shuffle, sorted data keep their order.
    assert [seat for seat, *_ in rows] == [0] * 6 + [1] * 5
    columns = resolve_columns(frame, "f", "label")
    again = read_rows(frame, columns, str(tmp_path / "rows")).frame
    summary = summarize(again, columns)
    dealt = partition_rows(again.repartition(5), columns, summary, 2, shuffle=False)
    found = sorted((row["row"], int(row["features_0"][0])) for row in dealt.collect())
    assert found == [(row, value) for _, row, value in rows]


@pytest.mark.spark
def test_other_partitions_than_those_counted_are_an_error(frame):
    columns = resolve_columns(frame, "f", "label")
    summary = summarize(frame, columns)
    dealt = partition_rows(frame.coalesce(1), columns, summary, 2, shuffle=True)
    with pytest.raises(Exception, match=re.escape(CHANGED)):
        dealt.collect()


@pytest.mark.spark
def test_the_rows_of_a_group_are_in_its_first_partition(frame):
    rows = dealt_rows(frame, 1, shuffle=False, partitions=3)
    assert [(seat, value) for seat, _, value in rows] == [(0, value) for value in range(11)]


@pytest.mark.spark
def test_a_row_has_another_hash_if_its_number_or_any_of_its_values_is_another(spark):
    fields = (Field("f", (2,), "float32"), Field("image", (2,)))
    columns = Columns(fields, (Field("label", (), "int64"),), "w")

    def hashes(*rows):
        frame = spark.createDataFrame(rows, "f array<float>, image binary, label int, w double")
        summary = DataSummary(len(rows), ((0, len(rows)),), (), ())
        dealt = partition_rows(frame.coalesce(1), columns, summary, 1, shuffle=False)
        return [row["hash"] for row in dealt.orderBy("row").collect()]

    row = ([1.0, 2.0], bytearray(b"ab"), 1, 0.5)
    others = [[2.0, 1.0], bytearray(b"ba"), 0, 0.25]
    changed = [(*row[:place], other, *row[place + 1 :]) for place, other in enumerate(others)]
    first, second = hashes(row, row)
    assert hashes(row) == [first]
    assert len({first, second, *(hashes(each)[0] for each in changed)}) == 6
