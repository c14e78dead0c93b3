"""Prepares a run that goes on from a checkpoint, and checks that it is the same run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from distkeras_grid.engine.compile_settings import compile_model
from distkeras_grid.engine.keras_model import adapted_digest, model_from_bytes
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.parameter_server.checkpoint_state import trained_so_far
from distkeras_grid.rules import rule_of
from distkeras_grid.spec import RunSpec
from distkeras_grid.trainers.model_bundle import CompiledModel

if TYPE_CHECKING:
    from distkeras_grid.history import History
    from distkeras_grid.trainers.checkpoint_writer import ResumedRun
    from distkeras_grid.trainers.run_request import RunRequest


def with_saved_settings(request: RunRequest, resumed: ResumedRun) -> RunRequest:
    """Return a request with the seed, workers and stages that the run began with."""
    begun = RunSpec.from_json(resumed.manifest.spec)
    schedule = begun.schedule
    draft, data = request.draft, request.data
    if draft.pace.num_workers is None:
        pace = msgspec.structs.replace(draft.pace, num_workers=schedule.workers)
        draft = msgspec.structs.replace(draft, pace=pace)
    if not data.seed_given:
        data = replace(data, seed=schedule.seed)
    method, cuts = request.method, resumed.driver.cuts
    if cuts is not None and not method.stages:
        method = replace(method, stages=len(cuts) + 1, devices=len(cuts) + 1)
    return replace(request, draft=draft, method=method, data=data)


def recompile(
    compiled: CompiledModel, resumed: ResumedRun, tell: Callable[[str], object]
) -> CompiledModel:
    """Return the run's model with its frozen weights, adapted layers and layer seeds."""
    model = model_from_bytes(resumed.model, compiled.objects)
    compile_model(model)
    if adapted_digest(model) != adapted_digest(compiled.model):
        tell(
            "the model that was given has other adapted layers (such as Normalization) than the "
            "checkpoint; the run goes on with those of the checkpoint"
        )
    return replace(compiled, model=model, archive=resumed.model)


def check_same_run(spec: RunSpec, resumed: ResumedRun) -> None:
    """Refuse to go on with another run than the checkpoint's.

    Limits and the path of the data may differ. Each worker checks whether its rows are the same.
    The number of workers may differ where workers have a share of the rows each, and with it the
    window and the numbers of the rule that follow from it.
    """
    begun = RunSpec.from_json(resumed.manifest.spec)
    other = begun.workers != spec.workers
    if other:
        _check_divisible(begun, spec)
    comparable = partial(_comparable, other_workers=other)
    then = comparable(_with_described_labels(begun, spec))
    told = next(_differences(then, comparable(spec)), None)
    if told is None:
        return
    name, then, now = told
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
    return [*resumed.driver.resumed, point | resumed.told() | change_of_workers(spec, resumed)]


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


def going_on_notes(spec: RunSpec, history: History, told: Mapping[str, float | str]) -> list[str]:
    """Return lines for the user about a run that goes on."""
    if not told["checkpoint"]:
        return []
    notes = [
        f"going on from checkpoint {told['checkpoint']}: {len(history.epoch_records)} of "
        f"{spec.epochs} epochs, {history.samples} samples"
    ]
    if "workers" in told:
        notes.append(
            f"{told['workers']} workers go on in place of {told['workers_before']}, from the "
            f"center and the beginning of epoch {1 + spec.schedule.epochs_before}; "
            f"{told['repeated']} samples are trained again"
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


def _with_described_labels(begun: RunSpec, spec: RunSpec) -> RunSpec:
    """Return the checkpoint's run; version 0.1.0 kept the names of labels without a description."""
    then, now = begun.data.labels, spec.data.labels
    if len(then) != len(now):
        return begun
    labels = tuple(
        new if isinstance(new, dict) and old == {"name": new["name"]} else old
        for old, new in zip(then, now, strict=True)
    )
    return begun.change(data=msgspec.structs.replace(begun.data, labels=labels))


def _comparable(spec: RunSpec, *, other_workers: bool) -> dict[str, Any]:
    data = msgspec.structs.replace(spec.data, source="", validation=None)
    spec = spec.change(
        data=data, snapshots_per_epoch=0, epoch_barrier=False, jit="auto", earlier=None
    )
    if other_workers:
        # They follow from the trainer's arguments, which are compared, and from the workers.
        rule = msgspec.structs.replace(spec.rule, parameters={})
        spec = spec.change(rule=rule, workers=1, window=None)
    same: dict[str, Any] = {name: v for name, v in spec.to_json().items() if name != "limits"}
    # What was not given is None. Other versions have other settings.
    algorithm = same["algorithm"]
    given = {name: value for name, value in algorithm["compile"].items() if value is not None}
    return same | {"algorithm": algorithm | {"compile": given}}


def _differences(then: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(then, dict) and isinstance(now, dict) and set(then) == set(now):
        for key in then:
            yield from _differences(then[key], now[key], f"{name}.{key}" if name else key)
    elif then != now:
        yield name, then, now
