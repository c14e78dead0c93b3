"""What is said of a run: its description for ``run.json``, and the lines that announce it."""

from __future__ import annotations

import math
import platform
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from distkeras_grid.spark.interpreters import TRAINING_PACKAGES, package_versions
from distkeras_grid.trainers.defaults import WindowChoice

if TYPE_CHECKING:
    from distkeras_grid.history import History
    from distkeras_grid.rules import Rule
    from distkeras_grid.spec import OptimizerState, RunSpec, StatisticsSource
    from distkeras_grid.trainers.request import TrainRequest


# Share of the workers' time that exchanges took, from which fewer bytes are worth their rounding.
PAYS_FROM = 0.1
# Share of the bytes above which they are not fewer.
SAVES_BELOW = 0.9


def describe_run(
    run: str,
    spec: RunSpec,
    rule: Rule,
    request: TrainRequest,
    master: str,
    custom_objects: Iterable[str] = (),
) -> dict[str, Any]:
    """Return what a run is, as JSON values.

    Parameters
    ----------
    run : str
        Its name.
    spec : RunSpec
        The run; stands under ``spec``, from which `RunSpec.from_json` builds it again.
    rule : Rule
        Its update rule.
    request : TrainRequest
        What ``train`` was asked for.
    master : str
        Spark's.
    custom_objects : iterable of str, default ()
        Names of the user's own classes and functions.
    """
    return {
        "run": run,
        "master": master,
        "spec": spec.to_json(),
        **policies(spec.algorithm.optimizer_state, spec.algorithm.statistics, rule, spec.workers),
        "callbacks": [described_callback(callback) for callback in request.callbacks],
        "custom_objects": sorted(custom_objects),
        "versions": {
            "python": platform.python_version(),
            **package_versions(("distkeras_grid", "pyspark", *TRAINING_PACKAGES)),
        },
    }


def described_callback(callback: Any) -> dict[str, Any]:
    """Return the class of a callback and its settings that are plain values.

    Examples
    --------
    >>> class Stop:
    ...     def __init__(self):
    ...         self.patience, self._epochs, self.model = 3, 0, object()
    >>> described_callback(Stop())["arguments"]
    {'patience': 3}
    """
    kind = type(callback)
    plain_values = {
        name: value
        for name, value in sorted(vars(callback).items())
        if not name.startswith("_")
        and (isinstance(value, int | str) or (isinstance(value, float) and math.isfinite(value)))
    }
    return {"class": f"{kind.__module__}.{kind.__qualname__}", "arguments": plain_values}


def policies(
    optimizer_state: OptimizerState, statistics: StatisticsSource, rule: Rule, workers: int
) -> dict[str, str]:
    """Return what becomes of what no gradient moves, as the history tells it.

    Parameters
    ----------
    optimizer_state, statistics : str
        As the trainer was asked.
    rule : Rule
        The update rule.
    workers : int
        How many.

    Returns
    -------
    dict
        ``optimizer_state``: "keep" or "reset", each worker's own, "average" or "same" on all;
        ``statistics``: those of batch normalization: "average" over the workers, each one's or the
        only one's "own", or "recalibrate", measured when training is over.
    """
    own = statistics == "average" and (rule.traits.own_center or workers == 1)
    return {
        "optimizer_state": "same" if rule.traits.steps_on_workers else optimizer_state,
        "statistics": "own" if own else statistics,
    }


def announce_run(spec: RunSpec, rule: Rule, window: WindowChoice) -> list[str]:
    """Return what is said before a run, so that no default is a surprise.

    Parameters
    ----------
    spec : RunSpec
        The run.
    rule : Rule
        Its update rule.
    window : WindowChoice
        Batches between two exchanges, and why.
    """
    workers = f"{spec.workers} workers" if spec.workers > 1 else "1 worker"
    batches = f"batch {spec.batch_size}"
    if spec.workers > 1:
        batches += f" each, {spec.batch_size * spec.workers} together"
    way = "each way" if rule.traits.answers else "to the driver"
    if spec.compression:
        way += " before compression"
    needed = spec.quorum_of(spec.workers)
    return [
        f"{spec.algorithm.trainer}: {spec.rows} rows, {workers}, {batches}, "
        f"exchange {window} "
        f"({spec.size * 4 / 1e6:.3g} MB {way}){described_parameters(rule)}",
        *choices(window, spec.algorithm.quorum, needed, spec.workers),
    ]


def described_parameters(rule: Rule) -> str:
    """Return the numbers of a rule, to be put behind what is said of it.

    Examples
    --------
    >>> from distkeras_grid.rules import DownpourRule
    >>> described_parameters(DownpourRule(0.5))
    ', commit_scale 0.5'
    """
    return "".join(f", {name} {value:g}" for name, value in rule.parameters().items())


def choices(window: WindowChoice, quorum: float, needed: int, workers: int) -> list[str]:
    """Return what was chosen for the user, and what a quorum comes to.

    Parameters
    ----------
    window : WindowChoice
        Batches between two exchanges.
    quorum : float
        Share of the workers that a round waits for.
    needed : int
        How many that is.
    workers : int
        Number of workers in the run.

    Examples
    --------
    >>> choices(WindowChoice(16), 0.8, needed=4, workers=4)
    ['a round waits for 4 of 4 workers (quorum 0.8)']
    """
    lines = [window.reason] if window.reason else []
    if quorum < 1:
        lines.append(f"a round waits for {needed} of {workers} workers (quorum {quorum:g})")
    return lines


def compression_sentence(history: History, size: int) -> str:
    """Return whether compressed exchanges paid, by what a run has recorded.

    What an exchange took is the time between a worker's windows. Of a round it is that of the
    worker that came last, for the others have waited for it, too.

    Parameters
    ----------
    history : History
        History of a run that has ended.
    size : int
        Scalars in the vector; uncompressed they are four bytes each, up and down.
    """
    moved = sum(record.bytes_up + record.bytes_down for record in history.records)
    plain = 8 * size * len(history.records)
    computed = sum(record.seconds for record in history.records)
    rounds = _pauses(history)
    waited = sum(map(sum, rounds))
    share = sum(len(pauses) * min(pauses) for pauses in rounds) / max(computed + waited, 1e-9)
    if moved > SAVES_BELOW * plain:
        verdict = "and it saved next to nothing: leave it out"
    elif share > PAYS_FROM:
        verdict = "so it paid"
    else:
        verdict = "so it hardly mattered: leave it out where links are as fast as here"
    return (
        f"compression moved {moved / 1e6:.3g} MB instead of {plain / 1e6:.3g} MB; exchanges took "
        f"{share:.0%} of the workers' time, {verdict}"
    )


def _pauses(history: History) -> list[list[float]]:
    """Return the seconds between the windows of each worker, by the fold that lies between."""
    pauses = defaultdict(list)
    for worker in {record.worker for record in history.records}:
        for before, after in pairwise(history.select(worker=worker)):
            ended = before.started + before.seconds
            pauses[before.version].append(max(0.0, after.started - ended))
    return list(pauses.values())
