"""One end of a conversation, without a socket: bytes in, messages out, and which are legal.

The transport asks `wanted` where to put the next bytes, puts them there, and calls `received`. So
vectors are received into the caller's own buffer without a copy, and no byte of the next frame is
read. If the conversation is protected, the fields of each frame and each section are sealed, and
nothing is decoded or passed on before its seal has been checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from distkeras_grid.errors import LocalProtocolError, RemoteProtocolError
from distkeras_grid.parameter_server import frames
from distkeras_grid.parameter_server.compression import Wire, build_wire
from distkeras_grid.parameter_server.encryption import LONGEST_PART, SEAL_BYTES, FrameCipher
from distkeras_grid.parameter_server.messages import (
    HEADER_LIMIT,
    PRE_AUTHENTICATION_LIMIT,
    BeginCheckpoint,
    CenterReply,
    CenterUpdate,
    Challenge,
    CheckpointPart,
    Close,
    Command,
    CommitReply,
    Done,
    DriverHello,
    DriverWelcome,
    Endpoint,
    FetchCenter,
    FetchPart,
    FetchState,
    FetchStep,
    GetWorkerState,
    GoOn,
    Heartbeat,
    Keepalive,
    Message,
    OptimizerState,
    PayloadKind,
    Poll,
    Proof,
    PutOptimizerState,
    PutWorkerState,
    Ready,
    Rejection,
    Resume,
    ResumeReply,
    ShareMemory,
    ShareMemoryReply,
    Start,
    Step,
    WindowCommit,
    WorkerEnd,
    WorkerError,
    WorkerHello,
    WorkerStateReply,
    WorkerWelcome,
)
from distkeras_grid.spec import CompressionName
from distkeras_grid.weights import Vector

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: state -> the messages that are legal in it, and the state that each leads to. The messages of
#: one state all have the same sender, so it is always clear whose turn it is.
TRANSITIONS: dict[str, dict[type[Message], str]] = {
    "hello": {WorkerHello: "worker challenge", DriverHello: "driver challenge"},
    "worker challenge": {Challenge: "worker proof", Close: "closed"},
    "worker proof": {Proof: "worker welcome"},
    "worker welcome": {WorkerWelcome: "joined", Close: "closed"},
    "joined": {
        ShareMemory: "lending",
        Ready: "starting",
        Resume: "resuming",
        Heartbeat: "joined, alive",
        WorkerError: "leaving",
    },
    "lending": {ShareMemoryReply: "joined", Rejection: "joined", Close: "closed"},
    "joined, alive": {Done: "joined", Close: "closed"},
    "resuming": {ResumeReply: "running", Close: "closed"},
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
    "driver welcome": {DriverWelcome: "driving", Close: "closed"},
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
#: Most bytes of a part of a checkpoint. Only the driver receives them, and from its own server.
LARGEST_PART = LONGEST_PART
#: Messages whose vectors are compressed, if the run uses compression.
_COMPRESSED = (WindowCommit, CommitReply, Step)
_BEFORE_AUTHENTICATION = frozenset(
    state for state in TRANSITIONS if state.split()[-1] in ("hello", "challenge", "proof")
)


class Connection:
    """The protocol's state at one end.

    `state_size`: bytes of the optimizer's state that workers share, 0 if they share none.
    `kept_limit`: most bytes of what a worker keeps, 0 if it keeps nothing.
    `allocate`: returns memory for so many bytes of what is kept, of shape ``(bytes,)``, ``uint8``.
    `compression`: form of the vectors in exchanges, one of `COMPRESSIONS`; None for no compression.
    `vector`: where the next vector is received: shape ``(size,)``, ``float32``, contiguous. While
    it is None, messages with a vector are refused, so the peer costs no memory.
    `received_state`: the state that came with the last message, the optimizer's or what a worker
    keeps: shape ``(bytes,)``, ``uint8``, fresh memory; None if none came.
    `frame_size, payload_size`: bytes of the last frame received, without its seals, and of the
    section in it, also if that lies in lent memory.

    Examples
    --------
    >>> client, server = Connection(Endpoint.CLIENT, 10), Connection(Endpoint.SERVER, 10)
    >>> data = client.send(DriverHello(run="a", size=10, nonce="0" * 64))
    >>> server.receive(data)[0].run
    'a'
    >>> client.send(Poll(seen=0))
    Traceback (most recent call last):
    ...
    distkeras_grid.errors.LocalProtocolError: Poll cannot be sent now (driver challenge).
    """

    def __init__(
        self,
        side: Endpoint,
        size: int,
        *,
        state_size: int = 0,
        kept_limit: int = 0,
        allocate: Callable[[int], NDArray[np.uint8]] = lambda size: np.empty(size, np.uint8),
        compression: CompressionName | None = None,
    ) -> None:
        self.state = "hello"
        self.vector: Vector | None = None
        self.received_state: NDArray[np.uint8] | None = None
        self.frame_size = self.payload_size = 0
        self._side = side
        self._size = size
        self._state_size = state_size
        self._kept_limit = kept_limit
        self._allocate = allocate
        self.passes_files = False
        # What this end lends, and what the other one does.
        self._lent: tuple[Vector, Vector] | None = None
        self._wire: Wire | None = build_wire(compression, size) if compression else None
        self._seals: FrameCipher | None = None
        # Those of the frame that is being sent.
        self._sealing: FrameCipher | None = None
        self._fixed = bytearray(frames.HEADER_SIZE)
        self._header: frames.FrameHeader | None = None
        self._expect_frame()

    def protect(self, keys: Mapping[Endpoint, bytes]) -> None:
        """Seal all that follows the authentication, and expect the same from the other end."""
        self._seals = FrameCipher(self._side, keys)

    def lend(self, own: Vector, theirs: Vector) -> None:
        """Let vectors lie in memory from now on, both ways; see `shared_memory`.

        `own`: where this end puts its vectors, shape ``(size,)``, ``float32``.
        """
        self._lent = own, theirs

    def stop_lending(self) -> None:
        """Let go of the memory in which vectors lie; none may come or go after that."""
        self._lent = None

    @property
    def lends(self) -> bool:
        """Whether vectors lie in memory."""
        return self._lent is not None

    def lends_for(self, kind: type[Message]) -> bool:
        """Whether the vectors of such messages lie in memory. Compressed ones do not."""
        return self.lends and self._wire_of(kind) is None

    def lay(self, vector: Vector) -> None:
        """Put a vector where the other end reads it; without a copy if it is there already."""
        if self._lent is None:
            raise LocalProtocolError("This end has lent no memory. To be sent: a vector in it.")
        np.copyto(self._lent[0], vector)

    @property
    def file_is_due(self) -> bool:
        """Whether the next byte comes with a file."""
        return self._file_is_due

    def packed(self, kind: type[Message], vector: Vector) -> memoryview:
        """Return the bytes of a vector in a message of this kind."""
        wire = self._wire_of(kind)
        return wire.pack(vector) if wire else vector.data.cast("B")

    def send(
        self, message: Message, payload: int = 0, content: PayloadKind = PayloadKind.NOTHING
    ) -> bytes:
        """Encode a message and go to the state that it leads to.

        `payload`: bytes of the section that the caller sends after the returned bytes.
        """
        kind = type(message)
        after = TRANSITIONS[self.state].get(kind)
        # A server may say goodbye at any time, to a peer that has broken the protocol.
        if self._side is Endpoint.SERVER and kind is Close:
            after = "closed"
        if after is None or kind.sender is not self._side:
            raise LocalProtocolError(f"{kind.__name__} cannot be sent now ({self.state}).")
        if not self._fits(kind, content, payload):
            raise LocalProtocolError(
                f"{self._what_fits(kind)}. To be sent: {_named(content)} of {payload} bytes."
            )
        data = frames.encode(message, payload, content)
        self._sealing = self._sealed
        self.state = after
        if self._sealing is None:
            return data
        clear, fields = data[: frames.HEADER_SIZE], data[frames.HEADER_SIZE :]
        return clear + self._sealing.sealed(fields, clear)

    def sealed(self, section: memoryview) -> Iterator[memoryview]:
        """Return a section as it is sent after `send`, in pieces; see `FrameCipher.seal`."""
        if self._sealing is None or not section:
            return iter((section,))
        return self._sealing.seal(section)

    def forget_sections(self) -> None:
        """Let go of the memory of the sections; nothing may be received after that."""
        self.vector = self.received_state = self._lent = None
        self._expect_frame()

    def wanted(self) -> memoryview:
        """Return the memory for the next received bytes; it is never empty."""
        return self._target[self._filled :]

    def received(self, count: int) -> Message | None:
        """Process bytes that were received.

        `count`: how many bytes were written to the start of `wanted`.
        """
        self._filled += count
        while self._filled == len(self._target):
            message = self._then()
            if message is not None:
                return message
        return None

    def receive(self, data: bytes) -> list[Message]:
        """Process bytes, and return the messages that they complete."""
        messages = []
        while data:
            target = self.wanted()
            part = data[: len(target)]
            target[: len(part)] = part
            data = data[len(part) :]
            message = self.received(len(part))
            if message is not None:
                messages.append(message)
        return messages

    @property
    def mid_frame(self) -> bool:
        """Whether only a part of a frame has been received."""
        return self._header is not None or self._filled > 0

    @property
    def announced(self) -> int:
        """Bytes of the section in the frame that is being received, 0 until that is known."""
        header = self._header
        return 0 if header is None or header.content is PayloadKind.LENT else header.payload

    def may_send(self, kind: type[Message]) -> bool:
        """Whether a message of this kind is legal now."""
        return kind.sender is self._side and kind in TRANSITIONS[self.state]

    @property
    def _sealed(self) -> FrameCipher | None:
        """The seals that the next frame has, None for a frame of the authentication."""
        return None if self.state in _BEFORE_AUTHENTICATION else self._seals

    def _expect_frame(self) -> None:
        self._header = None
        self._expect(memoryview(self._fixed), self._take_header)

    def _expect(self, target: memoryview, then: Callable[[], Message | None]) -> None:
        self._target, self._then = target, then
        self._filled, self._file_is_due = 0, False

    def _wire_of(self, kind: type[Message]) -> Wire | None:
        return self._wire if kind in _COMPRESSED else None

    def _fits(self, kind: type[Message], content: PayloadKind, payload: int) -> bool:
        if content is PayloadKind.LENT:
            vectors = PayloadKind.VECTOR in kind.carries and self.lends_for(kind)
            return vectors and payload == 4 * self._size
        if content not in kind.carries:
            return False
        if content is PayloadKind.FILE:
            return self.passes_files and payload == 1
        if content is PayloadKind.NOTHING:
            return payload == 0
        if content is PayloadKind.STATE:
            return payload == self._state_size > 0
        if content is PayloadKind.KEPT:
            return 0 < payload <= self._largest_kept(kind)
        wire = self._wire_of(kind)
        return wire.fits(payload) if wire else payload == 4 * self._size

    def _largest_kept(self, kind: type[Message]) -> int:
        return LARGEST_PART if kind is CheckpointPart else self._kept_limit

    def _what_fits(self, kind: type[Message]) -> str:
        wire = self._wire_of(kind)
        lengths = {
            PayloadKind.NOTHING: "0",
            PayloadKind.VECTOR: wire.lengths if wire else f"{4 * self._size}",
            PayloadKind.STATE: f"{self._state_size}",
            PayloadKind.KEPT: f"1 to {self._largest_kept(kind)}",
            PayloadKind.FILE: "1 (by a Unix socket only)",
        }
        legal = (f"{_named(content)} of {lengths[content]} bytes" for content in kind.carries)
        return f"{kind.__name__} carries {', or '.join(legal)}"

    # The parts of a frame, in order; each returns the message if it is complete.

    def _take_header(self) -> None:
        header = self._check(frames.decode_header(self._fixed))
        self._header = header
        self._expect_fields(header, memoryview(b""))

    def _expect_fields(self, header: frames.FrameHeader, have: memoryview) -> None:
        # Memory grows with the bytes that come: what a peer announces costs nothing.
        more = memoryview(bytearray(min(header.length, max(2 * len(have), HEADER_LIMIT))))
        more[: len(have)] = have

        def complete() -> Message | None:
            if len(more) == header.length:
                return self._take_fields(header)
            self._expect_fields(header, more)
            return None

        self._expect(more, complete)
        self._filled = len(have)

    def _take_fields(self, header: frames.FrameHeader) -> Message | None:
        fields = self._target
        return self._opened(fields, lambda: self._take_message(header, fields), bytes(self._fixed))

    def _take_message(self, header: frames.FrameHeader, fields: memoryview) -> Message | None:
        message = frames.decode_message(header, fields)
        self.received_state = None
        section = self._place(header)
        if section is None:
            return self._complete(header, message)

        def whole() -> Message | None:
            return self._opened(section, lambda: self._complete(header, message))

        self._expect(section, whole)
        self._file_is_due = header.content is PayloadKind.FILE
        return None

    def _place(self, header: frames.FrameHeader) -> memoryview | None:
        """Return the memory for the section of a frame, None if it has none."""
        if header.content in (PayloadKind.STATE, PayloadKind.KEPT):
            self.received_state = self._allocate(header.payload)
            return self.received_state.data
        if header.content is PayloadKind.VECTOR and self.vector is not None:
            wire = self._wire_of(header.message)
            return wire.place(header.payload, self.vector) if wire else self.vector.data.cast("B")
        if header.content is PayloadKind.FILE:
            return memoryview(bytearray(1))
        return None

    def _opened(
        self, part: memoryview, then: Callable[[], Message | None], clear: bytes = b""
    ) -> Message | None:
        """Go on at once, or after the seal of a part has arrived and the part is decrypted."""
        seals = self._sealed
        if seals is None:
            return then()
        seal = memoryview(bytearray(SEAL_BYTES))

        def complete() -> Message | None:
            seals.open(part, seal, clear)
            return then()

        self._expect(seal, complete)
        return None

    def _check(self, header: frames.FrameHeader) -> frames.FrameHeader:
        """Refuse a frame with a wrong header, before memory is allocated for it."""
        name = header.message.__name__
        if header.message not in TRANSITIONS[self.state] or header.message.sender is self._side:
            raise RemoteProtocolError(f"{name} may not come now ({self.state}).")
        if self.state in _BEFORE_AUTHENTICATION and header.length > PRE_AUTHENTICATION_LIMIT:
            raise RemoteProtocolError(
                f"{name} may have {PRE_AUTHENTICATION_LIMIT} bytes, {header.length} are announced."
            )
        if not self._fits(header.message, header.content, header.payload):
            raise RemoteProtocolError(
                f"{self._what_fits(header.message)}. Announced: {_named(header.content)} of "
                f"{header.payload} bytes."
            )
        if header.content in (PayloadKind.VECTOR, PayloadKind.LENT) and self.vector is None:
            raise RemoteProtocolError(f"{name} brings a vector that nobody waits for.")
        return header

    def _complete(self, header: frames.FrameHeader, message: Message) -> Message:
        self.payload_size = header.payload
        self.frame_size = frames.HEADER_SIZE + header.length + header.payload
        wire = self._wire_of(header.message)
        if header.content is PayloadKind.VECTOR and self.vector is not None and wire:
            wire.unpack(self.vector)
        elif (
            header.content is PayloadKind.LENT
            and self.vector is not None
            and self._lent is not None
        ):
            np.copyto(self.vector, self._lent[1])
        self.state = TRANSITIONS[self.state][header.message]
        self._expect_frame()
        return message


def _named(content: PayloadKind) -> str:
    return content.name.lower()
