"""Prepares a run that goes on from a checkpoint, and checks that it is the same run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from distkeras_grid.engine.compile_settings import compile_model
from distkeras_grid.engine.keras_model import model_from_bytes
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.parameter_server.checkpoint_state import trained_so_far
from distkeras_grid.rules import rule_of
from distkeras_grid.trainers.model_bundle import CompiledModel

if TYPE_CHECKING:
    from distkeras_grid.history import History
    from distkeras_grid.spec import RunSpec
    from distkeras_grid.trainers.checkpoint_writer import ResumedRun
    from distkeras_grid.trainers.config import TrainerConfig, TrainingData


def with_saved_settings(
    config: TrainerConfig, data: TrainingData, resumed: ResumedRun
) -> tuple[TrainerConfig, TrainingData]:
    """Return the seed, workers and stages that the run began with, where none were given."""
    schedule, cuts = resumed.spec.schedule, resumed.driver.cuts
    if config.requested_workers is None:
        config = config.replace(num_workers=schedule.workers)
    if cuts is not None and not config.stages:
        config = config.replace(num_workers=len(cuts) + 1)
    return config, data if data.seed_chosen else replace(data, seed=schedule.seed)


def recompile(compiled: CompiledModel, resumed: ResumedRun) -> CompiledModel:
    """Return the run's model with its frozen weights, adapted layers and layer seeds."""
    model = model_from_bytes(resumed.model, compiled.objects)
    compile_model(model)
    return replace(compiled, model=model, archive=resumed.model)


def check_same_run(spec: RunSpec, resumed: ResumedRun) -> None:
    """Refuse to go on with another run than the checkpoint's.

    Limits and the path of the data may differ. Each worker checks whether its rows are the same.
    The number of workers may differ where workers have a share of the rows each, and with it the
    window and the numbers of the rule that follow from it.
    """
    begun = resumed.spec
    other = begun.workers != spec.workers
    if other:
        _check_divisible(begun, spec)
    comparable = partial(_comparable, other_workers=other)
    difference = next(_differences(comparable(begun), comparable(spec)), None)
    if difference is None:
        return
    name, then, now = difference
    raise ConfigurationError(
        f"A run goes on with the arguments, the model and the columns with which it began. "
        f"Checkpoint {resumed.manifest.number}: {name} = {then!r}. Received: {now!r}. Give the "
        "same, or begin anew in another checkpoint_dir."
    )


def resumed_spec(spec: RunSpec, resumed: ResumedRun) -> RunSpec:
    """Return the run from the checkpoint on: with what other workers have trained before."""
    if spec.workers == resumed.spec.workers:
        return spec.change(earlier=resumed.spec.schedule.earlier)
    return spec.change(earlier=trained_so_far(resumed.parts[0]))


def points_of(
    spec: RunSpec, resumed: ResumedRun | None, lost_samples: int | None
) -> list[dict[str, float | str]]:
    """Return the points from which a run has gone on, for its history."""
    if resumed is None and lost_samples is None:
        return []
    samples = 0 if resumed is None else resumed.manifest.samples
    point: dict[str, float | str] = {"restarted": "driver", "at": time.time()}
    if lost_samples is not None:
        point |= {"restarted": "server", "repeated": lost_samples - samples}
    if resumed is None:
        return [point | {"checkpoint": 0, "version": 0, "samples": 0}]
    return [*resumed.driver.resumed, point | resumed.point() | change_of_workers(spec, resumed)]


def change_of_workers(spec: RunSpec, resumed: ResumedRun) -> dict[str, float | str]:
    """Return what the history says about another number of workers; nothing if it is the same."""
    before = resumed.spec.workers
    if spec.workers == before:
        return {}
    return {
        "workers_before": before,
        "workers": spec.workers,
        "repeated": spec.schedule.repeated - resumed.spec.schedule.repeated,
    }


def going_on_notes(spec: RunSpec, history: History, point: Mapping[str, float | str]) -> list[str]:
    """Return lines for the user about a run that goes on."""
    if not point["checkpoint"]:
        return []
    notes = [
        f"going on from checkpoint {point['checkpoint']}: {len(history.epoch_records)} of "
        f"{spec.epochs} epochs, {history.samples} samples"
    ]
    if "workers" in point:
        notes.append(
            f"{point['workers']} workers go on in place of {point['workers_before']}, from the "
            f"center and the beginning of epoch {1 + spec.schedule.epochs_before}; "
            f"{point['repeated']} samples are trained again"
        )
    return notes


def _check_divisible(begun: RunSpec, spec: RunSpec) -> None:
    """Refuse another number of workers where a worker is more than a share of the rows."""
    reason = ""
    if rule_of(spec.rule).traits.own_center or spec.data.share != "partition":
        reason = "each worker has a model of its own, which no other worker can go on with"
    elif spec.data.local is not None:
        reason = "each worker draws its own local sets, as many as the run has iterations"
    elif begun.exchange.servers > 1:
        reason = "some servers have windows that others lack, and these workers train them again"
    if reason:
        raise ConfigurationError(
            f"{spec.algorithm.trainer} goes on with the number of workers with which it began, "
            f"because {reason}. Checkpoint: {begun.workers} workers. Received: {spec.workers}."
        )


def _comparable(spec: RunSpec, *, other_workers: bool) -> dict[str, Any]:
    data = msgspec.structs.replace(spec.data, source="", validation=None)
    spec = spec.change(
        data=data, snapshots_per_epoch=0, epoch_barrier=False, jit="auto", earlier=None
    )
    if other_workers:
        # They follow from the trainer's arguments, which are compared, and from the workers.
        rule = msgspec.structs.replace(spec.rule, parameters={})
        spec = spec.change(rule=rule, workers=1, window=None)
    return {name: value for name, value in spec.to_json().items() if name != "limits"}


def _differences(then: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(then, dict) and isinstance(now, dict) and set(then) == set(now):
        for key in then:
            yield from _differences(then[key], now[key], f"{name}.{key}" if name else key)
    elif then != now:
        yield name, then, now
