"""Memory of the containers that executors and the driver run in: pure arithmetic.

A container holds a JVM and, outside its heap, Python: TensorFlow, several copies of the weights, a
block of batches. Spark asks YARN for the JVM's heap (``spark.executor.memory``) and an overhead (by
default a tenth of the heap, at least 384 MB). All of Python must fit into the overhead. YARN kills
a container that uses more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.parameter_server.center_snapshots import IN_MEMORY
from distkeras_grid.parameter_server.shared_memory import LENT_LIMIT
from distkeras_grid.spark.doctor import CheckLevel, CheckResult, Setting

MB = 1 << 20
# Overheads are rounded up to a multiple of this.
STEP_MB = 64

Role = Literal["executor", "driver"]

# Peaks of resident memory on YARN, by psutil every 0.15 s (PySpark 4.3, TensorFlow 2.21, Python
# 3.11, x86-64, one core a task). Resident pages of files, such as TensorFlow's own, count as YARN
# counts them: in each process.
#
# A JVM outside its heap: classes, compiled code, threads, network buffers.
JVM_MB = 160
# Spark's Python daemons (2 x 48) and the worker of an earlier job (61).
DAEMONS_MB = 160
# A worker that has trained a net of 70,000 weights: 823.
WORKER_MB = 830
# Rows in transit, in pieces of 16 MB. With pieces of 64 MB the JVM took 180 more and Python 270.
ROWS_MB = 112
# The driver's Python with the same net: 656. The parameter server's process with NumPy: 39.
DRIVER_PYTHON_MB = 660
SERVER_MB = 40


@dataclass(frozen=True)
class ModelSize:
    """The size of a model and its batches. The defaults stand for a model that is not known yet."""

    weights: int = 5_000_000  # Parameters of the model, statistics included
    optimizer_slots: int = 2  # Numbers that the optimizer keeps for each weight, 2 for Adam
    block_bytes: int = 32 * MB  # Features between two exchanges of a worker, as they are stored
    servers: int = 1  # Processes over which the server's vectors are cut

    @property
    def vector_mb(self) -> float:
        """One copy of the weights [MB]."""
        return 4 * self.weights / MB

    @property
    def copies(self) -> int:
        """Copies of the weights in a worker.

        For 6 million weights they are 12.4 with plain SGD and 18.9 with Adam: the task's closure
        and the archive in it, variables, gradients, the vectors before and after a window, the
        commit, the client's own, and a copy that is kept while a window is compiled.
        """
        return 13 + 3 * self.optimizer_slots

    @property
    def block_mb(self) -> float:
        """A block of batches as stored and as ``float32``, read and in work [MB]."""
        return 6 * self.block_bytes / MB

    @property
    def worker_mb(self) -> float:
        """A worker's Python process [MB]."""
        return WORKER_MB + self.copies * self.vector_mb + self.block_mb

    def driver_mb(self, workers: int) -> float:
        """Return the driver's Python process, and the parameter servers on its host [MB]."""
        # Measured: 8.0 copies with SGD, 13.7 with Adam.
        python = DRIVER_PYTHON_MB + (8 + 3 * self.optimizer_slots) * self.vector_mb
        # One vector, and one per worker, and snapshots that the driver has not fetched yet.
        vectors = 2 + IN_MEMORY + workers
        # What the servers map of the workers on their host, which YARN counts in both processes.
        mapped = min(workers * self.vector_mb, self.servers * LENT_LIMIT / MB)
        servers = self.servers * SERVER_MB + vectors * self.vector_mb + mapped
        return python + servers


def executor_overhead_mb(model: ModelSize | None = None, slots: int = 1) -> int:
    """Return what ``spark.executor.memoryOverhead`` must be [MB]."""
    size = model or ModelSize()
    return round_up(JVM_MB + DAEMONS_MB + slots * (ROWS_MB + size.worker_mb))


def driver_overhead_mb(model: ModelSize | None = None, workers: int = 2) -> int:
    """Return what ``spark.driver.memoryOverhead`` must be in cluster mode [MB].

    In that mode the driver's container holds its JVM, Python with TensorFlow, and the parameter
    server.
    """
    return round_up(JVM_MB + (model or ModelSize()).driver_mb(workers))


@dataclass(frozen=True)
class ExecutorContainer:
    """What Spark asks for one container [MB]."""

    role: Role  # What runs in it
    heap_mb: int  # ``spark.ROLE.memory``
    overhead_mb: int  # ``spark.ROLE.memoryOverhead``, or the value that follows from its factor

    @classmethod
    def of(cls, setting: Setting, role: Role, master: str = "yarn") -> ExecutorContainer:
        """Return the container that the settings describe."""
        factor = 0.4 if master.startswith("k8s://") else 0.1
        heap = megabytes(setting(f"spark.{role}.memory") or "1g")
        least = megabytes(setting(f"spark.{role}.minMemoryOverhead") or "384m")
        part = float(setting(f"spark.{role}.memoryOverheadFactor") or factor)
        text = setting(f"spark.{role}.memoryOverhead")
        return cls(role, heap, megabytes(text) if text else max(least, int(part * heap)))


def check_containers(
    setting: Setting, master: str, model: ModelSize, *, slots: int, workers: int
) -> list[CheckResult]:
    """Compare the memory that a run needs with the containers of YARN or Kubernetes.

    Other masters do not limit an executor's Python, so there is no finding for them.
    """
    if not master.startswith(("yarn", "k8s://")):
        return []
    running = min(slots, workers)
    executor = ExecutorContainer.of(setting, "executor", master)
    parts = (
        f"Spark's Python {DAEMONS_MB}, {running} x {model.worker_mb + ROWS_MB:.0f} for a worker "
        f"(TensorFlow {WORKER_MB}, {model.copies} x {model.vector_mb:.3g} of weights, batches "
        f"{model.block_mb:.3g}, rows in transit {ROWS_MB})"
    )
    findings = [_compare(executor, executor_overhead_mb(model, running), parts)]
    if setting("spark.submit.deployMode") == "cluster":
        driver = ExecutorContainer.of(setting, "driver", master)
        parts = (
            f"Python and the parameter server {model.driver_mb(workers):.0f} for {workers} workers"
        )
        findings.append(_compare(driver, driver_overhead_mb(model, workers), parts))
    return findings


def python_limit_mb(setting: Setting, master: str) -> int | None:
    """Return what all Python of an executor may take of memory, None if nobody limits it.

    YARN and Kubernetes end a container that takes more, with all its tasks.
    """
    if not master.startswith(("yarn", "k8s://")):
        return None
    return ExecutorContainer.of(setting, "executor", master).overhead_mb


def megabytes(text: str) -> int:
    """Parse a memory size in Spark's notation [MB].

    Examples
    --------
    >>> megabytes("2g"), megabytes("512"), megabytes("1048576k"), megabytes("64MB")
    (2048, 512, 1024, 64)
    """
    match = re.fullmatch(r"(\d+)\s*([bkmgtp]?)b?", text.strip().lower())
    if match is None:
        raise ConfigurationError(
            f"A memory size must be a number with a unit. Received: {text!r}. Write 512m or 2g."
        )
    power = "bkmgtp".index(match.group(2) or "m")
    return (int(match.group(1)) << 10 * power) // MB


def _compare(container: ExecutorContainer, needed_mb: int, parts: str) -> CheckResult:
    """Compare the container's memory outside its heap with what is needed there."""
    role, room = container.role, container.overhead_mb
    name = f"spark.{role}.memoryOverhead"
    if needed_mb <= room:
        text = f"{name} {room} MB for {needed_mb} MB outside the heap of {container.heap_mb} MB"
        return CheckResult(f"{role} memory", CheckLevel.OK, text)
    return CheckResult(
        f"{role} memory",
        CheckLevel.BAD,
        f"The {role}'s container needs {needed_mb} MB outside its heap (spark.{role}.memory "
        f"{container.heap_mb} MB): JVM {JVM_MB}, {parts}. Received: {room} MB ({name}). A "
        f"container that uses more is killed. Set {name}={needed_mb}m.",
    )


def round_up(needed_mb: float) -> int:
    """Round a size up to a multiple of `STEP_MB` [MB].

    Examples
    --------
    >>> round_up(1000.5)
    1024
    """
    return int(-(-needed_mb // STEP_MB) * STEP_MB)
