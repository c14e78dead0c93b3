"""Memory of the containers that executors and the driver run in: pure arithmetic.

A container holds a JVM and, beside it, Python: TensorFlow, the weights in several copies, a block
of batches. Spark asks YARN for the JVM's heap (``spark.executor.memory``) and an overhead (by
default a tenth of the heap, at least 384 MB), in which all of Python must fit; a container that
takes more is killed.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.spark.doctor import Finding, Level, Setting

MB = 1 << 20
# Overheads are named in steps of so many megabytes.
STEP_MB = 64

Role = Literal["executor", "driver"]

# Peaks of resident memory on YARN, by psutil every 0.15 s (PySpark 4.3, TensorFlow 2.21, Python
# 3.11, x86-64, one core a task). Resident pages of files, such as TensorFlow's own, count as YARN
# counts them: in each process.
#
# Of a JVM beside its heap: classes, compiled code, threads, buffers of the network.
JVM_MB = 160
# Spark's Python daemons (2 x 48) and the worker of a job before (61).
DAEMONS_MB = 160
# A worker that has trained a net of 70,000 weights: 823.
WORKER_MB = 830
# Rows on their way, in pieces of 16 MB: with pieces of 64 MB the JVM took 180 more and Python 270.
ROWS_MB = 112
# The driver's Python with the same net: 656. The server's process with NumPy: 39.
DRIVER_PYTHON_MB = 660
SERVER_MB = 40
# Address space that TensorFlow reserves beyond what it uses: VmPeak 2,700 at 650 resident.
RESERVED_MB = 2100


@dataclass(frozen=True)
class ModelSize:
    """What a model and its batches weigh; the defaults stand for a model not known yet.

    Parameters
    ----------
    weights : int
        Parameters of the model, statistics included.
    optimizer_slots : int
        Numbers that the optimizer keeps for each weight; Adam 2.
    block_bytes : int
        Features between two exchanges of a worker, as they are stored.
    server_vectors : int
        Vectors that rule and compression have the server keep beside the center.
    worker_vectors : int
        Vectors that the compression has a worker keep.
    """

    weights: int = 5_000_000
    optimizer_slots: int = 2
    block_bytes: int = 32 * MB
    server_vectors: int = 0
    worker_vectors: int = 0

    def with_longer_vectors(self, size: int, workers: int) -> ModelSize:
        """Return the same for vectors of `size` numbers, which hold the optimizer's state, too.

        A worker has six of them: before and after a window, what is sent and answered, the
        client's own, and one kept aside. The driver has three, the server two and one a worker.
        """
        longer = max(size / self.weights - 1, 0.0)
        return replace(
            self,
            worker_vectors=self.worker_vectors + math.ceil(6 * longer),
            server_vectors=self.server_vectors + math.ceil((5 + workers) * longer),
        )

    @property
    def vector_mb(self) -> float:
        """One copy of the weights [MB]."""
        return 4 * self.weights / MB

    @property
    def copies(self) -> int:
        """Copies of the weights in a worker.

        For 6 million weights 12.4 with plain SGD and 18.9 with Adam: the task's closure and the
        archive in it, variables, gradients, the vectors before and after a window, the one that
        is sent, the client's own, and what is kept aside while a window is compiled.
        """
        return 13 + 3 * self.optimizer_slots + self.worker_vectors

    @property
    def block_mb(self) -> float:
        """A block of batches as stored and as ``float32``, read and in work [MB]."""
        return 6 * self.block_bytes / MB

    @property
    def worker_mb(self) -> float:
        """A worker's Python process [MB]."""
        return WORKER_MB + self.copies * self.vector_mb + self.block_mb

    def driver_mb(self, workers: int, validation_bytes: int = 0) -> float:
        """Return the driver's Python process and the parameter server [MB]."""
        # Measured: 8.0 copies with SGD, 13.7 with Adam; the server has one, and one a worker.
        python = DRIVER_PYTHON_MB + (8 + 3 * self.optimizer_slots) * self.vector_mb
        server = SERVER_MB + (2 + workers + self.server_vectors) * self.vector_mb
        return python + server + 2 * validation_bytes / MB


def executor_overhead_mb(model: ModelSize | None = None, slots: int = 1) -> int:
    """Return what ``spark.executor.memoryOverhead`` must be [MB].

    Parameters
    ----------
    model : ModelSize, optional
        By default one that is not known yet.
    slots : int, default 1
        Tasks that an executor runs at once: its cores / ``spark.task.cpus``.
    """
    return up(JVM_MB + DAEMONS_MB + slots * (ROWS_MB + (model or ModelSize()).worker_mb))


def driver_overhead_mb(
    model: ModelSize | None = None, workers: int = 2, validation_bytes: int = 0
) -> int:
    """Return what ``spark.driver.memoryOverhead`` must be in cluster mode [MB].

    There the driver's container holds its JVM, Python with TensorFlow, and the parameter server.

    Parameters
    ----------
    model : ModelSize, optional
        By default one that is not known yet.
    workers : int, default 2
        How many the run has.
    validation_bytes : int, default 0
        Bytes of the validation data, which the driver evaluates.
    """
    return up(JVM_MB + (model or ModelSize()).driver_mb(workers, validation_bytes))


@dataclass(frozen=True)
class Container:
    """What Spark asks for one container [MB].

    Parameters
    ----------
    role : "executor" or "driver"
        What runs in it.
    heap_mb : int
        ``spark.ROLE.memory``.
    overhead_mb : int
        ``spark.ROLE.memoryOverhead``, or what follows from its factor.
    python_mb : int
        ``spark.executor.pyspark.memory``, 0 if not set.
    off_heap_mb : int
        ``spark.memory.offHeap.size`` where it is on.
    """

    role: Role
    heap_mb: int
    overhead_mb: int
    python_mb: int = 0
    off_heap_mb: int = 0

    @classmethod
    def of(cls, setting: Setting, role: Role, factor: float = 0.1) -> Container:
        """Return the container that the settings describe.

        Parameters
        ----------
        setting : callable
            Gives a Spark setting.
        role : "executor" or "driver"
            What runs in it.
        factor : float, default 0.1
            The overhead's part of the heap where no setting says it.
        """
        heap = megabytes(setting(f"spark.{role}.memory") or "1g")
        least = megabytes(setting(f"spark.{role}.minMemoryOverhead") or "384m")
        part = float(setting(f"spark.{role}.memoryOverheadFactor") or factor)
        given = setting(f"spark.{role}.memoryOverhead")
        overhead = megabytes(given) if given else max(least, int(part * heap))
        if role == "driver":
            return cls(role, heap, overhead)
        off_heap = "0"
        if setting("spark.memory.offHeap.enabled") == "true":
            # The one size that Spark reads in bytes.
            off_heap = f"{setting('spark.memory.offHeap.size') or 0}"
            off_heap = f"{off_heap}b" if off_heap.isdigit() else off_heap
        python = megabytes(setting("spark.executor.pyspark.memory") or "0")
        return cls(role, heap, overhead, python, megabytes(off_heap))


def check_containers(
    setting: Setting,
    master: str,
    model: ModelSize,
    *,
    slots: int,
    workers: int,
    validation_bytes: int = 0,
) -> list[Finding]:
    """Compare what a run takes with the containers of YARN or Kubernetes.

    Elsewhere nobody limits an executor's Python, and there is no finding.

    Parameters
    ----------
    setting : callable
        Gives a Spark setting.
    master : str
        Spark's.
    model : ModelSize
        What is trained.
    slots : int
        Tasks that an executor runs at once.
    workers : int
        How many the run has.
    validation_bytes : int, default 0
        Bytes of the validation data.
    """
    if not master.startswith(("yarn", "k8s://")):
        return []
    factor = 0.4 if master.startswith("k8s://") else 0.1
    running = min(slots, workers)
    executor = Container.of(setting, "executor", factor)
    parts = (
        f"Spark's Python {DAEMONS_MB}, {running} x {model.worker_mb + ROWS_MB:.0f} for a worker "
        f"(TensorFlow {WORKER_MB}, {model.copies} x {model.vector_mb:.3g} of weights, batches "
        f"{model.block_mb:.3g}, rows on their way {ROWS_MB})"
    )
    findings = [
        *_check_address_space(executor, model, slots),
        _compare(executor, executor_overhead_mb(model, running), parts),
    ]
    if setting("spark.submit.deployMode") == "cluster":
        driver = Container.of(setting, "driver", factor)
        parts = (
            f"Python and the parameter server {model.driver_mb(workers, validation_bytes):.0f} "
            f"for {workers} workers"
        )
        needed = driver_overhead_mb(model, workers, validation_bytes)
        findings.append(_compare(driver, needed, parts))
    return findings


def check_machine(total_mb: int, heap_mb: int, model: ModelSize, workers: int) -> Finding:
    """Compare what a run takes in local mode with the memory of the machine; never bad.

    Parameters
    ----------
    total_mb : int
        What the machine has free.
    heap_mb : int
        ``spark.driver.memory``, the heap of the one JVM.
    model : ModelSize
        What is trained.
    workers : int
        How many the run has.
    """
    taken = workers * (model.worker_mb + ROWS_MB) + DAEMONS_MB
    needed = heap_mb + JVM_MB + taken + model.driver_mb(workers)
    told = (
        f"{workers} workers take about {taken:.0f} MB, driver and parameter "
        f"server {model.driver_mb(workers):.0f}, the JVM up to {heap_mb + JVM_MB}; "
        f"{total_mb} MB are free"
    )
    if needed <= total_mb:
        return Finding("memory", Level.OK, told)
    return Finding("memory", Level.WARN, f"{told}: lower num_workers or spark.driver.memory.")


def megabytes(text: str) -> int:
    """Return a size as Spark writes sizes of memory [MB].

    Raises
    ------
    ConfigurationError
        If it is no size.

    Examples
    --------
    >>> megabytes("2g"), megabytes("512"), megabytes("1048576k"), megabytes("64MB")
    (2048, 512, 1024, 64)
    """
    found = re.fullmatch(r"(\d+)\s*([bkmgtp]?)b?", text.strip().lower())
    if found is None:
        raise ConfigurationError(
            f"A size of memory is a number with its unit. Received: {text!r}. Write 512m or 2g."
        )
    power = "bkmgtp".index(found.group(2) or "m")
    return (int(found.group(1)) << 10 * power) // MB


def _compare(container: Container, needed_mb: int, parts: str) -> Finding:
    """Compare the container's room beside its heap with what is needed there."""
    role, room = container.role, container.overhead_mb + container.python_mb
    name = f"spark.{role}.memoryOverhead"
    subject = f"{role} memory"
    beside = f"{name} {container.overhead_mb}"
    if container.python_mb:
        beside += f" + spark.executor.pyspark.memory {container.python_mb}"
    if needed_mb <= room:
        text = f"{beside} MB for {needed_mb} MB beside the heap of {container.heap_mb}"
        return Finding(subject, Level.OK, text)
    return Finding(
        subject,
        Level.BAD,
        f"Beside its heap (spark.{role}.memory {container.heap_mb} MB) the {role}'s container has "
        f"{room} MB ({beside}) for {needed_mb}: JVM {JVM_MB}, {parts}. A container that takes "
        f"more is killed: set {name}={needed_mb - container.python_mb}m.",
    )


def _check_address_space(container: Container, model: ModelSize, slots: int) -> list[Finding]:
    """Look at the limit that Spark sets a worker's address space to, which is no memory."""
    limit = container.python_mb // slots
    needed = up(model.worker_mb + RESERVED_MB)
    if not limit or limit >= needed:
        return []
    return [
        Finding(
            "executor memory",
            Level.BAD,
            f"spark.executor.pyspark.memory limits the address space of a worker to {limit} MB, "
            f"of which TensorFlow reserves {RESERVED_MB} that it never uses, beside "
            f"{model.worker_mb:.0f} in use. Leave it unset, and use spark.executor.memoryOverhead.",
        )
    ]


def up(needed_mb: float) -> int:
    """Return a size in the steps in which sizes are named [MB].

    Examples
    --------
    >>> up(1000.5)
    1024
    """
    return int(-(-needed_mb // STEP_MB) * STEP_MB)
