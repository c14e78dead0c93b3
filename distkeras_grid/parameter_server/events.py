"""The events that the driver has not seen yet."""

from __future__ import annotations

import math

from distkeras_grid.records import EpochEnded, Event


class EventLog:
    """Events in order, kept until the driver has received them.

    Examples
    --------
    >>> from distkeras_grid.records import WorkerRecord
    >>> log = EventLog()
    >>> for worker in range(2):
    ...     log.add(WorkerRecord(worker, 7, "joined"))
    >>> [event.worker for event in log.after(0, 10)]
    [0, 1]
    >>> [event.worker for event in log.after(1, 10)]
    [1]
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.forgotten = 0
        self.stops_at: int | None = None

    def pause(self) -> None:
        """Tell no events after those of now until `resume`."""
        self.stops_at = self.forgotten + len(self.events)

    def resume(self) -> None:
        """Tell all events again."""
        self.stops_at = None

    def add(self, event: Event) -> None:
        """Keep an event until the driver has received it."""
        self.events.append(event)

    def after(self, offset: int, most: int, before_epoch: float = math.inf) -> list[Event]:
        """Drop the events that the driver has, and return the following ones."""
        forget = max(0, offset - self.forgotten)
        forget = min(forget, len(self.events))
        del self.events[:forget]
        self.forgotten += forget
        if self.stops_at is not None:
            most = min(most, max(0, self.stops_at - self.forgotten))
        chosen = self.events[:most]
        ends = (isinstance(e, EpochEnded) and e.epoch >= before_epoch for e in chosen)
        return chosen[: next((place for place, end in enumerate(ends) if end), most)]
