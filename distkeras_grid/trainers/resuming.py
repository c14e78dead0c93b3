"""Prepares a run that goes on from a checkpoint, and checks that it is the same run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from distkeras_grid.engine.compile_settings import compile_model
from distkeras_grid.engine.keras_model import model_from_bytes
from distkeras_grid.errors import ConfigurationError
from distkeras_grid.spec import RunSpec
from distkeras_grid.trainers.compiled import CompiledModel

if TYPE_CHECKING:
    from distkeras_grid.trainers.checkpointing import Resumed
    from distkeras_grid.trainers.request import RunRequest


def as_begun(request: RunRequest, resumed: Resumed) -> RunRequest:
    """Return a request with the seed and the number of workers that the run chose when it began.

    Parameters
    ----------
    request : RunRequest
        The present request.
    resumed : Resumed
        The checkpoint.
    """
    schedule = RunSpec.from_json(resumed.manifest.spec).schedule
    draft, data = request.draft, request.data
    if draft.pace.num_workers is None:
        pace = msgspec.structs.replace(draft.pace, num_workers=schedule.workers)
        draft = msgspec.structs.replace(draft, pace=pace)
    if not data.seed_given:
        data = replace(data, seed=schedule.seed)
    return replace(request, draft=draft, data=data)


def compiled_again(
    compiled: CompiledModel, resumed: Resumed, objects: Mapping[str, Any]
) -> CompiledModel:
    """Return the run's own model, with its frozen weights and the seeds of its layers.

    Parameters
    ----------
    compiled : CompiledModel
        The model of the present request.
    resumed : Resumed
        The checkpoint.
    objects : mapping of str to object
        The user's own classes and functions.
    """
    model = model_from_bytes(resumed.model, objects)
    compile_model(model)
    return CompiledModel(model, resumed.model, compiled.described)


def check_same_run(spec: RunSpec, resumed: Resumed) -> None:
    """Refuse to go on with another run than the checkpoint's.

    Limits and the path of the data may differ. Each worker checks whether its rows are the same.

    Parameters
    ----------
    spec : RunSpec
        The run that is asked for.
    resumed : Resumed
        The checkpoint.

    Raises
    ------
    ConfigurationError
        If the runs differ. Names the first difference.
    """
    begun = RunSpec.from_json(resumed.manifest.spec)
    told = next(_differences(_comparable(begun), _comparable(spec)), None)
    if told is None:
        return
    name, then, now = told
    raise ConfigurationError(
        f"A run goes on with the arguments, the model and the columns with which it began. "
        f"Checkpoint {resumed.manifest.number}: {name} = {then!r}. Received: {now!r}. Give the "
        "same, or begin anew in another checkpoint_dir."
    )


def _comparable(spec: RunSpec) -> dict[str, Any]:
    data = msgspec.structs.replace(spec.data, source="", validation=None)
    same = spec.change(data=data, snapshots_per_epoch=0, jit="auto").to_json()
    return {name: value for name, value in same.items() if name != "limits"}


def _differences(then: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(then, dict) and isinstance(now, dict) and set(then) == set(now):
        for key in then:
            yield from _differences(then[key], now[key], f"{name}.{key}" if name else key)
    elif then != now:
        yield name, then, now
