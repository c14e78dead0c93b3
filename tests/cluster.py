"""A standalone Spark cluster on loopback: a master and workers as processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

START_SECONDS = 90.0
STOP_SECONDS = 20.0


@dataclass(frozen=True)
class Cluster:
    url: str  # ``spark://host:port``
    log: Path  # What master and workers write
    work: Path  # Folder for logs, and for what executors write

    @contextlib.contextmanager
    def worker(self, name: str) -> Iterator[None]:
        """Have a worker of one core more, which registers soon."""
        host = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1500m")
        folder = ("--work-dir", str(self.work / f"worker-{name}"))
        command = ("org.apache.spark.deploy.worker.Worker", *host, *folder, self.url)
        with _process(command, self.log, self.work):
            yield

    def submit(
        self, *command: str, timeout: float = 300.0, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *(str(spark_home() / "bin" / "spark-submit"), "--master", self.url, *SETTINGS),
                *("--conf", f"spark.executor.extraJavaOptions={os.environ['SPARK_SUBMIT_OPTS']}"),
                *command,
            ],
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=cwd,
            env={**driver_environment(), **environment},
        )


#: These JVMs live for seconds: the quick compiler alone, and no threads that collect garbage.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

#: One core for each executor, memory for two tests at once, no page for the driver.
SETTINGS = (
    *("--driver-memory", "512m", "--executor-memory", "512m", "--executor-cores", "1"),
    *("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"),
)


def spark_home() -> Path:
    return Path(str(find_spec("pyspark").origin)).parent


def driver_environment() -> dict[str, str]:
    """The environment of a user whose shell says which interpreter Spark is to take."""
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(spark_home()),
    }


@contextlib.contextmanager
def standalone_cluster(work: Path, workers: int = 2) -> Iterator[Cluster]:
    """Start a master and workers of one core each; end them, and all below them, at the end."""
    log = work / "cluster.log"
    host = ("--host", "127.0.0.1", "--webui-port", "0")
    with contextlib.ExitStack() as running:
        master = ("org.apache.spark.deploy.master.Master", *host, "--port", "0")
        running.enter_context(_process(master, log, work))
        url = _wait(lambda: _said(log, r"Starting Spark master at (spark://\S+)"), log)
        page = _wait(lambda: _said(log, r"Bound MasterWebUI to .* at (http://\S+)"), log)
        cluster = Cluster(url, log, work)
        for number in range(workers):
            running.enter_context(cluster.worker(str(number)))
        _wait(lambda: _alive_workers(page) == workers, log)
        yield cluster


@contextlib.contextmanager
def _process(command: tuple[str, ...], log: Path, work: Path) -> Iterator[None]:
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(work / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
        "SPARK_HOME": str(spark_home()),
    }
    with log.open("ab") as out:
        process = subprocess.Popen(
            [str(spark_home() / "bin" / "spark-class"), *command],
            stdout=out,
            stderr=out,
            env=environment,
            start_new_session=True,
        )
    try:
        yield
    finally:
        # A worker ends its executors when it is asked to end, and they their Python processes.
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)


def _said(log: Path, pattern: str) -> str | None:
    found = re.search(pattern, log.read_text(errors="replace"))
    return found.group(1) if found else None


def _alive_workers(page: str) -> int:
    with urllib.request.urlopen(f"{page}/json/", timeout=10) as answer:
        return int(json.load(answer)["aliveworkers"])


def _wait(condition: Callable[[], T], log: Path) -> T:
    deadline = time.monotonic() + START_SECONDS
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the cluster did not start: {log.read_text()[-4000:]}")
        time.sleep(0.1)
    return found
