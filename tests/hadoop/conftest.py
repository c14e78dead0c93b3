"""The sandbox that the tests of this folder share: two DataNodes, YARN, real daemons."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hdfs import InsecureClient

from distkeras_grid.errors import SandboxError
from distkeras_grid.sandbox.class_path import daemon_class_path
from distkeras_grid.sandbox.cluster import Sandbox
from distkeras_grid.sandbox.daemons import working_below
from tests.cluster import JAVA_OPTIONS

SPARK_HOME = Path(str(find_spec("pyspark").origin)).parent  # type: ignore[union-attr]
SCRIPT = str(Path(sys.executable).with_name("distkeras-grid"))
T = TypeVar("T")


@dataclass(frozen=True)
class Grid:
    """A running sandbox, and how a user's shell sees it."""

    sandbox: Sandbox
    cache: Path  # Keeps environment archives, by their packages, from one session to the next

    @property
    def hdfs(self) -> str:
        return self.sandbox.hdfs

    def environment(self, **more: str) -> dict[str, str]:
        """A shell that has sourced the sandbox's environment.sh."""
        return {
            **os.environ,
            "SPARK_HOME": str(SPARK_HOME),
            "XDG_CACHE_HOME": str(self.cache),
            **self.sandbox.environment(),
            **more,
        }

    def run(
        self, *command: str, timeout: float = 300.0, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in that shell; return what it wrote and ended with."""
        return subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=cwd,
            env=self.environment(**environment),
        )

    def grid(
        self, *arguments: str, timeout: float = 300.0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``distkeras-grid``."""
        return self.run(SCRIPT, *arguments, timeout=timeout, **environment)

    @contextmanager
    def background(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run ``distkeras-grid`` beside the block, at whose end it is killed."""
        with subprocess.Popen(
            (SCRIPT, *arguments),
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def submit(
        self, *command: str, timeout: float = 300.0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``spark-submit --master yarn`` with small containers."""
        return self.run(
            *(str(SPARK_HOME / "bin" / "spark-submit"), "--master", "yarn"),
            *("--driver-memory", "512m", "--executor-memory", "512m", "--num-executors", "2"),
            *("--conf", "spark.ui.enabled=false"),
            *("--conf", f"spark.driver.extraJavaOptions={JAVA_OPTIONS}"),
            *("--conf", f"spark.executor.extraJavaOptions={JAVA_OPTIONS}"),
            *command,
            timeout=timeout,
            **environment,
        )


@pytest.fixture(scope="session")
def hadoop_jars() -> list[str]:
    """The daemons' class path; without it the tests of this folder are left out, in one line."""
    try:
        return daemon_class_path()
    except SandboxError as error:
        pytest.skip(f"the tests on Hadoop are left out: {error}")


@pytest.fixture(scope="session")
def grid(
    hadoop_jars: list[str], project: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Grid]:
    """A sandbox with two DataNodes for all tests that do not break it."""
    root = tmp_path_factory.mktemp("sandbox")
    with Sandbox(root, datanodes=2, memory_mb=10240) as sandbox:
        yield Grid(sandbox, project / "build" / "tests")
    # It leaves no daemon and no container behind; the ports are looked at in test_sandbox.py.
    assert not sandbox.running()
    assert not working_below(root)


@pytest.fixture(scope="session")
def client(grid: Grid) -> InsecureClient:
    """A client of the same HDFS that is none of ours."""
    return InsecureClient(grid.sandbox.webhdfs, user="root")


def wait_for(
    look: Callable[[], T], process: subprocess.Popen[str] | None = None, seconds: float = 600.0
) -> T:
    """Wait until something is there, while a process runs; return it."""
    deadline = time.monotonic() + seconds
    while not (answer := look()):
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return answer


def read_json(client: InsecureClient, path: str) -> Any:
    with client.read(path) as reader:
        return json.load(reader)


def first_samples(samples: Path, classes: int = 2) -> list[Path]:
    """Three images of each of so many classes."""
    return [
        path
        for number in range(classes)
        for path in sorted((samples / f"class{number}").glob("*.png"))[:3]
    ]


def upload_samples(client: InsecureClient, samples: Path, folder: str, classes: int = 2) -> str:
    """Put them on HDFS, one folder a class; return that above these."""
    for path in first_samples(samples, classes):
        client.upload(f"{folder}/{path.parent.name}/{path.name}", str(path))
    return folder
