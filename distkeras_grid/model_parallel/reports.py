"""What the master reports to the driver beside the batches, and the lines that are kept."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, Self

from distkeras_grid.model_parallel.messages import LINE_LENGTH, Report
from distkeras_grid.model_parallel.schedule import TimedPass

#: Lines of a run that are kept: the first ones, which have the table, and the newest.
FIRST_LINES = 400
NEWEST_LINES = 400
#: Seconds that the end of the training waits until the last report has been sent.
LAST_SECONDS = 30.0

Shares = Mapping[str, tuple[int, ...]]


class DeviceLines:
    """The first and the newest of many lines, and how many between them are left out.

    Examples
    --------
    >>> lines = DeviceLines(str(number) for number in range(1000))
    >>> len(lines.text), lines.text[400]
    (801, '(200 lines left out)')
    """

    def __init__(self, begun: Iterable[str] = ()) -> None:
        self._first: list[str] = []
        self._newest: deque[str] = deque()
        self._left_out = 0
        self.add(begun)

    def add(self, lines: Iterable[str]) -> None:
        """Add lines."""
        for line in lines:
            if len(self._first) < FIRST_LINES:
                self._first.append(line)
                continue
            self._newest.append(line)
            if len(self._newest) > NEWEST_LINES:
                self._newest.popleft()
                self._left_out += 1

    @property
    def text(self) -> list[str]:
        """The lines in their order, as a new list."""
        gap = [f"({self._left_out} lines left out)"] if self._left_out else []
        return [*self._first, *gap, *self._newest]


class Recorder:
    """Shows the reports of a run, and keeps them in its history and description."""

    def __init__(self, records: Sequence[dict[str, Any]], note: Callable[[str], None]) -> None:
        self._records = [(record, DeviceLines(record.get("devices", ()))) for record in records]
        self._note = note
        self._lock = threading.Lock()

    def __call__(self, report: Report) -> None:
        """Show and keep a report."""
        for line in report.lines:
            self._note(line)
        # An attempt that Spark has given up may still report.
        with self._lock:
            for record, lines in self._records:
                lines.add(report.lines)
                record["devices"] = lines.text
                if report.shares:
                    record["shares"] = {name: list(each) for name, each in report.shares.items()}
                elif report.shares is not None:
                    record.pop("shares", None)
                if report.passes:
                    record["passes"] = [each.to_json() for each in report.passes]


class SendReport(Protocol):
    """Sends a report, and waits until it has arrived; see `Meeting.report`."""

    def __call__(
        self, lines: Sequence[str], shares: Shares | None, passes: Sequence[TimedPass]
    ) -> None:
        """Send a report."""
        ...


class Reports:
    """Sends what the master reports, in a thread; a context manager.

    A report needs a connection to the driver, which may be busy, so no batch waits for it. What is
    said meanwhile goes with the next report, in order.
    """

    def __init__(self, send: SendReport) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._lines = DeviceLines()
        self._shares: Shares | None = None
        self._passes: Sequence[TimedPass] = ()
        self._waits = self._ended = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join(LAST_SECONDS)
        if self._error is not None and kind is None:
            raise self._error

    def add(
        self,
        lines: Sequence[str],
        shares: Shares | None = None,
        passes: Sequence[TimedPass] = (),
    ) -> None:
        """Report this soon; after the end at once."""
        with self._changed:
            # The text of a device's error may be longer than a report takes.
            self._lines.add(line[:LINE_LENGTH] for line in lines)
            self._shares = self._shares if shares is None else shares
            self._passes = passes or self._passes
            self._waits = True
            self._changed.notify_all()
            ended = self._ended
        if ended:
            self._thread.join(LAST_SECONDS)
            self._send_all()

    def _run(self) -> None:
        try:
            self._send_all()
        except Exception as error:  # noqa: BLE001 - kept, and raised at the end of the training
            self._error = error

    def _send_all(self) -> None:
        while (report := self._next()) is not None:
            self._send(*report)

    def _next(self) -> tuple[list[str], Shares | None, Sequence[TimedPass]] | None:
        """Wait for something to report; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waits or self._ended)
            if not self._waits:
                return None
            report = self._lines.text, self._shares, self._passes
            self._lines, self._shares, self._passes, self._waits = DeviceLines(), None, (), False
            return report
