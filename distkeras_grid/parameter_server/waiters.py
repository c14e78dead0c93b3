"""Who waits for an answer of the server: for the start, for a round, for the driver."""

from __future__ import annotations

from dataclasses import dataclass, field

from distkeras_grid.parameter_server.membership import ConnectionId
from distkeras_grid.parameter_server.messages import Ready
from distkeras_grid.parameter_server.server_events import (
    ReceivedCommit,
    ReceivedMessage,
    SendReply,
)


@dataclass(slots=True)
class Waiters:
    """The sessions that wait, with what they have sent or will receive."""

    gate: list[ReceivedMessage[Ready]] = field(default_factory=list)
    #: Commits of a synchronous round, by seat.
    round: dict[int, ReceivedCommit] = field(default_factory=dict)
    #: Answers that wait at the end of an epoch until the driver's callbacks have acted, by seat.
    barrier: dict[int, SendReply] = field(default_factory=dict)

    @property
    def sessions(self) -> list[ConnectionId]:
        """All that wait."""
        return [
            *(each.sender for each in self.gate),
            *(each.sender for each in self.round.values()),
            *(each.to for each in self.barrier.values()),
        ]

    def drop(self, seat: int, only: ConnectionId | None = None) -> list[ConnectionId]:
        """Forget what a seat's older connections, or only the connection `only`, wait for."""

        def drops(session: ConnectionId) -> bool:
            return session.seat == seat and only in (None, session)

        dropped = [each.sender for each in self.gate if drops(each.sender)]
        self.gate = [each for each in self.gate if not drops(each.sender)]
        if seat in self.round and drops(self.round[seat].sender):
            dropped.append(self.round.pop(seat).sender)
        if seat in self.barrier and drops(self.barrier[seat].to):
            dropped.append(self.barrier.pop(seat).to)
        return dropped
