"""A worker's core and its local tests, for a Spark task and for the simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from distkeras_grid.rules import LocalSteps, Rule, accumulators, compression_of
from distkeras_grid.worker.worker_core import WorkerCore

if TYPE_CHECKING:
    from distkeras_grid.feeding.batches import BatchSampler
    from distkeras_grid.outliers import Validate
    from distkeras_grid.spec import RunSpec
    from distkeras_grid.weights import Vector, WeightLayout
    from distkeras_grid.worker.worker_core import Compute


def new_worker_core(
    spec: RunSpec,
    rule: Rule,
    layout: WeightLayout,
    policy: BatchSampler,
    worker: int,
    *,
    validate: Validate | None = None,
    dtype: Any = np.float32,
    send_buffer: Vector | None = None,
) -> WorkerCore:
    """Return the core of a worker."""
    return WorkerCore(
        worker,
        rule,
        layout,
        policy,
        accumulator=accumulators(compression_of(spec.exchange.compression), layout),
        sends_nonfinite=spec.skips_nonfinite,
        validate=validate,
        dtype=dtype,
        send_buffer=send_buffer,
    )


def tested_weights(rule: Rule, done: Compute) -> Vector:
    """Return the weights that a local test is about, of a window that has been trained.

    They are the worker's own after the window, or those before it if workers send gradients.
    """
    has_weights = rule.traits.local_steps in (LocalSteps.OPTIMIZER, LocalSteps.LOOK_AHEAD)
    return done.after if has_weights else done.before
