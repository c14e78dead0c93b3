"""Rows that Spark may compute in another order are found, and stored as they first were."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from distkeras_grid.errors import ClusterError, NoSpaceError, PathNotFoundError, StorageError
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.columns import resolve_columns
from distkeras_grid.spark.materialized_rows import (
    IDENTITY,
    check_shared,
    is_repeatable,
    persisted_rows,
    read_rows,
    store_rows,
)

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def files(spark, tmp_path_factory):
    """Return rows of Parquet files."""
    folder = tmp_path_factory.mktemp("rows") / "files"
    rows = spark.range(11, numPartitions=3).selectExpr(
        "id", "cast(id % 3 as int) as label", "array(cast(id as float), 1.0f) as f"
    )
    rows.write.parquet(str(folder))
    return spark.read.parquet(str(folder))


def drawn():
    from pyspark.sql import functions as F

    return F.udf(lambda number: number, "long").asNondeterministic()


def broadcast(frame):
    from pyspark.sql import functions as F

    return F.broadcast(frame)


def small(files, *, hint=True):
    table = files.sparkSession.createDataFrame([(3, "a"), (4, "b")], "id long, name string")
    return broadcast(table) if hint else table


REPEATABLE = {
    "files": lambda files: files,
    "filtered": lambda files: files.where("id < 5").select("id"),
    "with a function": lambda files: files.selectExpr("id + 1"),
    "one after the other": lambda files: files.union(files),
    "the name of the file": lambda files: files.selectExpr("input_file_name() like '%x%' as x"),
    "the place": lambda files: files.selectExpr("upper(monotonically_increasing_id()) as x"),
    "a collection": lambda files: files.sparkSession.createDataFrame([(1,)], "id int"),
    "with a table that is broadcast": lambda files: files.join(small(files), "id", "left"),
    "without those of a table": lambda files: files.join(small(files), "id", "left_anti"),
    "a range": lambda files: files.sparkSession.range(4),
}
NOT_REPEATABLE = {
    "sort": lambda files: files.orderBy("id"),
    "repartition": lambda files: files.repartition(2),
    "join": lambda files: files.join(files.select("id"), "id"),
    "join with a small table, without a hint": lambda files: files.join(
        small(files, hint=False), "id"
    ),
    "with a shuffled table that is broadcast": lambda files: files.join(
        broadcast(files.select("id").repartition(2)), "id"
    ),
    "a limit of a join": lambda files: files.join(small(files), "id").limit(5),
    "a subquery": lambda files: files.where("id < (select max(id) from range(10))"),
    "limit": lambda files: files.limit(5),
    "first of a sort": lambda files: files.orderBy("id").limit(5),
    "group": lambda files: files.groupBy("label").count(),
    "a shuffle of an RDD": lambda files: files.sparkSession.createDataFrame(
        files.select("id").rdd.repartition(2), "id long"
    ),
    "a random number": lambda files: files.selectExpr("id + rand() as x"),
    "a function that draws": lambda files: files.withColumn("x", drawn()("id")),
    "behind a cache": lambda files: files.repartition(3).cache(),
}


@pytest.mark.parametrize("name", REPEATABLE)
def test_rows_of_files_and_of_the_driver_are_the_same_each_time(files, name):
    assert is_repeatable(REPEATABLE[name](files))


@pytest.mark.parametrize("name", NOT_REPEATABLE)
def test_rows_behind_a_shuffle_or_drawn_may_differ(files, name):
    frame = NOT_REPEATABLE[name](files)
    try:
        assert not is_repeatable(frame)
    finally:
        frame.unpersist()


def test_a_column_that_the_run_does_not_read_matters_not(files):
    assert is_repeatable(files.selectExpr("*", "rand() as x").select("id"))


@pytest.fixture
def odd(files):
    """Return sorted rows whose columns have names that Parquet refuses, and metadata."""
    from pyspark.sql import functions as F

    field = Field("f.1, x", (2,), "float32")
    feature = F.col("f").alias(field.name, metadata=field.to_metadata())
    ordered = files.orderBy("id", ascending=False)
    return ordered.select("id", F.col("label").alias("LABEL (x)"), feature)


def test_they_are_stored_with_names_metadata_and_order(odd, tmp_path):
    columns = resolve_columns(odd, "f.1, x", "LABEL (x)")
    stored = store_rows(odd, columns, str(tmp_path / "rows"))
    assert stored.frame.columns == ["LABEL (x)", "f.1, x", IDENTITY]
    assert stored.frame.schema["f.1, x"].metadata == odd.schema["f.1, x"].metadata
    rows = stored.frame.orderBy(IDENTITY).collect()
    assert [row["f.1, x"] for row in rows] == [[float(10 - number), 1.0] for number in range(11)]
    assert stored.seconds > 0
    assert stored.bytes == stored.to_json()["bytes"] > 0
    again = read_rows(odd, columns, stored.folder)
    assert again.frame.orderBy(IDENTITY).collect() == rows
    assert (again.seconds, again.name) == (0.0, "rows")


def test_no_other_user_may_read_them(odd, tmp_path):
    store_rows(odd, resolve_columns(odd, "f.1, x", "LABEL (x)"), str(tmp_path / "rows"))
    assert stat.S_IMODE((tmp_path / "rows").stat().st_mode) == 0o700


def test_a_forbidden_place_is_named_and_nothing_is_left(odd, tmp_path):
    (tmp_path / "file").write_text("")
    columns = resolve_columns(odd, "f.1, x", "LABEL (x)")
    with pytest.raises(StorageError, match="file/rows"):
        store_rows(odd, columns, str(tmp_path / "file" / "rows"))


def test_rows_that_cannot_be_computed_leave_nothing(files, tmp_path):
    from pyspark.sql import functions as F

    broken = files.withColumn("f", F.expr("if(id = 7, raise_error('broken'), f)")).orderBy("id")
    columns = resolve_columns(files, "f", "label")
    with pytest.raises(ClusterError, match="broken"):
        store_rows(broken, columns, str(tmp_path / "rows"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise(
    "disk of stored rows: full",
    "One `NoSpaceError` before any worker starts; nothing is left.",
)
def test_rows_for_which_there_is_no_room_leave_nothing(files, tmp_path):
    """The task that writes them fails with the words of the JVM."""
    from pyspark.sql import functions as F

    told = "java.io.IOException: No space left on device"
    full = files.withColumn("f", F.expr(f"if(id = 7, raise_error('{told}'), f)")).orderBy("id")
    columns = resolve_columns(files, "f", "label")
    with pytest.raises(NoSpaceError):
        store_rows(full, columns, str(tmp_path / "rows"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_another_one_on_each_host_is_refused(odd, spark, tmp_path):
    columns = resolve_columns(odd, "f.1, x", "LABEL (x)")
    stored = store_rows(odd, columns, str(tmp_path / "rows"))
    check_shared(spark, stored.folder, 11)
    # This host has only a part of the files.
    next(Path(tmp_path, "rows").glob("*.parquet")).unlink()
    with pytest.raises(StorageError, match="checkpoint_dir"):
        check_shared(spark, stored.folder, 11)


def test_stored_rows_of_other_columns_or_nowhere_are_refused(odd, files, tmp_path):
    columns = resolve_columns(odd, "f.1, x", "LABEL (x)")
    stored = store_rows(odd, columns, str(tmp_path / "rows"))
    with pytest.raises(StorageError, match="columns"):
        read_rows(files, resolve_columns(files, "f", "label", "id"), stored.folder)
    with pytest.raises(PathNotFoundError):
        read_rows(odd, columns, str(tmp_path / "missing"))


def test_the_end_of_one_run_leaves_what_another_has_kept_of_the_same_frame(files):
    kept = files.sparkSession.sparkContext._jsc.sc().getPersistentRDDs
    shuffled, before = files.repartition(2), kept().size()
    columns = resolve_columns(files, "f", "label")
    with persisted_rows(shuffled, columns) as first:
        first.count()
        with persisted_rows(shuffled, columns) as second:
            second.count()
            assert kept().size() == before + 2
        assert kept().size() == before + 1
        assert second.count() == 11
    assert kept().size() == before
