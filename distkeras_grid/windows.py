"""The windows of a run in columns: a million of them in about 90 MB, where objects take 700.

`Windows` is a sequence of `WindowRecord`. What it holds are arrays of numbers, one for each field;
records are made when they are asked for.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

import msgspec

from distkeras_grid.records import WindowRecord

#: Fields that may be None.
_OPTIONAL = ("loss", "learning_rate")
#: Four bytes, as long as all numbers of a column fit; then eight.
SHORT, LONG, FLOAT = "i", "q", "d"


class _Kind(NamedTuple):
    """What windows have in common: the names of their metrics, and the fields that are None."""

    metrics: tuple[str, ...]
    missing: tuple[str, ...]


class Windows(Sequence[WindowRecord]):
    """Accepted windows, in the order of their folds.

    Examples
    --------
    >>> record = WindowRecord(
    ...     worker=0, attempt=0, epoch=1, window=0, steps=2, samples=64, loss=0.5,
    ...     metrics={"accuracy": 0.75}, started=100.0, seconds=0.5, staleness=0,
    ...     bytes_up=40, bytes_down=40, folded_at=101.0, version=1)
    >>> windows = Windows([record])
    >>> windows[-1] == record, windows.samples, list(windows.column("loss"))
    (True, 64, [0.5])
    """

    def __init__(self, records: Iterable[WindowRecord] = ()) -> None:
        self.samples = 0
        self._columns: dict[str, array[Any]] = {
            field.name: array(SHORT if field.type is int else FLOAT)
            for field in msgspec.structs.fields(WindowRecord)
            if field.name != "metrics"
        }
        # Kinds of windows, each once; and of each window its kind, and where its values begin.
        self._kinds: list[_Kind] = []
        self._numbers: dict[_Kind, int] = {}
        self._kind_of, self._places = array(SHORT), array(LONG)
        self._values: array[float] = array(FLOAT)
        for record in records:
            self.append(record)

    def __len__(self) -> int:
        return len(self._kind_of)

    @overload
    def __getitem__(self, place: int) -> WindowRecord: ...
    @overload
    def __getitem__(self, place: slice) -> list[WindowRecord]: ...
    def __getitem__(self, place: int | slice) -> WindowRecord | list[WindowRecord]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        number = range(len(self))[place]
        fields = {name: column[number] for name, column in self._columns.items()}
        fields |= dict.fromkeys(self._kinds[self._kind_of[number]].missing)
        return WindowRecord(metrics=self.metrics(number), **fields)

    def __iter__(self) -> Iterator[WindowRecord]:
        return (self[number] for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(WindowRecord.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Windows({len(self)} windows, {self.samples} samples)"

    def append(self, record: WindowRecord) -> None:
        """Add a window."""
        for name, column in self._columns.items():
            value = getattr(record, name)
            value = math.nan if value is None else value
            try:
                column.append(value)
            except OverflowError:
                self._columns[name] = array(LONG, [*column, value])
        missing = tuple(name for name in _OPTIONAL if getattr(record, name) is None)
        kind = _Kind(tuple(record.metrics), missing)
        if kind not in self._numbers:
            self._numbers[kind] = len(self._kinds)
            self._kinds.append(kind)
        self._kind_of.append(self._numbers[kind])
        self._places.append(len(self._values))
        self._values.extend(record.metrics.values())
        self.samples += record.samples

    def column(self, name: str) -> Sequence[Any]:
        """Return one field of all windows, which grows with them; not ``metrics``. NaN for None."""
        return self._columns[name]

    def metrics(self, number: int) -> dict[str, float]:
        """Return the metrics of a window."""
        names, begin = self._kinds[self._kind_of[number]].metrics, self._places[number]
        return dict(zip(names, self._values[begin : begin + len(names)], strict=True))

    def values(self, number: int) -> dict[str, float]:
        """Return the loss, if there is one, and the metrics of a window."""
        missing = "loss" in self._kinds[self._kind_of[number]].missing
        loss = {} if missing else {"loss": self._columns["loss"][number]}
        return {**loss, **self.metrics(number)}

    def between(self, since: int, until: int) -> Iterator[int]:
        """Yield the places of the windows whose version lies above one and not above another."""
        versions = self._columns["version"]
        return (number for number, version in enumerate(versions) if since < version <= until)
