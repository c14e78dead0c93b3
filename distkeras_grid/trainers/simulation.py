"""``Trainer.simulate``: a run on a simulated cluster, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from distkeras_grid.engine.keras_model import set_center
from distkeras_grid.engine.metric_state import build_metrics, results_of
from distkeras_grid.engine.outcome import TrainOutcome, take_outcomes
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.feeding.batches import policy_of
from distkeras_grid.history import History
from distkeras_grid.rules import Rule, rule_of
from distkeras_grid.simulation.cluster import Cluster
from distkeras_grid.simulation.run import Simulation
from distkeras_grid.simulation.shared_engine import SharedEngine
from distkeras_grid.spec import RunSpec
from distkeras_grid.trainers.arguments import check_backend
from distkeras_grid.trainers.description import choices, headline_of
from distkeras_grid.trainers.model_bundle import compiled_copy
from distkeras_grid.trainers.preflight import (
    check_method,
    complete_spec,
    rule_for,
)
from distkeras_grid.trainers.run import epoch_line
from distkeras_grid.trainers.run_status import TRAINING, RunProgress, run_progress
from distkeras_grid.trainers.simulation_data import array_shapes, deal, read_data
from distkeras_grid.trainers.validation import batch_of, evaluate
from distkeras_grid.worker.task import EnginePlan, engine_of

if TYPE_CHECKING:
    import keras

    from distkeras_grid.engine.keras_engine import KerasEngine
    from distkeras_grid.feeding.source import ArraySource
    from distkeras_grid.rows import RowBlock
    from distkeras_grid.trainers.config import TrainerConfig, TrainingData
    from distkeras_grid.weights import WeightLayout


@dataclass(frozen=True)
class SimulatedRun:
    """What `Trainer.simulate` returns."""

    model: keras.Model = field(repr=False)  # A new model with the trained weights, compiled
    history: History  # All its times are simulated seconds; ``params["time"]`` says so
    cluster: Cluster  # The cluster, with the times that were measured
    # Simulated time for which each worker has trained [s]; the rest of the time it waited
    computing_seconds: tuple[float, ...]
    lost: int  # Number of attempts that were lost
    spec: RunSpec = field(repr=False)  # The run as a value; it can be compared and saved


def simulate(
    config: TrainerConfig, request: TrainingData, cluster: Cluster, display: Any = None
) -> SimulatedRun:
    """Run in simulated time; see `Trainer.simulate`."""
    check_backend()
    _check_workers(config.requested_workers, cluster)
    compiled = compiled_copy(config, array_shapes(request.data))
    model = compiled.model
    check_method(config, model)
    _check_centers(config, model, cluster.workers)
    objects = compiled.objects
    data, described, held_out = read_data(config, request, model)
    spec, window = complete_spec(config, request, compiled, described, len(data), cluster.workers)
    rule, rows = rule_of(spec.rule), deal(data, spec)
    plan = EnginePlan(spec, compiled.archive, objects)
    engine = engine_of(plan)
    first = next(policy_of(spec.schedule, len(rows[0]), 0).windows())
    block = next(rows[0].blocks(first.blocks))
    cluster = _timed(cluster, engine, block)
    sample = block.part(slice(1), slice(1))
    build_metrics(model, batch_of(model, rows[0].fields, plan.labels, sample))
    shared = SharedEngine(engine, cluster.workers, request.seed if cluster.workers > 1 else None)
    simulation = Simulation(
        cluster,
        spec,
        shared.of,
        rows,
        evaluate=_evaluation(model, held_out, engine.layout, rule),
        results=partial(results_of, model),
        validate=config.validate_function,
    )
    milliseconds = 1e3 * (cluster.batch_seconds or 0.0)
    headline = (
        f"in simulated time, {milliseconds:.3g} ms a batch: {headline_of(spec, rule, window)}"
    )
    lines = [headline, *choices(window, spec)]
    with run_progress(display) as progress:
        _watch(simulation, spec, progress, lines)
    set_center(model, simulation.center, engine.layout, rule)
    outcomes = (shared.of(worker).outcome() for worker in range(len(rows)))
    take_outcomes(model, [TrainOutcome(n, len(rows[n]), left) for n, left in enumerate(outcomes)])
    computed = tuple(worker.computed for worker in simulation.workers)
    return SimulatedRun(model, simulation.history, cluster, computed, simulation.lost, spec)


def _check_workers(asked: int | None, cluster: Cluster) -> None:
    if asked not in (None, cluster.workers):
        raise ConfigurationError(
            f"Cluster and trainer must have the same number of workers. Received: "
            f"{cluster.workers} workers and num_workers={asked}. Leave num_workers out, or give "
            "both the same number."
        )


def _check_centers(config: TrainerConfig, model: keras.Model, workers: int) -> None:
    if rule_for(config, workers, model).traits.own_center:
        raise ConfigurationError(
            f"{config.trainer_name}'s workers do not affect each other, so there is "
            "nothing to simulate. Use train(), or simulate another trainer."
        )


def _timed(cluster: Cluster, engine: KerasEngine, block: RowBlock) -> Cluster:
    """Return the cluster with its time of a batch, which is measured here if it is not given."""
    # Once even if the time is given, because the engine refuses here what it cannot train.
    times = 1 if cluster.batch_seconds else 3
    # The smallest of a few times, because other work on this machine only adds to it.
    seconds = min(engine.warm_up(block) for _ in range(times)) / block.steps
    return cluster if cluster.batch_seconds else replace(cluster, batch_seconds=seconds)


def _watch(
    simulation: Simulation, spec: RunSpec, progress: RunProgress, lines: Sequence[str]
) -> None:
    """Run to the end, and show the progress in simulated time."""
    epochs, shown = simulation.history.epoch_records, 0
    progress.update(total_samples=spec.rows * spec.epochs, epochs=spec.epochs, workers=spec.workers)
    for line in lines:
        progress.note(line)
    while simulation.advance():
        progress.update(
            phase=TRAINING,
            epoch=len(epochs) + 1,
            samples=simulation.samples,
            active=sum(worker.session is not None for worker in simulation.workers),
            busy_with=f"at {simulation.now:.1f} s of simulated time",
        )
        for record in epochs[shown:]:
            progress.note(f"simulated time: {epoch_line(record, spec.epochs)}")
        shown = len(epochs)


def _evaluation(
    model: keras.Model, rows: ArraySource | None, layout: WeightLayout, rule: Rule
) -> Any:
    if rows is None:
        return None

    def evaluate_center(center: Any) -> dict[str, float]:
        set_center(model, center, layout, rule)
        return evaluate(model, rows)

    return evaluate_center
