"""The GPUs of a worker: those that Spark gave its task, and no others.

The settings for all backends are tested. How they behave on a GPU is not, because none was
available.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from distkeras_grid.engine.registry import BACKENDS
from distkeras_grid.errors import ClusterError, ConfigurationError

VISIBLE = "CUDA_VISIBLE_DEVICES"


def gpus_of(resources: Mapping[str, Any]) -> list[str] | None:
    """Return the addresses of a task's GPUs, None if Spark gave it none."""
    gpus = resources.get("gpu")
    return None if gpus is None else [str(address) for address in gpus.addresses]


def use_gpus(addresses: Sequence[str] | None) -> None:
    """Make only these GPUs visible to Keras' backend, before it is imported.

    The backend then allocates GPU memory as it needs it.

    `addresses`: numbers of the GPUs on this host; None keeps the environment's setting.
    """
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if addresses is None:
        return
    visible = ",".join(addresses)
    running = [name for name in BACKENDS if name in sys.modules]
    if running and os.environ.get(VISIBLE) != visible:
        raise ClusterError(
            f"This Python process already runs {running[0]} with {VISIBLE}="
            f"{os.environ.get(VISIBLE, '')}, and Spark gave the task GPU {visible}: set "
            "spark.python.worker.reuse=false."
        )
    os.environ[VISIBLE] = visible


def refuse_unassigned(addresses: Sequence[str] | None, visible: int, workers: int) -> None:
    """Refuse GPUs that workers see although Spark has not assigned them."""
    if addresses is None and visible and workers > 1:
        raise ConfigurationError(
            f"This worker sees {visible} GPU of its host, as the {workers - 1} others may, and "
            "Spark gave it to none of them. Let Spark give each its own "
            "(spark.executor.resource.gpu.amount, spark.task.resource.gpu.amount=1), share it "
            "(gpu_sharing=True), or train on CPUs (spark.executorEnv.CUDA_VISIBLE_DEVICES=-1; in "
            "local mode CUDA_VISIBLE_DEVICES=-1)."
        )
