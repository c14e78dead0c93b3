"""Builds the mind of a worker, for a Spark task and for the simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from distkeras_grid.rules import Rule, accumulators, compression_of
from distkeras_grid.worker.mind import WorkerMind

if TYPE_CHECKING:
    from distkeras_grid.feeding.batches import Policy
    from distkeras_grid.spec import RunSpec
    from distkeras_grid.weights import WeightLayout


def worker_mind(
    spec: RunSpec,
    rule: Rule,
    layout: WeightLayout,
    policy: Policy,
    worker: int,
    *,
    dtype: Any = np.float32,
) -> WorkerMind:
    """Return the mind of a worker.

    Parameters
    ----------
    spec : RunSpec
        The run.
    rule : Rule
        Its update rule.
    layout : WeightLayout
        Layout of the vectors.
    policy : Policy
        Its windows.
    worker : int
        Number of the worker.
    dtype : dtype, default float32
        Type of the vectors.
    """
    earlier = spec.schedule.earlier
    return WorkerMind(
        worker,
        rule,
        layout,
        policy,
        accumulator=accumulators(compression_of(spec.exchange.compression), layout, spec.workers),
        slots_travel=spec.algorithm.optimizer_state == "average",
        sends_all=spec.skips_nonfinite,
        first_version=0 if earlier is None else earlier.version,
        dtype=dtype,
    )
