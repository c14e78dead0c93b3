"""What happens in a training run, one type for each kind of event, and its form as JSON lines.

The server tells these as they happen; the history keeps them; progress, simulation and tests read
them. An event is defined here and nowhere else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from distkeras_grid.errors import UNREADABLE, DataError
from distkeras_grid.field_types import (
    Count,
    Metrics,
    MetricState,
    PlaceCounts,
    RowDigest,
    Seconds,
    Sources,
)


class Record(msgspec.Struct, frozen=True, tag_field="kind"):
    """Something that happened in a run; ``kind`` names it in JSON."""


class WindowResult(msgspec.Struct, frozen=True):
    """What an engine tells of a window that it has trained."""

    steps: int  # steps and samples: Mini-batches and samples trained
    samples: int
    # Mean loss of the window's samples; None if the model's own ``train_step`` returns none
    loss: float | None
    metrics: dict[str, float]  # The metrics over the window's samples
    # State of these metrics as float64, which can be added to that of other windows
    state: bytes = b""
    # Metric of the model of which `loss` or one of `metrics` is the result, where its own
    # ``train_step`` gives it another name; empty if it is of none
    sources: dict[str, str] = {}
    learning_rate: float | None = None  # Rate of its steps; None if it follows a schedule


class LocalSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a worker tells of the local sets of an iteration."""

    train: Count  # train and test: Tiles of the training set and of the test set
    test: Count
    # Identifies the training set; see `distkeras_grid.local_sets.sampler.digest_of`
    digest: RowDigest
    read_seconds: Seconds  # How long the worker took to read or cut the tiles of both sets [s]
    # Bytes that it read for them, by location; none come from the server or the driver
    bytes_read: PlaceCounts = {}
    failures: PlaceCounts = {}  # Reads that failed, or brought wrong bytes, by location
    test_seconds: Seconds = 0.0  # How long the test took [s]
    # Loss and metrics of the worker's own model on the test set, after the iteration's training and
    # before its commit; empty without a test set
    metrics: Metrics = {}


class WindowRecord(Record, frozen=True, tag="window"):
    """One communication window that the server accepted."""

    # worker and attempt: The worker, from 0, and the attempt of its Spark task that sent the window
    worker: int
    attempt: int
    # epoch and window: The worker's own pass over its rows, and the window within it. Without
    # rounds a fast worker's pass is ahead of the run's epoch, which `EpochRecord` counts.
    epoch: int
    window: int
    steps: int  # steps and samples: Batches and rows in this window
    samples: int
    # Mean loss over the samples of this window alone; None if the model's own ``train_step``
    # returns none
    loss: float | None
    metrics: dict[str, float]  # The model's metrics over this window alone
    started: float  # When its first batch began [s since 1970, the worker's clock]
    seconds: float  # How long its batches took, without the exchange [s]
    staleness: int  # Commits of other workers folded since this worker last heard from the server
    bytes_up: int  # bytes_up and bytes_down: Sent to the server and answered by it
    bytes_down: int
    folded_at: float  # When the server folded it [s since 1970, the server's clock]
    version: int  # Version of the center after the fold
    # Rate with which the worker trained it; None if it follows a schedule
    learning_rate: float | None = None


class LateRecord(Record, frozen=True, tag="late"):
    """A window that came after its synchronous round had closed, and was not folded."""

    # worker and attempt: The worker, from 0, and the attempt of its Spark task that sent the window
    worker: int
    attempt: int
    epoch: int  # epoch and window: The worker's own pass over its rows, and the window within it
    window: int
    samples: int  # Rows in this window
    staleness: int  # Rounds that had closed since the worker last heard from the server
    version: int  # Version of the center when the commit arrived
    at: float  # When it came [s since 1970, the server's clock]


class SkippedRecord(Record, frozen=True, tag="skipped"):
    """A window that was not folded because of what was in it; its worker began anew."""

    # worker and attempt: The worker, from 0, and the attempt of its Spark task that sent the window
    worker: int
    attempt: int
    host: str  # Name of its host; empty if it has told none
    epoch: int  # epoch and window: The worker's own pass over its rows, and the window within it
    window: int
    samples: int  # Rows in this window
    # Mean loss over these rows; may be NaN or infinite. None if ``train_step`` returns none.
    loss: float | None
    # Euclidean norm of the change that was sent; None if it was not finite or not measured
    norm: float | None
    reason: str  # What was seen, in words
    version: int  # Version of the center when the window was skipped
    at: float  # When that was [s since 1970, the server's clock]


class LocalRecord(Record, frozen=True, tag="local"):
    """The local sets of one worker and iteration; it comes with the iteration's last window."""

    worker: int  # worker and attempt: The worker, from 0, and the attempt of its Spark task
    attempt: int
    iteration: int  # The iteration, from 1: the epoch of its windows
    folded: bool  # Whether the window was folded; if not, it came after its round, or was skipped
    local: LocalSet  # What the worker tells


class EpochEnded(Record, frozen=True, tag="ended"):
    """The folded samples have reached the end of an epoch."""

    epoch: int  # The epoch, from 1
    version: int  # Version of the center at the commit that ended it
    samples: int  # Rows folded since training began
    at: float  # When it ended [s since 1970, the server's clock]
    # Sum of the states of the metrics of the windows folded during the epoch, as float64
    state: MetricState = b""
    sources: Sources = {}  # As in `WindowResult`


class EpochRecord(Record, frozen=True, tag="epoch"):
    """One epoch: the windows folded during it, and the center at its end."""

    epoch: int  # From 1
    version: int  # Version of the center at the commit that ended the epoch
    samples: int  # Rows folded since training began
    at: float  # When it ended [s since 1970, the server's clock]
    seconds: float  # Since the end of the epoch before, or since the first batch [s]
    # Of the windows folded during the epoch; None if the model's own ``train_step`` returns none
    loss: float | None
    # Likewise, from the sum of the states of these windows' metrics. What a ``train_step`` returns
    # and no metric of the model has is that of the last window, as in ``fit``, or the mean of the
    # workers' last windows.
    metrics: dict[str, float] = {}
    # The center of `version` on the validation data: ``val_loss``, ``val_accuracy``,
    validation: dict[str, float] = {}
    # Rate with which the last of these windows was trained; None if it follows a schedule
    learning_rate: float | None = None

    def logs(self) -> dict[str, float]:
        """Return the logs for Keras callbacks at the end of an epoch."""
        rate = {} if self.learning_rate is None else {"learning_rate": self.learning_rate}
        loss = {} if self.loss is None else {"loss": self.loss}
        return {**loss, **self.metrics, **self.validation, **rate}


class WorkerRecord(Record, frozen=True, tag="worker"):
    """A change in a worker's life."""

    # worker and attempt: The worker, from 0, and Spark's number of its task (``taskAttemptId``),
    # which counts all tasks of an application; see `tries`
    worker: int
    attempt: int
    # ``joined``, ``ready``, ``continued``, ``resumed``, ``finished``, ``lost``, ``fenced``,
    # ``failed`` or ``given up``
    status: str
    rows: int | None = None  # Rows of the data that the worker holds; None before it has read them
    # error and message: Class name and text of the error that ended a failed worker, or one that
    # was given up. Of a lost worker, the message is Spark's reason, such as an exit status.
    error: str = ""
    message: str = ""
    # How long the batches of a window take, which a worker measures before it is ready [s]
    window_seconds: float | None = None
    # windows and state_windows: For an attempt that continues: windows of the worker that are in
    # the center, and windows after which its optimizer, its random generators and its own weights
    # were kept. If both are equal, it goes on as if nothing had happened; None if these begin anew.
    # If they differ, what ``compression="dgc"`` had held back is lost.
    windows: int | None = None
    state_windows: int | None = None
    # With ``ready`` and ``resumed``: how its vectors travel between it and the server, ``tcp``,
    # ``unix socket`` or ``shared memory``
    transport: str | None = None
    at: float | None = None  # When it happened, Unix seconds by the server's clock
    # host and log: Where the worker ran, and the path of its executor's log there; empty if not
    # known
    host: str = ""
    log: str = ""
    tries: int | None = None  # How often the worker has been started so far in the run


#: What the server tells the driver.
Event: TypeAlias = (
    WindowRecord | LateRecord | SkippedRecord | LocalRecord | EpochEnded | WorkerRecord
)
#: What a history holds.
HistoryRecord: TypeAlias = (
    WindowRecord | LateRecord | SkippedRecord | LocalRecord | EpochRecord | WorkerRecord
)


_RECORDS = msgspec.json.Decoder(HistoryRecord, strict=False)


def record_of_line(line: str, number: int) -> HistoryRecord:
    """Build a record of a history from a line of JSON."""
    try:
        record: HistoryRecord = _RECORDS.decode(line)
    except UNREADABLE as error:
        raise DataError(
            f"Line {number} of the history is damaged: {error}. Received: {line[:80]!r}."
        ) from error
    return record


def format_line(content: Mapping[str, Any]) -> str:
    """Return one line of strict JSON, its newline included.

    Examples
    --------
    >>> format_line({"loss": float("nan"), "steps": 3}).strip()
    '{"loss": "NaN", "steps": 3}'
    """
    try:
        return json.dumps(content, allow_nan=False) + "\n"
    except (TypeError, ValueError):
        return json.dumps(_safe(content), allow_nan=False) + "\n"


def _safe(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value
