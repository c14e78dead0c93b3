"""Batch normalization's statistics, measured again on all rows after the training."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from distkeras_grid.engine.compile_settings import has_own_train_step
from distkeras_grid.engine.keras_model import (
    model_to_bytes,
    normalizations,
    set_flat_statistics,
)
from distkeras_grid.errors import ClusterError, ConfigurationError
from distkeras_grid.spark.launch import Launch
from distkeras_grid.worker.recalibration import STATISTICS_SCHEMA, measure_statistics

if TYPE_CHECKING:
    import keras
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from distkeras_grid.rules import Rule
    from distkeras_grid.trainers.run_status import RunProgress
    from distkeras_grid.worker.task import WorkerPlan

# Time between two looks at the job, so that an interrupt gets through.
POLL_SECONDS = 0.5


def check_recalibration(rule: Rule, model: keras.Model, who: str) -> None:
    """Refuse to measure statistics if there are none, or if each worker keeps its own.

    Raises
    ------
    ConfigurationError
        If it is refused. The message says why.
    """
    if rule.traits.own_center:
        reason = f"{who}'s members keep their own statistics, which are those of their own weights"
    elif has_own_train_step(model):
        reason = f"{type(model).__name__} has a train_step of its own, which may not call the model"
    elif not normalizations(model):
        reason = f"model {model.name!r} has no layer of batch normalization that trains"
    else:
        return
    raise ConfigurationError(f"{reason}. Received: statistics='recalibrate'; leave it out.")


def recalibrate(
    model: keras.Model,
    dealt: DataFrame,
    plan: WorkerPlan,
    progress: RunProgress,
    seconds: float,
) -> None:
    """Measure a trained model's statistics with its final weights, in a Spark job.

    Parameters
    ----------
    model : keras.Model
        Trained; changed in place.
    dealt : DataFrame
        The rows, as the workers had them.
    plan : WorkerPlan
        Theirs.
    progress : RunProgress
        Told what is done.
    seconds : float
        How long the job may take.

    Raises
    ------
    GridError
        If the job fails, or takes longer.
    """
    progress.note("measuring the statistics of batch normalization on all rows")
    plan = replace(plan, model=model_to_bytes(model))
    name = f"{plan.run} statistics"
    launch = Launch(dealt, partial(measure_statistics, plan), STATISTICS_SCHEMA, name)
    launch.start()
    deadline = time.monotonic() + seconds
    try:
        # Spark itself gives up a job whose tasks fail, but waits for one that hangs.
        while not launch.wait(POLL_SECONDS):
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"The job {name!r} has not ended after {seconds:.0f} s, several times as long "
                    "as an epoch of the training. Look for tasks that hang in Spark's pages."
                )
    finally:
        # Also on an interrupt.
        launch.cancel()
    sums = [(row["rows"], np.frombuffer(row["sums"], np.float64)) for row in launch.result()]
    set_statistics(model, sums)


def set_statistics(model: keras.Model, sums: Iterable[tuple[int, NDArray[np.float64]]]) -> None:
    """Write the mean of what was measured at several places into a model.

    Parameters
    ----------
    model : keras.Model
        Changed in place.
    sums : iterable of (int, ndarray)
        Rows and sums, as `ModelEngine.measure_statistics` returns them.
    """
    counts, vectors = zip(*sums, strict=True)
    set_flat_statistics(model, np.sum(vectors, axis=0) / sum(counts))
