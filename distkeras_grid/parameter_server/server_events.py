"""What the server's core is told, and what it answers: events and actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from distkeras_grid.errors import ParameterServerError, ProtocolError, RefusedError
from distkeras_grid.parameter_server.membership import ConnectionId
from distkeras_grid.parameter_server.messages import Message, PutOptimizerState, WindowCommit
from distkeras_grid.rules.finite_checks import Magnitude, size_of
from distkeras_grid.weights import StateSection, Vector

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_Message = TypeVar("_Message", bound=Message)
#: The driver as a sender and as a receiver. It has no seat.
DRIVER = ConnectionId(seat=-1, attempt=0, number=0)


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """An authenticated connection asks for a seat."""

    seat: int  # seat and attempt: The seat, and the attempt of the worker's task
    attempt: int


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedMessage:
    """A complete message has arrived."""

    sender: ConnectionId
    message: Message
    # The sender's buffer, shape ``(size,)``, ``float32``. It has the vector of the message, and
    # receives the vector of the answer.
    vector: Vector | None = None
    bytes_up: int = 0  # Bytes of the frame
    # How large the received numbers are, found out before the lock is taken
    size: Magnitude | None = None
    # The state that came with the message. The core keeps it.
    state: NDArray[np.uint8] | None = None


def message_event(
    section: StateSection,
    sender: ConnectionId,
    message: Message,
    vector: Vector | None = None,
    bytes_up: int = 0,
    state: NDArray[np.uint8] | None = None,
) -> ReceivedMessage:
    """Return the event of a message, after a look at the numbers that came with it."""
    size = None
    if isinstance(message, PutOptimizerState):
        if vector is None or state is None or state.shape != (section.nbytes,):
            raise RefusedError(
                f"Weights and {section.nbytes} bytes of the optimizer's state are expected. "
                f"Received: {'none' if state is None else state.size}."
            )
        size = size_of(vector) if section.is_finite(state) else Magnitude.NOT_FINITE
    elif vector is not None and isinstance(message, WindowCommit):
        size = size_of(vector)
    return ReceivedMessage(sender, message, vector, bytes_up, size, state)


@dataclass(frozen=True, slots=True)
class Disconnect:
    """A connection has ended, for whatever reason."""

    sender: ConnectionId


Event: TypeAlias = JoinRequest | ReceivedMessage | Disconnect


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


def message_of(event: ReceivedMessage, kind: type[_Message]) -> _Message:
    """Return the message, which the table of handlers has chosen by its kind."""
    if not isinstance(event.message, kind):
        raise ProtocolError(f"{kind.__name__} is expected. Received: {event.message!r}.")
    return event.message


def vector_of(event: ReceivedMessage) -> Vector:
    """Return the vector that must have come with a message."""
    if event.vector is None:
        raise ProtocolError(f"{event.message!r} needs a vector. Received: none.")
    return event.vector
