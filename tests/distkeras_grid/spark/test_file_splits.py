"""The same files are the same rows on other cores, if Spark plans for the former ones."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.errors import IllegalArgumentException

from distkeras_grid.spark.session import planned_for, read_parallelism

pytestmark = pytest.mark.spark

SETTING = "spark.sql.leafNodeDefaultParallelism"


@pytest.fixture
def setting(spark):
    """Return a function that sets the number of tasks as a user does."""
    yield lambda tasks: spark.conf.set(SETTING, tasks)
    spark.conf.unset(SETTING)


def write_files(frame, folder):
    """Write a long and a short file of many row groups, which Spark may cut anywhere.

    Whole, the long one is read first. In pieces, its last and shortest one is read after the other
    file. The names decide which of two pieces of equal length is read first.
    """
    checks = {f"parquet.{name}.size.row.check.min": 1 for name in ("block", "page")}
    checks |= {f"parquet.{name}.size.row.check.max": 10 for name in ("block", "page")}
    for name, rows in {"a": "id % 5 > 0", "b": "id % 5 = 0"}.items():
        written = Path(folder) / f"_{name}"
        options = {"parquet.block.size": 1024, **checks}
        frame.where(rows).coalesce(1).write.options(**options).parquet(str(written))
        (file,) = written.glob("*.parquet")
        file.rename(Path(folder) / f"{name}.parquet")


@pytest.fixture
def small_cuts(spark):
    """Let small files be cut as large ones are."""
    spark.conf.set("spark.sql.files.openCostInBytes", 1)
    yield
    spark.conf.unset("spark.sql.files.openCostInBytes")


@pytest.mark.usefixtures("small_cuts")
def test_rows_keep_their_order(spark, tmp_path, setting):
    def order():
        return [row.id for row in spark.read.parquet(folder).collect()]

    folder = str(tmp_path / "files")
    write_files(spark.range(4000), folder)
    setting(1)
    before = order()
    assert read_parallelism(spark) == 1
    setting(21)
    assert order() != before
    with planned_for(spark, 1):
        assert order() == before
    assert spark.conf.get(SETTING) == "21"


def test_what_the_user_has_not_set_is_not_set_afterwards(spark):
    cores = read_parallelism(spark)
    assert cores == spark.sparkContext.defaultParallelism
    with planned_for(spark, cores + 1):
        assert read_parallelism(spark) == cores + 1
    assert spark.conf.get(SETTING, None) is None
    with planned_for(spark, None):
        assert spark.conf.get(SETTING, None) is None


@pytest.mark.parametrize("ended", [7, 9])
def test_the_users_setting_comes_back_when_the_last_of_several_runs_ends(spark, setting, ended):
    """Runs of several threads do not end in the order in which they began."""
    setting(5)
    blocks = {tasks: ExitStack() for tasks in (7, 9)}
    for tasks, block in blocks.items():
        block.enter_context(planned_for(spark, tasks))
    blocks.pop(ended).close()
    ((left, block),) = blocks.items()
    assert read_parallelism(spark) == left
    block.close()
    assert spark.conf.get(SETTING) == "5"


def test_a_value_that_spark_refuses_changes_nothing_for_later_blocks(spark):
    before = spark.conf.get(SETTING, None)
    with pytest.raises(IllegalArgumentException), planned_for(spark, 0):
        pass
    with planned_for(spark, 7):
        pass
    assert spark.conf.get(SETTING, None) == before
