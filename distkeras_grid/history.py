"""What a training run did: one record per accepted window, one per epoch, JSON lines on disk.

The driver owns the one `History` of a run. It adds the parameter server's events in the order in
which they arrive; nothing else writes to it, and workers never see it.

Epochs are counted as the server counts them: epoch 1 ends at the commit that brings the folded
samples to the rows of the data. A window counts for the epoch in which it was *folded*; a fast
worker may by then have begun its next pass, which the window's own ``epoch`` tells.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, get_origin

import msgspec

from distkeras_grid.errors import UNREADABLE, ConfigurationError, DataError
from distkeras_grid.records import (
    EpochEnded,
    EpochRecord,
    HistoryRecord,
    LateRecord,
    LocalRecord,
    Record,
    SkippedRecord,
    WindowRecord,
    WorkerRecord,
    format_line,
    record_of_line,
)
from distkeras_grid.windows import Windows

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1


class History:
    """The record of one training run.

    Parameters
    ----------
    params : mapping, optional
        What was asked for (trainer, settings, versions); JSON types.

    Attributes
    ----------
    params : dict
        As given.
    records : Windows
        Accepted windows in the order of their folds, a sequence of `WindowRecord`; slice it as any
        list.
    late : list of LateRecord
        Windows that came after their synchronous round, and were dropped.
    skipped : list of SkippedRecord
        Windows that were not folded because of what was in them.
    local_sets : list of LocalRecord
        The local sets that workers drew, of a run on `LocalSets`.
    epoch_records : list of EpochRecord
        Ended epochs.
    workers : list of WorkerRecord
        What happened to the workers, in order.

    Examples
    --------
    >>> history = History({"trainer": "ADAG"})
    >>> history.add(WindowRecord(
    ...     worker=0, attempt=0, epoch=1, window=0, steps=2, samples=64, loss=0.5,
    ...     metrics={"accuracy": 0.75}, started=100.0, seconds=0.5, staleness=0,
    ...     bytes_up=40, bytes_down=40, folded_at=101.0, version=1))
    >>> ended = EpochEnded(epoch=1, version=1, samples=64, at=101.0)
    >>> record = history.add_epoch(ended, validation={"val_accuracy": 0.7})
    >>> history.history
    {'loss': [0.5], 'accuracy': [0.75], 'val_accuracy': [0.7]}
    >>> history.training_seconds()
    1.0
    """

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        self.params: dict[str, Any] = dict(params or {})
        self.records = Windows()
        self.late: list[LateRecord] = []
        self.skipped: list[SkippedRecord] = []
        self.local_sets: list[LocalRecord] = []
        self.epoch_records: list[EpochRecord] = []
        self.workers: list[WorkerRecord] = []

    def __repr__(self) -> str:
        return (
            f"History({len(self.records)} windows, {len(self.epoch_records)} epochs, "
            f"{self.samples} samples)"
        )

    # -- what the driver adds ---------------------------------------------------------------

    def add(self, record: HistoryRecord) -> None:
        """Add what happened, in the order in which it happened; an epoch's end by `add_epoch`."""
        records: Any = self._lists[type(record)]
        records.append(record)

    @property
    def _lists(self) -> dict[type[Record], list[Any] | Windows]:
        return {
            WorkerRecord: self.workers,
            WindowRecord: self.records,
            LateRecord: self.late,
            LocalRecord: self.local_sets,
            EpochRecord: self.epoch_records,
            SkippedRecord: self.skipped,
        }

    def add_epoch(
        self,
        ended: EpochEnded,
        *,
        results: Mapping[str, float] | None = None,
        validation: Mapping[str, float] | None = None,
    ) -> EpochRecord:
        """Add an epoch that has ended, after the windows up to its version; return its record.

        `results`: what the metrics say of ``ended.state``. Without it, loss and metrics are means
        over the windows, weighted by their rows.
        `validation`: the center of that version on the validation data, keys with ``val_``.
        """
        before = self.epoch_records[-1] if self.epoch_records else None
        since = before.version if before else -1
        places = list(self.records.between(since, ended.version))
        metrics = self._of_windows(places, results, ended.sources)
        first = min((self.records.column("started")[place] for place in places), default=math.inf)
        began = before.at if before else min(first, ended.at)
        epoch = EpochRecord(
            epoch=ended.epoch,
            version=ended.version,
            samples=ended.samples,
            at=ended.at,
            seconds=max(0.0, ended.at - began - self._idle_seconds(since, ended.version)),
            loss=metrics.pop("loss", None) if places else math.nan,
            metrics=metrics,
            validation=dict(validation or {}),
            learning_rate=self.records[places[-1]].learning_rate if places else None,
        )
        self.add(epoch)
        return epoch

    def _of_windows(
        self,
        places: Iterable[int],
        results: Mapping[str, float] | None,
        sources: Mapping[str, str],
    ) -> dict[str, float]:
        """Return loss and metrics of some windows: results where there are, else means.

        With results, the others are no metrics of the model but values of single batches, of which
        each worker's last one counts. Windows may be many, so no record is made of them.
        """
        samples, workers = map(self.records.column, ("samples", "worker"))
        sums, rows = defaultdict[str, float](float), Counter[str]()
        last = defaultdict[str, dict[int, float]](dict)
        for place in places:
            for name, value in self.records.values(place).items():
                sums[name] += value * samples[place]
                rows[name] += samples[place]
                last[name][workers[place]] = value
        if results is None:
            return {name: total / rows[name] for name, total in sums.items()}
        return {
            name: results.get(sources.get(name, name), sum(values.values()) / len(values))
            for name, values in last.items()
        }

    # -- what the user reads ----------------------------------------------------------------

    @property
    def samples(self) -> int:
        """Rows folded into the center, each counted once an epoch."""
        return self.records.samples

    @property
    def samples_skipped(self) -> int:
        """Rows of windows that were not folded because of what was in them."""
        return sum(record.samples for record in self.skipped)

    @property
    def num_updates(self) -> int:
        """Windows folded into the center."""
        return len(self.records)

    @property
    def epoch(self) -> list[int]:
        """Ended epochs as Keras numbers them, from 0."""
        return [record.epoch - 1 for record in self.epoch_records]

    @property
    def history(self) -> dict[str, list[float]]:
        """Loss and metrics of the epochs, in the shape of ``keras.callbacks.History.history``."""
        shaped: dict[str, list[float]] = {}
        for record in self.epoch_records:
            for name, value in record.logs().items():
                shaped.setdefault(name, []).append(value)
        return shaped

    def training_seconds(self) -> float:
        """Return the time from the first batch to the last fold [s], 0 before the first fold.

        The time between two executions of a run, in which nothing was trained, is left out.

        Two clocks meet here, a worker's and the server's; on several hosts it is as exact as
        their synchronisation.
        """
        if not self.records:
            return 0.0
        first: float = min(self.records.column("started"))
        last: float = max(self.records.column("folded_at"))
        return max(0.0, last - first - self._idle_seconds())

    def _idle_seconds(self, since: int = -1, until: float = math.inf) -> float:
        """Return the time between executions of the run, in versions after `since` [s]."""
        points = {int(entry["version"]) for entry in self.params.get("resumed", [])}
        idle = 0.0
        for point in points:
            if since <= point < until:
                columns = (
                    self.records.column(name) for name in ("version", "started", "folded_at")
                )
                windows = list(zip(*columns, strict=True))
                ended = max(
                    (at for version, _, at in windows if version <= point), default=math.inf
                )
                began = min((at for version, at, _ in windows if version > point), default=0.0)
                idle += max(0.0, began - ended)
        return idle

    def select(self, *, worker: int | None = None, epoch: int | None = None) -> list[WindowRecord]:
        """Return the windows of one worker, of one of its passes, or of both.

        Parameters
        ----------
        worker : int, optional
            The worker, from 0.
        epoch : int, optional
            The worker's pass over its rows.
        """
        columns = (self.records.column(name) for name in ("worker", "epoch"))
        return [
            self.records[number]
            for number, (who, when) in enumerate(zip(*columns, strict=True))
            if worker in (None, who) and epoch in (None, when)
        ]

    def points(
        self, metric: str = "loss", x: Literal["seconds", "samples"] = "seconds"
    ) -> list[tuple[float, float]]:
        """Return a curve, one point an epoch.

        Parameters
        ----------
        metric : str, default "loss"
            A key of `history`.
        x : {"seconds", "samples"}, default "seconds"
            Time since the first batch [s], or rows folded.

        Returns
        -------
        list of (float, float)
            ``(x, value)``, epochs without the metric left out.

        Raises
        ------
        ConfigurationError
            If no epoch has the metric, or `x` is neither.
        """
        if x not in ("seconds", "samples"):
            raise ConfigurationError(f"x must be 'seconds' or 'samples'. Received: {x!r}.")
        if metric not in self.history:
            known = ", ".join(self.history) or "none: no epoch has ended"
            raise ConfigurationError(f"No epoch has the metric {metric!r}. Recorded: {known}.")
        began = min(self.records.column("started"), default=0.0)
        return [
            (record.at - began if x == "seconds" else float(record.samples), record.logs()[metric])
            for record in self.epoch_records
            if metric in record.logs()
        ]

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per accepted window.

        Returns
        -------
        pandas.DataFrame
            The fields of `WindowRecord`, the metrics as columns of their own after ``loss``; a
            metric that has the name of a field becomes ``metric_<name>``. ``epoch`` is the worker's
            own pass over its rows: after an early stop without rounds it may be higher than the
            number of epochs in `history`.
        """
        return _frame(WindowRecord, self.records, [dict(r.metrics) for r in self.records])

    def epochs(self) -> pd.DataFrame:
        """Return one row per ended epoch.

        Returns
        -------
        pandas.DataFrame
            The fields of `EpochRecord`; metrics and validation as columns of their own.
        """
        flat = [{**r.metrics, **r.validation} for r in self.epoch_records]
        return _frame(EpochRecord, self.epoch_records, flat)

    def local_tests(self) -> pd.DataFrame:
        """Return one row per local set: worker, iteration, sizes, seconds, bytes and test results.

        Returns
        -------
        pandas.DataFrame
            The fields of `LocalRecord` and `LocalSet`; the metrics of the local test as columns of
            their own, and the bytes of all locations together as ``bytes_read``.
        """
        import pandas as pd

        names = ("train", "test", "read_seconds", "test_seconds", "digest")
        rows = [
            {
                "worker": record.worker,
                "iteration": record.iteration,
                "folded": record.folded,
                **{name: getattr(record.local, name) for name in names},
                "bytes_read": sum(record.local.bytes_read.values()),
                "failures": sum(record.local.failures.values()),
                **record.local.metrics,
            }
            for record in self.local_sets
        ]
        return pd.DataFrame(rows)

    # -- storage ----------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        """Yield the history as JSON lines, the parameters first, so that it is never one text.

        Numbers that are not finite become the strings ``NaN``, ``Infinity`` and ``-Infinity``.

        Examples
        --------
        >>> [line.strip() for line in History({"trainer": "ADAG"}).lines()]
        ['{"kind": "history", "format": 1, "params": {"trainer": "ADAG"}}']
        """
        yield format_line({"kind": "history", "format": FORMAT, "params": self.params})
        yield from self.record_lines(self.counts())

    def counts(self) -> tuple[int, ...]:
        """Return how many records of each kind there are."""
        return tuple(len(records) for records in self._lists.values())

    def record_lines(self, counts: Sequence[int]) -> Iterator[str]:
        """Yield the first so many records of each kind as JSON lines."""
        for kind, count in zip(self._lists.values(), counts, strict=True):
            for number in range(count):
                yield format_line(msgspec.to_builtins(kind[number]))

    def add_record_lines(self, lines: Iterable[str], first: int = 1) -> None:
        """Add the records of `record_lines`; `first`: number of the first line, for errors."""
        for number, line in enumerate(lines, start=first):
            self.add(record_of_line(line, number))

    @classmethod
    def from_lines(cls, lines: Iterable[str]) -> Self:
        """Read what `lines` yielded, with or without the ends of the lines.

        Parameters
        ----------
        lines : iterable of str
            JSON lines, such as an open ``history.jsonl``; each is forgotten when it has been read.

        Raises
        ------
        DataError
            If a line is not a record of a history, or of a later format.
        """
        rest = iter(lines)
        first = next(rest, "")
        try:
            head = msgspec.json.decode(first, type=_FirstLine)
        except UNREADABLE as error:
            raise DataError(
                f"A history of format {FORMAT} says so in its first line. Received: "
                f"{first[:80]!r} ({error}). Give lines that a History of this release wrote."
            ) from error
        history = cls(head.params)
        history.add_record_lines(rest, first=2)
        return history


class _FirstLine(msgspec.Struct):
    """The first line of a history."""

    kind: Literal["history"]
    format: Literal[1]
    params: dict[str, Any] = {}


def _frame(
    kind: type[Record], records: Sequence[Any], metrics: Sequence[Mapping[str, float]]
) -> pd.DataFrame:
    import pandas as pd

    names = list(dict.fromkeys(name for row in metrics for name in row))
    members = msgspec.structs.fields(kind)
    taken = {item.name for item in members}
    columns: dict[str, pd.Series[Any]] = {}
    for item in members:
        if get_origin(item.type) is dict:
            continue
        dtype = "int64" if item.type is int else "float64"
        columns[item.name] = pd.Series([getattr(r, item.name) for r in records], dtype=dtype)
        if item.name == "loss":
            for name in names:
                title = f"metric_{name}" if name in taken else name
                values = [row.get(name, math.nan) for row in metrics]
                columns[title] = pd.Series(values, dtype="float64")
    return pd.DataFrame(columns)
