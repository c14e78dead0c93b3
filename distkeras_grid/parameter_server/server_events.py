"""What the server's core is told, and what it answers: events and actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np

from distkeras_grid.errors import ParameterServerError
from distkeras_grid.outliers import CommitStatistics
from distkeras_grid.parameter_server.membership import ConnectionId
from distkeras_grid.parameter_server.messages import Message, WindowCommit
from distkeras_grid.rules.finite_checks import Magnitude
from distkeras_grid.weights import Vector

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Message = TypeVar("_Message", bound=Message)
#: The driver as a sender and as a receiver. It has no seat.
DRIVER = ConnectionId(seat=-1, attempt=0, number=0)


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """An authenticated connection asks for a seat."""

    seat: int  # seat and attempt: The seat, and the attempt of the worker's task
    attempt: int


@dataclass(slots=True, eq=False)
class ReceivedMessage(Generic[_Message]):
    """A complete message has arrived; the core's table of handlers goes by its kind."""

    sender: ConnectionId
    message: _Message
    # The sender's buffer, shape ``(size,)``, ``float32``. It has the vector of the message, and
    # receives the vector of the answer. Empty for messages that need none.
    vector: Vector = field(default_factory=lambda: np.empty(0, np.float32))
    bytes_up: int = 0  # Bytes of the frame
    # How large the numbers of a commit are; None if nobody has looked before the lock was taken.
    size: Magnitude | None = None
    transport: str = ""  # How vectors travel on the connection
    # The state that came with the message. The core keeps it.
    state: NDArray[np.uint8] | None = None
    # What is wrong with a commit, in words; empty if it may be folded.
    reason: str = ""
    measure: CommitStatistics | None = None


#: A window's commit, with its vector and what is known about it.
ReceivedCommit: TypeAlias = ReceivedMessage[WindowCommit]


@dataclass(frozen=True, slots=True)
class Disconnect:
    """A connection has ended, for whatever reason."""

    sender: ConnectionId


Event: TypeAlias = JoinRequest | ReceivedMessage[Any] | Disconnect


@dataclass(frozen=True, slots=True)
class SeatGrant:
    """The connection that asked to join has the seat from now on."""

    session: ConnectionId


@dataclass(frozen=True, slots=True, eq=False)
class SendReply:
    """Send a message."""

    to: ConnectionId  # The receiver
    message: Message
    # Vector of the message; it does not change until the receiver sends the next message
    vector: Vector | None = None
    size: int = 0  # Bytes of the section as it is sent
    state: NDArray[np.uint8] | None = None  # State of the message, instead of a vector
    # A tree to be packed as the state, which takes time and needs no lock
    tree: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RejectWaiter:
    """End a session's wait with an error; after a refusal the conversation continues."""

    to: ConnectionId
    error: ParameterServerError


Action: TypeAlias = SeatGrant | SendReply | RejectWaiter
