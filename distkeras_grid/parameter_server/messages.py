"""The messages between workers, driver and server.

One connection is one conversation: the client asks, the server answers, and neither sends out of
turn; `TRANSITIONS` is the table. A message is a frozen struct whose fields are sent as MessagePack.
Missing and unknown fields, wrong types and values out of range are refused when it is read. Some
messages also have a section (the vector of weights, the optimizer's state, or what a worker keeps),
whose bytes are sent as they are in memory.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, ClassVar, TypeAlias

import msgspec

from distkeras_grid.field_types import (
    STATE_LIMIT,
    Count,
    Metrics,
    MetricState,
    Name,
    Place,
    Seconds,
    Sources,
)
from distkeras_grid.outliers import LONGEST_REASON
from distkeras_grid.parameter_server.timeouts import Activity
from distkeras_grid.records import Event, LocalSet

#: Longest part before a vector, bytes, before and after a peer has proved that it has the key.
PRE_AUTHENTICATION_LIMIT = 1024 - 20
HEADER_LIMIT = 64 * 1024
#: Characters of an error in a goodbye, which may come before the proof; our texts are short.
LONGEST_GOODBYE = 900
#: Events in one update.
EVENTS_PER_UPDATE = 1000
#: An event has no more than the message of a commit.
UPDATE_LIMIT = EVENTS_PER_UPDATE * (HEADER_LIMIT + STATE_LIMIT)

#: 32 bytes in hexadecimal: a nonce or a proof.
Digits: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
#: Digest of a seat's rows, or nothing.
RowDigits: TypeAlias = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{16})?$")]
#: Longest text of a failure, characters.
LONGEST_FAILURE = 4000


class Endpoint(Enum):
    """Who sends a message."""

    CLIENT = "client"
    SERVER = "server"


class PayloadKind(Enum):
    """What follows a message; the value is its number in the frame's header.

    `STATE`: the optimizer's state that workers share, or what a worker needs beside the center to
    go on: a packed tree (`distkeras_grid.array_tree`), which only the worker reads.
    """

    NOTHING = 0
    VECTOR = 1
    STATE = 2
    LENT = 3
    FILE = 4


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all messages: fields are sent as MessagePack, with types and ranges checked."""

    sender: ClassVar[Endpoint]
    carries: ClassVar[tuple[PayloadKind, ...]] = (PayloadKind.NOTHING,)
    limit: ClassVar[int] = HEADER_LIMIT


class ClientMessage(Message, frozen=True):
    """A message of a worker or of the driver."""

    sender: ClassVar[Endpoint] = Endpoint.CLIENT


class ServerMessage(Message, frozen=True):
    """A message of the server."""

    sender: ClassVar[Endpoint] = Endpoint.SERVER


class WorkerHello(ClientMessage, frozen=True):
    """A worker names itself; `nonce` is 32 bytes in hexadecimal, fresh for each connection."""

    limit: ClassVar[int] = PRE_AUTHENTICATION_LIMIT
    run: str
    seat: Count
    attempt: Count
    size: Count
    nonce: Digits


class DriverHello(ClientMessage, frozen=True):
    """The driver names itself."""

    limit: ClassVar[int] = PRE_AUTHENTICATION_LIMIT
    run: str
    size: Count
    nonce: Digits


class Challenge(ServerMessage, frozen=True):
    """The server proves that it holds the key, and asks for the same with its own nonce."""

    limit: ClassVar[int] = PRE_AUTHENTICATION_LIMIT
    nonce: Digits
    proof: Digits


class Proof(ClientMessage, frozen=True):
    """The client's proof."""

    limit: ClassVar[int] = PRE_AUTHENTICATION_LIMIT
    proof: Digits


class Ready(ClientMessage, frozen=True):
    """The worker has its rows and can start.

    `window_seconds` is the time of a window's batches, 0 if it was not measured. `digest` is that
    of the rows, which each attempt on the seat must have; empty if it is not known.
    """

    rows: Count
    window_seconds: Seconds
    digest: RowDigits = ""


class ShareMemory(ClientMessage, frozen=True):
    """The worker lends memory, from which the server may read the worker's vectors."""

    carries: ClassVar[tuple[PayloadKind, ...]] = (PayloadKind.FILE,)


class ShareMemoryReply(ServerMessage, frozen=True):
    """The server has mapped the worker's memory, and lends its own for the answers."""

    carries: ClassVar[tuple[PayloadKind, ...]] = (PayloadKind.FILE,)


class Heartbeat(ClientMessage, frozen=True):
    """A sign of life, sent every few seconds by a worker that waits for no answer."""

    activity: Activity  # What the worker does
    done: Count  # How far it has come with that: rows read, or batches trained
    host: Name  # host and log: Name of its host, and where its log is; empty if it knows of none
    log: Place


class Keepalive(ServerMessage, frozen=True):
    """The server is alive and waits for other seats; the answer is still to come."""


class Start(ServerMessage, frozen=True):
    """All seats are ready; the center follows.

    `next_sequence` tells a later attempt how many windows of this seat are behind it. If workers
    make the steps, the center is of `version`, and the steps up to `newest` are to be made.
    `has_state` says whether the server has the optimizer's state of `version`; otherwise it is the
    initial state. `has_worker_state` says whether the server has a state of the seat's worker.
    `rates` are the learning rates that the driver has set, each with the epoch from which it
    counts.
    """

    carries: ClassVar[tuple[PayloadKind, ...]] = (PayloadKind.VECTOR,)
    next_sequence: Count
    version: Count
    newest: Count
    has_state: bool
    learning_rate: float | None
    stop: bool
    has_worker_state: bool = False
    rates: tuple[tuple[Count, float], ...] = ()


class Resume(ClientMessage, frozen=True):
    """The worker continues after a broken connection without a new center.

    It has to repeat a request without an answer. What the driver asks for meanwhile, an end or
    another rate, is in the answer to the next commit.
    """


class WindowCommit(ClientMessage, frozen=True):
    """One trained window; what the rule proposes follows."""

    carries: ClassVar[tuple[PayloadKind, ...]] = (PayloadKind.VECTOR,)
    limit: ClassVar[int] = HEADER_LIMIT + STATE_LIMIT
    # Counts the seat's commits over all attempts; the first is `Start.next_sequence`
    sequence: Count
    version: Count  # Version of the center that the window started from
    epoch: Count  # epoch and window: The window's place in the seat's rows
    window: Count
    steps: Count  # steps and samples: Mini-batches and rows in it, at least 1
    samples: Count
    loss: float | None  # Mean loss of the window, if the model tells one
    metrics: Metrics  # Metrics of the window alone
    # started and seconds: Unix time at which the window began, and how long it took
    started: Seconds
    seconds: Seconds
    # With the last window of an iteration on a local set: what the worker tells of it
    local: LocalSet | None = None
    state: MetricState = b""  # State of these metrics, which the server adds to that of the epoch
    sources: Sources = {}  # As in `distkeras_grid.records.WindowResult`
    learning_rate: float | None = None  # Rate of the window's steps, if it was a number
    # Why the window must not be folded, if the user's function has found something
    reason: Annotated[str, msgspec.Meta(max_length=LONGEST_REASON)] = ""


class CommitReply(ServerMessage, frozen=True):
    """The commit is in the center, or will not be; the rule's reply follows, or the center."""

    carries: ClassVar[tuple[PayloadKind, ...]] = (PayloadKind.VECTOR, PayloadKind.NOTHING)
    version: Count  # Version of the center that the reply was made from
    stop: bool  # The driver asks the worker to finish
    learning_rate: float | None  # The rate to go on with, if the driver has set one
    # If workers make the steps: version of the weights and the optimizer state that the server has,
    # or will have from another worker
    state_version: Count = 0
    state_wanted: bool = False  # Whether the server asks this worker for newer ones
    # Whether the server asks this worker to send what it needs beside the center to go on
    keep: bool = False
    # Whether the commit was not folded because of what was in it. Then the center follows, unless
    # workers make the steps, and the worker begins anew from it.
    skipped: bool = False


class FetchStep(ClientMessage, frozen=True):
    """The worker has the weights of `version` and asks for the step that follows."""

    version: Count


class Step(ServerMessage, frozen=True):
    """The mean gradient of the round after `version`, for an optimizer of this learning rate."""

    carries: ClassVar[tuple[PayloadKind, ...]] = (PayloadKind.VECTOR,)
    learning_rate: float | None


class PutOptimizerState(ClientMessage, frozen=True):
    """The worker sends the weights of a version, and behind them the optimizer's state."""

    carries: ClassVar[tuple[PayloadKind, ...]] = (PayloadKind.STATE,)
    version: Count


class FetchState(ClientMessage, frozen=True):
    """The worker asks for the optimizer's state that it was promised at its start."""


class OptimizerState(ServerMessage, frozen=True):
    """The optimizer's state follows."""

    carries: ClassVar[tuple[PayloadKind, ...]] = (PayloadKind.STATE,)


class PutWorkerState(ClientMessage, frozen=True):
    """The worker sends what it needs to go on; the server keeps it for another attempt."""

    carries: ClassVar[tuple[PayloadKind, ...]] = (PayloadKind.STATE,)
    sequence: Count  # Number of the commit that is due
    version: Count  # Version of the center that the worker has


class GoOn(ServerMessage, frozen=True):
    """The server has what the worker keeps; `stop` and `learning_rate` as in `CommitReply`."""

    stop: bool
    learning_rate: float | None


class GetWorkerState(ClientMessage, frozen=True):
    """The worker asks for what an earlier attempt kept."""


class WorkerStateReply(ServerMessage, frozen=True):
    """The state of an earlier attempt follows, with the numbers of its `PutWorkerState`."""

    carries: ClassVar[tuple[PayloadKind, ...]] = (PayloadKind.STATE,)
    sequence: Count
    version: Count


class WorkerEnd(ClientMessage, frozen=True):
    """The worker has no windows left."""


class WorkerError(ClientMessage, frozen=True):
    """The worker gives up; `error` is the class name of the exception."""

    error: Name
    message: Annotated[str, msgspec.Meta(max_length=LONGEST_FAILURE)]


class Poll(ClientMessage, frozen=True):
    """The driver has `offset` events since the start of the run and asks for the later ones.

    It has kept its own state for the checkpoints up to number `captured`. The answer comes after
    `wait_seconds` seconds, or as soon as workers wait at the end of an epoch.
    """

    offset: Count
    captured: Count = 0
    wait_seconds: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.0


class SeatStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One seat as the driver sees it."""

    # worker and attempt: Number of the seat; the newest attempt on it, -1 while none has come
    worker: Count
    attempt: Annotated[int, msgspec.Meta(ge=-1, lt=2**53)]
    # ``absent``, ``joined``, ``ready``, ``running``, ``finished``, ``failed`` or ``lost``
    status: str
    rows: Count | None  # Rows of the seat, known once it has been ready
    samples_folded: Count  # Samples of all its accepted windows
    # What the worker has said that it does, or ``waiting`` if its commit waits for those of others,
    # or its answer for the driver; empty if it has said nothing
    activity: Activity = ""
    done: Count = 0  # How far it has come with that
    commits: Count = 0  # Its commits so far, folded or late
    heartbeats: Count = 0  # Signs of life of this attempt
    host: Name = ""  # host and log: As it has told them; empty if it has told nothing
    log: Place = ""
    tries: Count = 0  # How often the worker has been started so far


class CenterUpdate(ServerMessage, frozen=True):
    """The run as it is now, with the events after the first `offset`.

    With the last of them the driver has all events before the checkpoint of number `captured`, and
    it receives no later ones until it says that it has kept its own state. 0 for no checkpoint.
    """

    limit: ClassVar[int] = UPDATE_LIMIT
    version: Count
    samples_folded: Count
    seats: tuple[SeatStatus, ...]
    events: tuple[Event, ...]
    captured: Count = 0


class Command(ClientMessage, frozen=True):
    """The driver's settings for the workers; None leaves a setting as it is.

    With `begin`, workers that are ready start, whoever is missing. Callbacks have acted after so
    many `epochs`: workers that wait at the end of the last of them begin the next one.
    """

    stop: bool | None
    learning_rate: float | None
    begin: bool = False
    epochs: Count | None = None


class Done(ServerMessage, frozen=True):
    """The request has been carried out; in answer to a proof, the client is let in."""


class BeginCheckpoint(ClientMessage, frozen=True):
    """The driver asks for a checkpoint: at once, or with what the workers keep at their next reply.

    `at_once` also ends the wait for workers that were asked before.
    """

    at_once: bool


class FetchPart(ClientMessage, frozen=True):
    """The driver asks for a part of the checkpoint of this number: 0 is the server's state."""

    number: Count
    part: Count


class CheckpointPart(ServerMessage, frozen=True):
    """The part follows; there are `parts` of them, one for the server and one for each worker."""

    carries: ClassVar[tuple[PayloadKind, ...]] = (PayloadKind.STATE,)
    parts: Count


class FetchCenter(ClientMessage, frozen=True):
    """The driver asks for the center, now or as it was when a snapshot was made.

    If each seat has its own center, `seat` says which one.
    """

    snapshot: Count | None
    seat: Count


class CenterReply(ServerMessage, frozen=True):
    """The center follows."""

    carries: ClassVar[tuple[PayloadKind, ...]] = (PayloadKind.VECTOR,)
    version: Count


class Rejection(ServerMessage, frozen=True):
    """The request was refused and has changed nothing; the conversation continues."""

    message: str


class Close(ServerMessage, frozen=True):
    """The server ends the conversation; `error` is the class name of an exception."""

    error: str
    message: str


#: state -> the messages that are legal in it, and the state that each leads to. The messages of
#: one state all have the same sender, so it is always clear whose turn it is.
TRANSITIONS: dict[str, dict[type[Message], str]] = {
    "hello": {WorkerHello: "worker challenge", DriverHello: "driver challenge"},
    "worker challenge": {Challenge: "worker proof", Close: "closed"},
    "worker proof": {Proof: "worker welcome"},
    "worker welcome": {Done: "joined", Close: "closed"},
    "joined": {
        ShareMemory: "lending",
        Ready: "starting",
        Resume: "resuming",
        Heartbeat: "joined, alive",
        WorkerError: "leaving",
    },
    "lending": {ShareMemoryReply: "joined", Rejection: "joined", Close: "closed"},
    "joined, alive": {Done: "joined", Close: "closed"},
    "resuming": {Done: "running", Close: "closed"},
    "starting": {Keepalive: "starting", Start: "running", Close: "closed"},
    "running": {
        WindowCommit: "exchanging",
        FetchStep: "stepping",
        FetchState: "taking over",
        PutOptimizerState: "handing over",
        PutWorkerState: "keeping",
        GetWorkerState: "recalling",
        Heartbeat: "running, alive",
        WorkerEnd: "leaving",
        WorkerError: "leaving",
    },
    "running, alive": {Done: "running", Close: "closed"},
    "stepping": {Step: "running", Rejection: "running", Close: "closed"},
    "taking over": {OptimizerState: "running", Rejection: "running", Close: "closed"},
    "handing over": {Done: "running", Rejection: "running", Close: "closed"},
    "keeping": {Keepalive: "keeping", GoOn: "running", Rejection: "running", Close: "closed"},
    "recalling": {WorkerStateReply: "running", Rejection: "running", Close: "closed"},
    "exchanging": {
        Keepalive: "exchanging",
        CommitReply: "running",
        Rejection: "running",
        Close: "closed",
    },
    "leaving": {Keepalive: "leaving", Done: "closed", Close: "closed"},
    "driver challenge": {Challenge: "driver proof", Close: "closed"},
    "driver proof": {Proof: "driver welcome"},
    "driver welcome": {Done: "driving", Close: "closed"},
    "driving": {
        Poll: "polling",
        Command: "commanding",
        BeginCheckpoint: "commanding",
        FetchCenter: "fetching",
        FetchPart: "fetching a part",
    },
    "polling": {CenterUpdate: "driving", Close: "closed"},
    "commanding": {Done: "driving", Rejection: "driving", Close: "closed"},
    "fetching": {CenterReply: "driving", Rejection: "driving", Close: "closed"},
    "fetching a part": {CheckpointPart: "driving", Rejection: "driving", Close: "closed"},
    "closed": {},
}
#: The position is the number in a frame: `frames.VERSION` changes with the table.
MESSAGES = tuple(dict.fromkeys(kind for legal in TRANSITIONS.values() for kind in legal))
