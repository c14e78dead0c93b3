"""Who waits for an answer of the server: for the start, for a round, for the driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from distkeras_grid.outliers import CommitStatistics
from distkeras_grid.parameter_server.ledger import PendingCommit
from distkeras_grid.parameter_server.membership import ConnectionId
from distkeras_grid.parameter_server.server_events import SendReply
from distkeras_grid.rules.finite_checks import Magnitude
from distkeras_grid.weights import Vector


@dataclass(slots=True, eq=False)
class StartRequest:
    """A session that waits for the start."""

    session: ConnectionId
    vector: Vector  # Receives the center


@dataclass(slots=True, eq=False)
class VectorCommit(PendingCommit):
    """A commit with its vector, and what is known about it."""

    vector: Vector
    size: Magnitude | None
    #: What is wrong with the commit, in words; empty if it may be folded.
    reason: str = ""
    measure: CommitStatistics | None = None


@dataclass(slots=True)
class Waiters:
    """The sessions that wait, with what they have sent or will receive."""

    gate: list[StartRequest] = field(default_factory=list)
    #: Commits of a synchronous round, by seat.
    round: dict[int, VectorCommit] = field(default_factory=dict)
    #: Answers that wait at the end of an epoch until the driver's callbacks have acted, by seat.
    barrier: dict[int, SendReply] = field(default_factory=dict)

    def copy(self) -> Self:
        """Return the same entries, which later changes of this one do not concern."""
        return type(self)([*self.gate], {**self.round}, {**self.barrier})

    @property
    def sessions(self) -> list[ConnectionId]:
        """All that wait."""
        return [
            *(each.session for each in self.gate),
            *(each.session for each in self.round.values()),
            *(each.to for each in self.barrier.values()),
        ]

    def drop(self, seat: int, only: ConnectionId | None = None) -> list[ConnectionId]:
        """Forget what a seat's older connections, or only the connection `only`, wait for."""

        def drops(session: ConnectionId) -> bool:
            return session.seat == seat and only in (None, session)

        dropped = [each.session for each in self.gate if drops(each.session)]
        self.gate = [each for each in self.gate if not drops(each.session)]
        if seat in self.round and drops(self.round[seat].session):
            dropped.append(self.round.pop(seat).session)
        if seat in self.barrier and drops(self.barrier[seat].to):
            dropped.append(self.barrier.pop(seat).to)
        return dropped
