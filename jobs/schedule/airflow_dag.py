"""Airflow: the nightly tiling, and once a week a training on what is new and a compaction.

Copy it to Airflow's folder of DAGs. `airflow pools set grid 1 "one job at a time"` makes the pool
that keeps them apart on any number of Airflow's workers.
"""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

GRID = "/opt/grid"
TILE = (
    "distkeras-grid submit tile --update --input hdfs:///raw --output hdfs:///tiles "
    "--angles 0:360:45 --log-format json"
)
RETRAIN = (
    "distkeras-grid submit retrain --data hdfs:///tiles --split train "
    "--validation-split validation --features image --model my_models:net --epochs 2 "
    "--output hdfs:///runs --keep 8 --log-format json"
)
COMPACT = "distkeras-grid submit compact --data hdfs:///tiles --log-format json"
TASK = {
    "cwd": GRID,
    "env": {"PATH": f"{GRID}/.venv/bin:/usr/bin:/bin", "HADOOP_CONF_DIR": "/etc/hadoop/conf"},
    "append_env": True,
    "pool": "grid",
    "retries": 1,
    "retry_delay": timedelta(minutes=15),
    "execution_timeout": timedelta(hours=12),
}
# What commits once, at its end, begins again when it has not ended in time.
LONG = {**TASK, "execution_timeout": timedelta(days=3)}
COMMON = {"start_date": datetime(2026, 1, 1), "catchup": False, "max_active_runs": 1}

with DAG("grid_tiles", schedule="30 1 * * *", **COMMON):
    BashOperator(task_id="tile", bash_command=TILE, **LONG)

with DAG("grid_training", schedule="0 6 * * 6", **COMMON):
    BashOperator(task_id="retrain", bash_command=RETRAIN, **TASK)

with DAG("grid_compaction", schedule="0 6 * * 0", **COMMON):
    BashOperator(task_id="compact", bash_command=COMPACT, **LONG)
