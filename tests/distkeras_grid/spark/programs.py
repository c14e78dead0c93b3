"""Programs that tests run in an interpreter of their own."""

import json
import os
import subprocess
import sys


def run_python(folder, *command):
    """Run a program in a folder from which nothing is imported; return what it told as JSON."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    for name in ("PYTHONPATH", "SPARK_HOME"):
        environment.pop(name, None)
    ended = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        cwd=folder,
    )
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("told ")]
    return json.loads(line.removeprefix("told "))
