"""A command whose only job writes a folder, and does not end by itself.

``python -m tests.distkeras_grid.cli.interrupted_job FOLDER`` writes ``FOLDER/output``; each of its
tasks makes a file ``FOLDER/task-N`` when it has begun to write.
"""

from __future__ import annotations

import sys

from distkeras_grid.cli.common_options import run
from distkeras_grid.cli.exit_codes import run_command

TASKS = 2


def write(folder):
    from distkeras_grid.spark.atomic_output import Output, OutputKind
    from distkeras_grid.spark.session import build_session
    from distkeras_grid.spark.storage import Storage

    def rows(batches):
        import time
        from pathlib import Path

        from pyspark import TaskContext

        for number, batch in enumerate(batches):
            yield batch
            (Path(folder) / f"task-{TaskContext.get().partitionId()}").touch()
            if number == 0:
                time.sleep(60)

    spark = build_session("interrupted", master=f"local[{TASKS}]")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    output = Output(Storage(spark), f"{folder}/output", OutputKind("test", "_done", ("*",)))
    frame = spark.range(1000, numPartitions=TASKS).mapInArrow(rows, "id long")
    with output.writing() as hidden:
        frame.write.parquet(hidden)


if __name__ == "__main__":
    sys.exit(run("tile", lambda rest: run_command(lambda: write(*rest)), sys.argv[1:]))
