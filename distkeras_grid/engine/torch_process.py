"""PyTorch in a worker's process: its threads, its GPUs."""

from __future__ import annotations

import os
import sys


def prepare_process(threads: int) -> int:
    """Limit PyTorch to some threads.

    Unlike the other backends, PyTorch also takes another number while it runs.
    """
    if "torch" not in sys.modules:
        # What PyTorch calls, such as MKL, reads it once.
        os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    torch.set_num_threads(threads)
    in_force: int = torch.get_num_threads()
    return in_force


def count_gpus() -> int:
    """Return how many GPUs PyTorch sees."""
    import torch

    count: int = torch.cuda.device_count()
    return count
