"""On which Keras backend the workers train: the driver's, a named one, or the fastest."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from distkeras_grid.engine.registry import BACKENDS, current_backend
from distkeras_grid.errors import (
    ClusterError,
    ConfigurationError,
    EnvironmentMismatchError,
    GridError,
)
from distkeras_grid.rows import Block
from distkeras_grid.spark.interpreters import (
    check_executors,
    package_versions,
    ship_backend,
    training_packages,
)
from distkeras_grid.spark.launch import Launch
from distkeras_grid.trainers.arguments import AUTO, checked_engine
from distkeras_grid.trainers.validation import collect
from distkeras_grid.worker.speed import SPEED_SCHEMA, measure_speed
from distkeras_grid.worker.task import EnginePlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from distkeras_grid.rules import Rule
    from distkeras_grid.spark.columns import Columns
    from distkeras_grid.spec import RunSpec

# Batches of a measured window, and its bytes, which travel with each task.
MOST_STEPS = 16
MOST_BYTES = 32 * 2**20
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class EngineSpeed:
    """How fast all workers together train on one backend.

    Parameters
    ----------
    backend : str
        The backend of Keras.
    samples_per_second : float or None
        Sum over all workers while each computes windows without exchanges; None if it cannot train.
    problem : str, default ""
        Why it cannot.
    """

    backend: str
    samples_per_second: float | None
    problem: str = ""


def backend_of(engine: str | None, rule: Rule, who: str) -> str:
    """Return the backend that executors are checked for; with "auto" the fastest takes its place.

    Parameters
    ----------
    engine : str or None
        The trainer's argument.
    rule : Rule
        The update rule.
    who : str
        Name of the trainer, for the error.

    Raises
    ------
    ConfigurationError
        As `checked_engine` does.
    """
    asked, here = checked_engine(engine, rule, who), current_backend()
    return here if asked in (None, AUTO) else str(asked)


def measured_block(frame: DataFrame, columns: Columns, spec: RunSpec) -> Block:
    """Return some rows of a run as a block like those of its windows.

    Parameters
    ----------
    frame : DataFrame
        The rows; fewer are repeated.
    columns : Columns
        Which columns.
    spec : RunSpec
        The run.
    """
    batch = spec.batch_size
    steps = min(spec.window or MOST_STEPS, MOST_STEPS, MOST_BYTES // (batch * columns.row_bytes))
    shape = (max(1, steps), batch)
    rows = collect(frame.limit(shape[0] * shape[1]), columns)
    (block,) = rows.blocks([(np.arange(shape[0] * shape[1]) % len(rows)).reshape(shape)])
    return block


def measure_backends(
    spark: SparkSession,
    spec: RunSpec,
    model: bytes,
    objects: Mapping[str, Any],
    block: Block,
) -> list[EngineSpeed]:
    """Measure each backend that is installed, one after another, in tasks of all workers.

    Parameters
    ----------
    spark : SparkSession
        The session.
    spec : RunSpec
        The run.
    model : bytes
        The compiled model as a ``.keras`` archive.
    objects : mapping of str to object
        The user's own classes and functions.
    block : Block
        What `measured_block` returned.

    Returns
    -------
    list of EngineSpeed
        The fastest first; those that cannot train last.

    Raises
    ------
    ConfigurationError
        If no backend can train the model. The message has all reasons.
    """
    found = []
    for backend in BACKENDS:
        packages = training_packages(backend)
        if None in package_versions(packages).values():
            found.append(EngineSpeed(backend, None, "not installed on the driver"))
            continue
        try:
            check_executors(spark, packages)
        except EnvironmentMismatchError as error:
            found.append(EngineSpeed(backend, None, str(error)))
            continue
        plan = EnginePlan(spec.change(backend=backend), model, objects)
        found.append(_measured(spark, plan, block))
    found.sort(key=lambda speed: -(speed.samples_per_second or 0.0))
    if found[0].samples_per_second is None:
        reasons = "; ".join(f"{speed.backend}: {speed.problem}" for speed in found)
        raise ConfigurationError(f"No backend of Keras can train the model. Received: {reasons}.")
    return found


def _measured(spark: SparkSession, plan: EnginePlan, block: Block) -> EngineSpeed:
    backend, workers = plan.spec.algorithm.backend, plan.spec.workers
    ship_backend(spark, backend)
    one_each = spark.range(0, workers, 1, workers)
    name = f"speed of {backend}"
    launch = Launch(one_each, partial(measure_speed, plan, block), SPEED_SCHEMA, name)
    launch.start()
    deadline = time.monotonic() + plan.spec.limits.start_timeout
    try:
        while not launch.wait(POLL_SECONDS):
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"The job {name!r} has not ended after start_timeout="
                    f"{plan.spec.limits.start_timeout:g} s. Name an engine in place of 'auto', or "
                    "give it more time."
                )
    finally:
        launch.cancel()
    try:
        rows = launch.result()
    except GridError as error:
        # A backend may end its process: memory runs out, or this processor lacks an instruction.
        return EngineSpeed(backend, None, str(error))
    if problem := next((row["problem"] for row in rows if row["problem"]), None):
        return EngineSpeed(backend, None, str(problem))
    return EngineSpeed(backend, sum(block.samples / row["seconds"] for row in rows))


def describe_speeds(speeds: Sequence[EngineSpeed]) -> list[dict[str, Any]]:
    """Return what was measured as JSON values, for the history."""
    return [asdict(speed) for speed in speeds]


def speeds_line(speeds: Sequence[EngineSpeed], workers: int) -> str:
    """Return the line that says what was measured, and what is used.

    Examples
    --------
    >>> speeds_line([EngineSpeed("jax", 20000.4), EngineSpeed("torch", None, "absent")], 1)[:44]
    'engine: jax, which measured fastest (samples'
    """
    told = [
        f"{speed.backend} {speed.samples_per_second:,.0f}"
        if speed.samples_per_second is not None
        else f"{speed.backend} none, {speed.problem}"
        for speed in speeds
    ]
    crew = f"{workers} workers" if workers > 1 else "1 worker"
    return (
        f"engine: {speeds[0].backend}, which measured fastest (samples/s of {crew} without "
        f"exchanges: {'; '.join(told)})"
    )
