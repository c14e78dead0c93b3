"""The records of a training run, and their form as JSON lines."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from distkeras_grid.errors import DataError

Record = TypeVar("Record", "WindowRecord", "LateRecord", "EpochRecord", "WorkerRecord")


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """One communication window that the server accepted.

    Parameters
    ----------
    worker, attempt : int
        The worker, from 0, and the attempt of its Spark task that sent the window.
    epoch, window : int
        The worker's own pass over its rows, and the window within it.
    steps, samples : int
        Batches and rows in this window.
    loss : float
        Mean loss over the samples of this window alone.
    metrics : mapping of str to float
        The model's metrics over this window alone.
    started : float
        When its first batch began [s since 1970, the worker's clock].
    seconds : float
        How long its batches took, without the exchange [s].
    staleness : int
        Commits of other workers folded since this worker last heard from the server.
    bytes_up, bytes_down : int
        Sent to the server and answered by it.
    folded_at : float
        When the server folded it [s since 1970, the server's clock].
    version : int
        Of the center after the fold.
    """

    worker: int
    attempt: int
    epoch: int
    window: int
    steps: int
    samples: int
    loss: float
    metrics: Mapping[str, float]
    started: float
    seconds: float
    staleness: int
    bytes_up: int
    bytes_down: int
    folded_at: float
    version: int


@dataclass(frozen=True, slots=True)
class LateRecord:
    """A window that came after its synchronous round had closed, and was not folded.

    Parameters
    ----------
    worker, attempt : int
        The worker, from 0, and the attempt of its Spark task that sent the window.
    epoch, window : int
        The worker's own pass over its rows, and the window within it.
    samples : int
        Rows in this window.
    staleness : int
        Rounds that had closed since the worker last heard from the server.
    version : int
        Of the center when it came.
    at : float
        When it came [s since 1970, the server's clock].
    """

    worker: int
    attempt: int
    epoch: int
    window: int
    samples: int
    staleness: int
    version: int
    at: float


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One epoch: the windows folded during it, and the center at its end.

    Parameters
    ----------
    epoch : int
        From 1.
    version : int
        Of the center at the commit that ended the epoch.
    samples : int
        Rows folded since training began.
    at : float
        When it ended [s since 1970, the server's clock].
    seconds : float
        Since the end of the epoch before, or since the first batch [s].
    loss : float
        Mean over the windows folded during the epoch, weighted by their samples.
    metrics : mapping of str to float
        Likewise; for metrics that are no means (AUC, F1) an approximation.
    validation : mapping of str to float
        The center of `version` on the validation data: ``val_loss``, ``val_accuracy``, ...
    learning_rate : float or None
        Where the driver knows it.
    """

    epoch: int
    version: int
    samples: int
    at: float
    seconds: float
    loss: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    validation: Mapping[str, float] = field(default_factory=dict)
    learning_rate: float | None = None

    def logs(self) -> dict[str, float]:
        """Return what a Keras callback is told at the end of an epoch."""
        rate = {} if self.learning_rate is None else {"learning_rate": self.learning_rate}
        return {"loss": self.loss, **self.metrics, **self.validation, **rate}


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """Something that happened to a worker.

    Parameters
    ----------
    worker, attempt : int
        The worker, from 0, and the attempt of its Spark task.
    status : str
        ``joined``, ``ready``, ``finished``, ``lost``, ``fenced``, or ``failed``.
    rows : int or None
        Rows of the data that the worker holds; None before it has read them.
    message : str
        Of a failure.
    locality : str or None
        How near to its data Spark ran the task, such as ``NODE_LOCAL``; known at the run's end.
    """

    worker: int
    attempt: int
    status: str
    rows: int | None = None
    message: str = ""
    locality: str | None = None


def record_of(kind: type[Record], content: Mapping[str, Any]) -> Record:
    """Build a record from an event or from a line of JSON.

    Parameters
    ----------
    kind : type
        One of the record classes.
    content : mapping
        Its fields; other keys are left out. NumPy numbers become Python's, and strings such as
        ``NaN`` become the numbers they name.

    Raises
    ------
    TypeError, ValueError, AttributeError
        If a field is missing or not of its type.
    """
    values = {
        item.name: _converted(str(item.type), content[item.name])
        for item in fields(kind)
        if item.name in content
    }
    return kind(**values)


def format_line(content: Mapping[str, Any]) -> str:
    """Return one line of strict JSON, its newline included.

    Parameters
    ----------
    content : mapping
        JSON types. Strict JSON has no spelling for numbers that are not finite: they become the
        strings ``NaN``, ``Infinity`` and ``-Infinity``, which ``float`` reads.

    Examples
    --------
    >>> format_line({"loss": float("nan"), "steps": 3}).strip()
    '{"loss": "NaN", "steps": 3}'
    """
    return json.dumps(_safe(content), allow_nan=False) + "\n"


def parse_line(line: str, number: int) -> dict[str, Any]:
    """Read one line of JSON.

    Parameters
    ----------
    line : str
        A JSON object.
    number : int
        Of the line, from 1, for the error.

    Raises
    ------
    DataError
        If it is no JSON object.
    """
    try:
        parsed = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(
            f"line {number} of the history is no JSON ({error}): {line[:80]!r}"
        ) from error
    if not isinstance(parsed, dict):
        raise DataError(f"line {number} of the history is no JSON object: {line[:80]!r}")
    return parsed


def _converted(annotation: str, value: Any) -> Any:
    """Make NumPy's numbers and the strings of non-finite ones plain Python numbers."""
    if annotation.startswith("Mapping"):
        return {str(name): float(number) for name, number in value.items()}
    if annotation.endswith("| None") and value is None:
        return None
    return {"int": int, "str": str, "float": float}[annotation.removesuffix(" | None")](value)


def _safe(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value
