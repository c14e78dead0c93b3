"""Imports the DAGs of a folder with Airflow itself: ``make check-airflow``, not ``make test``."""

import sys

from airflow.dag_processing.dagbag import DagBag

EXPECTED = {"grid_tiles": ["tile"], "grid_training": ["retrain"], "grid_compaction": ["compact"]}

bag = DagBag(sys.argv[1])
found = {name: [task.task_id for task in dag.tasks] for name, dag in bag.dags.items()}
if bag.import_errors or found != EXPECTED:
    sys.exit(f"expected {EXPECTED}, found {found}; errors: {bag.import_errors}")
sys.stdout.write(f"Airflow imports {found}\n")
