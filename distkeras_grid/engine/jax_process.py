"""JAX in a worker's process: its threads, its GPUs."""

from __future__ import annotations

import logging
import os

logger = logging.getLogger(__name__)

# Threads of each pool of the CPU client of XLA, which reads it with the first operation. Its
# own flags do not change the pools (jaxlib 0.10).
THREADS = "PJRT_NPROC"

# The number of this process, once it is known.
_in_force: list[int] = []


def prepare_process(threads: int) -> int:
    """Limit JAX to some threads, before its first operation."""
    import jax

    if not _in_force:
        try:
            # One device has all threads. JAX refuses the number if it runs already.
            jax.config.update("jax_num_cpu_devices", 1)
        except RuntimeError:
            _in_force.append(int(os.environ.get(THREADS, "0")))
        else:
            os.environ[THREADS] = str(threads)
            _in_force.append(threads)
    (in_force,) = _in_force
    if in_force != threads:
        logger.warning(
            "JAX already runs in this process with %s threads, %s were asked for; start a fresh "
            "Python process (spark.python.worker.reuse=false) to change it",
            in_force or "all cores as",
            threads,
        )
    return in_force


def count_gpus() -> int:
    """Return how many GPUs JAX sees."""
    import jax

    return sum(device.platform == "gpu" for device in jax.devices())
