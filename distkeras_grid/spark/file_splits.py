"""How many tasks Spark plans for the files that it reads.

By default it cuts large files so that each core of the cluster gets a piece, and reads the longest
pieces first. With other cores, the rows of the same files may thus come in another order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from distkeras_grid.spark.session import setting_of_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark takes the cores of the executors if it is not set.
_SETTING = "spark.sql.leafNodeDefaultParallelism"


def read_parallelism(spark: SparkSession) -> int:
    """Return for how many tasks Spark cuts files now."""
    return int(spark.conf.get(_SETTING, None) or spark.sparkContext.defaultParallelism)


@contextmanager
def planned_for(spark: SparkSession, tasks: int | None) -> Iterator[None]:
    """Let Spark cut files as for so many tasks, whatever cores it has; None changes nothing."""
    if tasks is None:
        yield
        return
    with setting_of_session(spark, _SETTING, str(tasks)):
        yield
