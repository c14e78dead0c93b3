"""The messages between workers, driver and server.

One connection is one conversation: the client asks, the server answers, and neither speaks out of
turn (`distkeras_grid.parameter_server.connection` has the table). A message is a frozen dataclass;
its fields travel as JSON. Some carry a vector besides, which travels as it lies in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any, ClassVar, Self, get_type_hints

from distkeras_grid.errors import DataError, RemoteProtocolError
from distkeras_grid.parameter_server.json_types import check_for
from distkeras_grid.records import Event, event_of, json_of

#: Longest JSON part, bytes, before and after a peer has proven that it holds the key.
PRE_AUTHENTICATION_LIMIT = 1024 - 20
HEADER_LIMIT = 64 * 1024
UPDATE_LIMIT = 64 * 1024 * 1024
#: Events in one update; with `HEADER_LIMIT` for each commit they stay below `UPDATE_LIMIT`.
EVENTS_PER_UPDATE = 1000


class Side(Enum):
    """Who sends a message."""

    CLIENT = "client"
    SERVER = "server"


class Carries(Enum):
    """Which vector follows a message."""

    NOTHING = "nothing"
    VECTOR = "vector"
    MAYBE = "vector or nothing"


@dataclass(frozen=True, slots=True)
class Message:
    """What all messages share."""

    sender: ClassVar[Side]
    carries: ClassVar[Carries] = Carries.NOTHING
    limit: ClassVar[int] = HEADER_LIMIT

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Build the message from parsed JSON, with every type checked.

        Raises
        ------
        RemoteProtocolError
            If fields are missing, unknown or of the wrong type.
        """
        checks = _CHECKS[cls]
        if not isinstance(data, dict) or data.keys() != checks.keys():
            raise RemoteProtocolError(f"{cls.__name__} needs the fields {', '.join(checks)}.")
        for name, check in checks.items():
            if not check(data[name]):
                raise RemoteProtocolError(
                    f"{cls.__name__}.{name} has the wrong type or range: {data[name]!a:.100}."
                )
        return cls(**data)


@dataclass(frozen=True, slots=True)
class WorkerHello(Message):
    """A worker names itself; `nonce` is 32 bytes in hexadecimal, fresh for each connection."""

    sender: ClassVar[Side] = Side.CLIENT
    limit: ClassVar[int] = PRE_AUTHENTICATION_LIMIT
    run: str
    seat: int
    attempt: int
    size: int
    nonce: str


@dataclass(frozen=True, slots=True)
class DriverHello(Message):
    """The driver names itself."""

    sender: ClassVar[Side] = Side.CLIENT
    limit: ClassVar[int] = PRE_AUTHENTICATION_LIMIT
    run: str
    size: int
    nonce: str


@dataclass(frozen=True, slots=True)
class Challenge(Message):
    """The server proves that it holds the key, and asks for the same with its own nonce."""

    sender: ClassVar[Side] = Side.SERVER
    limit: ClassVar[int] = PRE_AUTHENTICATION_LIMIT
    nonce: str
    proof: str


@dataclass(frozen=True, slots=True)
class Proof(Message):
    """The client's proof."""

    sender: ClassVar[Side] = Side.CLIENT
    limit: ClassVar[int] = PRE_AUTHENTICATION_LIMIT
    proof: str


@dataclass(frozen=True, slots=True)
class WorkerWelcome(Message):
    """The seat is the worker's."""

    sender: ClassVar[Side] = Side.SERVER


@dataclass(frozen=True, slots=True)
class DriverWelcome(Message):
    """The driver may ask."""

    sender: ClassVar[Side] = Side.SERVER


@dataclass(frozen=True, slots=True)
class Ready(Message):
    """The worker has its rows and could start.

    `window_seconds` is how long the batches of a window take it, 0 where not measured.
    """

    sender: ClassVar[Side] = Side.CLIENT
    rows: int
    window_seconds: float


@dataclass(frozen=True, slots=True)
class Waiting(Message):
    """The server is alive and waits for other seats; the answer is still to come."""

    sender: ClassVar[Side] = Side.SERVER
    present: int
    expected: int


@dataclass(frozen=True, slots=True)
class Start(Message):
    """All seats are ready; the center follows.

    `next_sequence` and `samples_folded` tell a later attempt what of this seat is in the center.
    Where workers make the steps, the center is of `version` and the steps up to `newest` are to be
    made; the optimizer's state of `version` comes in `state_parts` vectors.
    """

    sender: ClassVar[Side] = Side.SERVER
    carries: ClassVar[Carries] = Carries.VECTOR
    next_sequence: int
    samples_folded: int
    version: int
    newest: int
    state_parts: int
    learning_rate: float | None
    stop: bool


@dataclass(frozen=True, slots=True)
class Resume(Message):
    """The worker goes on after a broken connection, and needs no center."""

    sender: ClassVar[Side] = Side.CLIENT


@dataclass(frozen=True, slots=True)
class Resumed(Message):
    """The seat goes on where it was; what was not answered is to be asked again.

    Parameters
    ----------
    next_sequence : int
        Number of the seat's commit that is due.
    version : int
        Of the center, which does not follow.
    stop : bool
        The driver asks the worker to finish.
    learning_rate : float or None
        The rate to go on with, if the driver has set one.
    """

    sender: ClassVar[Side] = Side.SERVER
    next_sequence: int
    version: int
    stop: bool
    learning_rate: float | None


@dataclass(frozen=True, slots=True)
class WindowCommit(Message):
    """One trained window; what the rule proposes follows.

    Parameters
    ----------
    sequence : int
        Counts the seat's commits over all attempts; the first is `Start.next_sequence`.
    version : int
        Of the center that the window started from.
    epoch, window : int
        Where in the seat's rows the window lies.
    steps, samples : int
        Mini-batches and rows in it, at least 1.
    loss : float
        Mean loss of the window.
    metrics : dict
        Metrics of the window alone.
    started, seconds : float
        Unix time at which the window began, and how long it took.
    """

    sender: ClassVar[Side] = Side.CLIENT
    carries: ClassVar[Carries] = Carries.VECTOR
    sequence: int
    version: int
    epoch: int
    window: int
    steps: int
    samples: int
    loss: float
    metrics: dict[str, float]
    started: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Exchanged(Message):
    """The commit is in the center; the rule's reply follows.

    Parameters
    ----------
    version : int
        Version of the center that the reply was made from.
    staleness : int
        Versions that others added since this seat's last reply.
    stop : bool
        The driver asks the worker to finish.
    learning_rate : float or None
        The rate to go on with, if the driver has set one.
    state_version : int
        Where workers make the steps: of the weights and the optimizer state that the server has.
    state_wanted : bool
        Whether it asks this worker for newer ones.
    """

    sender: ClassVar[Side] = Side.SERVER
    carries: ClassVar[Carries] = Carries.MAYBE
    version: int
    staleness: int
    stop: bool
    learning_rate: float | None
    state_version: int = 0
    state_wanted: bool = False


@dataclass(frozen=True, slots=True)
class FetchStep(Message):
    """The worker has the weights of `version` and asks for the step that follows."""

    sender: ClassVar[Side] = Side.CLIENT
    version: int


@dataclass(frozen=True, slots=True)
class Step(Message):
    """The mean gradient of a round follows, for an optimizer of this learning rate."""

    sender: ClassVar[Side] = Side.SERVER
    carries: ClassVar[Carries] = Carries.VECTOR
    learning_rate: float | None


@dataclass(frozen=True, slots=True)
class HandOver(Message):
    """The worker tells weights (part 0) and optimizer state of a version, one vector a part."""

    sender: ClassVar[Side] = Side.CLIENT
    carries: ClassVar[Carries] = Carries.VECTOR
    version: int
    part: int
    parts: int


@dataclass(frozen=True, slots=True)
class FetchState(Message):
    """The worker asks for a part of the optimizer state, from 1."""

    sender: ClassVar[Side] = Side.CLIENT
    part: int


@dataclass(frozen=True, slots=True)
class StatePart(Message):
    """That part follows."""

    sender: ClassVar[Side] = Side.SERVER
    carries: ClassVar[Carries] = Carries.VECTOR


@dataclass(frozen=True, slots=True)
class Finish(Message):
    """The worker has no windows left."""

    sender: ClassVar[Side] = Side.CLIENT


@dataclass(frozen=True, slots=True)
class Fail(Message):
    """The worker gives up; `error` is the class name of the exception."""

    sender: ClassVar[Side] = Side.CLIENT
    error: str
    message: str


@dataclass(frozen=True, slots=True)
class Poll(Message):
    """The driver has `seen` events since the run began and asks for the later ones."""

    sender: ClassVar[Side] = Side.CLIENT
    seen: int


@dataclass(frozen=True, slots=True)
class SeatStatus:
    """One seat as the driver sees it.

    Parameters
    ----------
    worker, attempt : int
        Number of the seat; the newest attempt on it, -1 while none has come.
    status : str
        ``absent``, ``joined``, ``ready``, ``running``, ``finished``, ``failed`` or ``lost``.
    rows : int or None
        Rows of the seat, known once it has been ready.
    samples_folded : int
        Samples of all its accepted windows.
    """

    worker: int
    attempt: int
    status: str
    rows: int | None
    samples_folded: int


@dataclass(frozen=True, slots=True)
class Update(Message):
    """The run as it is now, with the events that the driver has not seen."""

    sender: ClassVar[Side] = Side.SERVER
    limit: ClassVar[int] = UPDATE_LIMIT
    version: int
    samples_folded: int
    seats: tuple[SeatStatus, ...]
    events: tuple[Event, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the update as plain JSON values."""
        return {
            "version": self.version,
            "samples_folded": self.samples_folded,
            "seats": [asdict(seat) for seat in self.seats],
            "events": [json_of(event) for event in self.events],
        }

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Build the update, with its seats."""
        # zero-argument super() does not work in a dataclass with slots
        plain = super(Update, cls).from_json(data)
        try:
            seats = tuple(SeatStatus(**seat) for seat in data["seats"])
            events = tuple(event_of(event) for event in data["events"])
        except (TypeError, DataError) as error:
            raise RemoteProtocolError(f"Update cannot be read: {error}.") from error
        return cls(plain.version, plain.samples_folded, seats, events)


@dataclass(frozen=True, slots=True)
class Command(Message):
    """The driver steers: None leaves a thing as it is."""

    sender: ClassVar[Side] = Side.CLIENT
    stop: bool | None
    learning_rate: float | None


@dataclass(frozen=True, slots=True)
class Done(Message):
    """What was asked is done."""

    sender: ClassVar[Side] = Side.SERVER


@dataclass(frozen=True, slots=True)
class FetchCenter(Message):
    """The driver asks for the center, now or as it was when a snapshot was made.

    Where each seat has its own, `seat` says whose is asked for; else all have the same.
    """

    sender: ClassVar[Side] = Side.CLIENT
    snapshot: int | None
    seat: int


@dataclass(frozen=True, slots=True)
class Center(Message):
    """The center follows."""

    sender: ClassVar[Side] = Side.SERVER
    carries: ClassVar[Carries] = Carries.VECTOR
    version: int


@dataclass(frozen=True, slots=True)
class Refused(Message):
    """The request was refused and changed nothing; the conversation goes on."""

    sender: ClassVar[Side] = Side.SERVER
    message: str


@dataclass(frozen=True, slots=True)
class Goodbye(Message):
    """The server ends the conversation; `error` is the class name of an exception."""

    sender: ClassVar[Side] = Side.SERVER
    error: str
    message: str


#: Position is the number on the wire: add at the end, never reorder.
MESSAGES: tuple[type[Message], ...] = (
    WorkerHello,
    DriverHello,
    Challenge,
    Proof,
    WorkerWelcome,
    DriverWelcome,
    Ready,
    Waiting,
    Start,
    WindowCommit,
    Exchanged,
    Finish,
    Fail,
    Poll,
    Update,
    Command,
    Done,
    FetchCenter,
    Center,
    Refused,
    Goodbye,
    FetchStep,
    Step,
    HandOver,
    FetchState,
    StatePart,
    Resume,
    Resumed,
)


_CHECKS: Mapping[type[Message], Mapping[str, Callable[[Any], bool]]] = {
    message: {
        field.name: check_for(get_type_hints(message)[field.name]) for field in fields(message)
    }
    for message in MESSAGES
}
