"""The classes that a JVM of Spark loads, kept in a file: each start costs half the time.

The first session that needs a JVM writes the file (class data sharing of Java). A JVM with another
class path, as on YARN, does not take it and starts as ever.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

SECONDS = 300.0
# Else Java tells on standard output when a file does not fit.
SILENT = "-Xlog:disable"

#: What most tests do: a query, Parquet, and Python on the executors.
PROGRAM = """
import sys
from distkeras_grid.spark.session import build_session
spark = build_session("classes", master="local[2]", settings={"spark.sql.shuffle.partitions": "2"})
frame = spark.range(100).selectExpr("id", "id % 3 as label", "cast(id as string) as name")
frame.write.partitionBy("label").parquet(sys.argv[1])
read = spark.read.parquet(sys.argv[1])
read.mapInArrow(lambda batches: batches, read.schema).groupBy("label").count().collect()
read.repartition(2, "label").sortWithinPartitions("id").rdd.barrier().mapPartitions(list).count()
spark.createDataFrame([(1, "a")], "id int, name string").join(read, "id").toPandas()
spark.stop()
"""


def java_options(folder: Path, options: str) -> str:
    """Return options of a JVM and the file that holds for them, written where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}")
    key = f"{Path(str(java)).resolve()} {version('pyspark')} {sys.prefix} {options}"
    file = folder / f"spark-{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"
    # One process writes, the others wait for it.
    with (folder / "classes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            _write(file, options)
    # Without the file a JVM starts as ever.
    return f"{options} {SILENT} -XX:SharedArchiveFile={file}" if file.exists() else options


def _write(file: Path, options: str) -> None:
    partial = file.with_suffix(".part")
    data = file.with_suffix(".data")
    more = f"{options} {SILENT} -XX:ArchiveClassesAtExit={partial}"
    try:
        # The JVM writes when it ends, and holds these pipes until then.
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(data)],
            check=False,
            capture_output=True,
            timeout=SECONDS,
            env={**os.environ, "SPARK_SUBMIT_OPTS": more},
        )
    except subprocess.TimeoutExpired:
        return
    finally:
        shutil.rmtree(data, ignore_errors=True)
    if done.returncode == 0 and partial.exists():
        partial.replace(file)
