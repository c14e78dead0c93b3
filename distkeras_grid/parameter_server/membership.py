"""Who has which seat: attempts, connections, what each worker does, and who may start.

A newer attempt of a worker fences the older one, and a newer connection of an attempt the older
connection. Part of the server's core: no I/O, no lock and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from distkeras_grid.errors import FencedError, RefusedError
from distkeras_grid.parameter_server.events import EventLog
from distkeras_grid.parameter_server.messages import Heartbeat
from distkeras_grid.parameter_server.timeouts import Activity
from distkeras_grid.records import WorkerRecord
from distkeras_grid.spec import RunSpec

#: In these states a seat does not delay the start.
_PRESENT = ("ready", "running", "finished")
#: What a worker tells with each sign of life.
_REPORT = ("activity", "done", "heartbeats", "host", "log")


@dataclass(frozen=True, slots=True)
class ConnectionId:
    """One connection's claim on a seat."""

    seat: int  # seat and attempt: The seat, and Spark's number of the task on it
    attempt: int
    number: int  # Counts the seat's connections. Only the newest one is valid.


@dataclass(slots=True)
class Seat:
    """A seat, and the worker that has it."""

    status: str = "absent"
    attempt: int = -1
    connection: int = 0
    #: Rows of the worker, and their digest; the same for all attempts.
    rows: int | None = None
    digest: str = ""
    #: Newest attempt that has started; only this one may resume.
    started: int = -1
    #: How many attempts there have been.
    tries: int = 0
    # What its worker has told with its last sign of life, and the number of these.
    activity: Activity = ""
    done: int = 0
    heartbeats: int = 0
    host: str = ""
    log: str = ""


class Membership:
    """The seats of one run."""

    def __init__(self, spec: RunSpec, events: EventLog) -> None:
        #: The time of the event that is being handled [s since 1970].
        self.now = 0.0
        #: Whether ready seats start, whoever is missing.
        self.started = False
        self.seats = [Seat() for _ in range(spec.workers)]
        self._spec = spec
        self._events = events

    def join(self, number: int, attempt: int) -> ConnectionId:
        """Give a seat to an attempt, and take it from an older one."""
        if number >= len(self.seats):
            raise RefusedError(
                f"The run has the workers 0 to {len(self.seats) - 1}. Received: worker {number}."
            )
        seat = self.seats[number]
        if attempt < seat.attempt:
            raise self.fenced(number, attempt)
        if attempt > seat.attempt:
            if seat.status not in ("absent", "finished", "failed", "lost"):
                self.log_status(number, "fenced")
            seat.tries += 1
            new = Seat()
            for name in _REPORT:
                setattr(seat, name, getattr(new, name))
        seat.attempt = attempt
        seat.connection += 1
        seat.status = "joined"
        self.log_status(number, "joined")
        return ConnectionId(number, attempt, seat.connection)

    def ready(
        self,
        session: ConnectionId,
        rows: int,
        window_seconds: float = 0.0,
        digest: str = "",
        transport: str = "",
    ) -> None:
        """Record that a seat has its rows."""
        seat = self.current(session)
        if seat.rows not in (None, rows):
            raise RefusedError(
                f"An earlier attempt of worker {session.seat} had {seat.rows} rows. Received: "
                f"{rows} rows. The data must be the same each time they are read: write them to "
                "Parquet, and train on the Parquet files."
            )
        if digest and seat.digest not in ("", digest):
            raise RefusedError(
                f"An earlier attempt of worker {session.seat} had other rows, with the digest "
                f"{seat.digest!r}. Received: as many, with {digest!r}. The data must be the same "
                "each time they are read: write them to Parquet, and train on the Parquet files."
            )
        if rows > self._spec.largest_share():
            raise RefusedError(
                f"A worker of this run has {self._spec.largest_share()} rows at most. Received: "
                f"{rows} rows of worker {session.seat}. Let driver and workers read the same data."
            )
        seat.rows = rows
        total = sum(other.rows or 0 for other in self.seats)
        known = all(other.rows is not None for other in self.seats)
        if total > self._spec.rows or (known and total != self._spec.rows):
            seat.rows = None
            raise RefusedError(
                f"The run was announced with {self._spec.rows} rows. Received: {total} rows of "
                "its workers. Let driver and workers read the same data."
            )
        seat.status, seat.digest = "ready", digest or seat.digest
        self.log_status(
            session.seat,
            "ready",
            window_seconds=window_seconds or None,
            transport=transport or None,
        )
        self.started = self.started or self.present == len(self.seats)

    def heartbeat(self, session: ConnectionId, beat: Heartbeat) -> None:
        """Record a sign of life."""
        seat = self.current(session)
        seat.activity, seat.done = beat.activity, beat.done
        seat.host, seat.log = beat.host, beat.log
        seat.heartbeats += 1

    @property
    def present(self) -> int:
        """Seats that are ready."""
        return sum(seat.status in _PRESENT for seat in self.seats)

    def start(self, session: ConnectionId) -> None:
        """Record that a seat starts."""
        seat = self.current(session)
        seat.status, seat.started = "running", session.attempt

    def resume(self, session: ConnectionId, transport: str = "") -> None:
        """Let a seat continue where it was, after a broken connection."""
        seat = self.current(session)
        if seat.started != session.attempt:
            raise RefusedError(
                f"Worker {session.seat} cannot resume: it was not told to start. "
                f"Received: Spark task {session.attempt}; started: Spark task {seat.started}."
            )
        seat.status = "running"
        self.log_status(session.seat, "resumed", transport=transport or None)

    def finish(self, session: ConnectionId) -> None:
        """Record that a worker has no windows left."""
        self.current(session).status = "finished"
        self.log_status(session.seat, "finished")

    def fail(self, session: ConnectionId, error: str, message: str) -> None:
        """Record that a worker gave up."""
        self.current(session).status = "failed"
        self.log_failure(session, error, message)

    def lose(self, session: ConnectionId) -> None:
        """Record that a connection broke, unless its seat has a newer one."""
        seat = self.seats[session.seat]
        if seat.connection == session.number and seat.status not in ("finished", "failed"):
            seat.status = "lost"
            self.log_status(session.seat, "lost")

    @property
    def finished(self) -> int:
        """Workers that have no windows left."""
        return sum(seat.status == "finished" for seat in self.seats)

    @property
    def over(self) -> bool:
        """Whether enough seats have finished, so that the run does not wait for the others."""
        return self.finished >= self._spec.quorum_of(len(self.seats))

    def needed(self, present: Iterable[int]) -> int:
        """Return how many commits complete a synchronous round.

        That is the quorum of those who could come, but no more than still have to finish: a seat
        that never comes back must not be needed by the last ones.
        """
        there = set(present)
        due = self._spec.quorum_of(len(self.seats)) - self.finished
        return max(1, min(self._spec.quorum_of(len(there) + len(self.missing(there))), due))

    def missing(self, present: Iterable[int]) -> list[int]:
        """Return the seats whose commits a synchronous round still waits for."""
        waiting = set(present)
        return [
            number
            for number, seat in enumerate(self.seats)
            if seat.status != "finished" and seat.rows != 0 and number not in waiting
        ]

    # Connections

    def is_of_attempt(self, number: int, attempt: int) -> bool:
        """Whether a seat was taken by this attempt before; also False if there is no such seat."""
        return number < len(self.seats) and self.seats[number].attempt == attempt

    def is_current(self, session: ConnectionId) -> bool:
        """Whether no newer connection has the session's seat."""
        return self.seats[session.seat].connection == session.number

    def current(self, session: ConnectionId) -> Seat:
        """Return the seat of a session; every connection but the newest is fenced."""
        seat = self.seats[session.seat]
        if seat.connection != session.number:
            raise self.fenced(session.seat, session.attempt)
        return seat

    def fenced(self, number: int, attempt: int) -> FencedError:
        """Return the error for an attempt, or an old connection of one, that lost its seat."""
        return FencedError(
            f"Worker {number} has a newer connection, of Spark task {self.seats[number].attempt}. "
            f"This one, of Spark task {attempt}, has to end."
        )

    # Events

    def log_failure(self, session: ConnectionId, error: str, message: str) -> None:
        """Report an error that ends a worker to the driver, by its class name and its message."""
        self.log_status(
            session.seat, "failed", attempt=session.attempt, error=error, message=message
        )

    def log_status(
        self, number: int, status: str, *, attempt: int | None = None, **details: Any
    ) -> None:
        """Report to the driver what has become of a worker."""
        seat = self.seats[number]
        self._events.add(
            WorkerRecord(
                number,
                seat.attempt if attempt is None else attempt,
                status,
                seat.rows,
                at=self.now,
                host=seat.host,
                log=seat.log,
                tries=seat.tries,
                **details,
            )
        )
