"""One end of a conversation, without a socket: bytes in, messages out, and which are legal.

`Connection.receive_frame` yields the memory that the next bytes are to fill. So vectors are
received into the caller's own buffer without a copy, and no byte of the next frame is read. If the
conversation is protected, the fields of each frame and each section are sealed, and nothing is
decoded or passed on before its seal has been checked.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from distkeras_grid.errors import LocalProtocolError, RemoteProtocolError
from distkeras_grid.parameter_server import frames
from distkeras_grid.parameter_server.compression import Wire, build_wire
from distkeras_grid.parameter_server.encryption import LONGEST_PART, SEAL_BYTES, FrameCipher
from distkeras_grid.parameter_server.messages import (
    HEADER_LIMIT,
    PRE_AUTHENTICATION_LIMIT,
    TRANSITIONS,
    CheckpointPart,
    Close,
    CommitReply,
    Endpoint,
    Message,
    OptimizerState,
    PayloadKind,
    PutOptimizerState,
    Step,
    WindowCommit,
)
from distkeras_grid.spec import CompressionName
from distkeras_grid.weights import Vector

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    `worker_state_limit`: most bytes of what a worker keeps, 0 if it keeps nothing.
    `allocate`: returns memory for so many bytes of what is kept, of shape ``(bytes,)``, ``uint8``.
    `compression`: form of the vectors in exchanges, one of `COMPRESSIONS`; None for no compression.
    `vector`: where the next vector is received: shape ``(size,)``, ``float32``, contiguous. While
    it is None, messages with a vector are refused, so the peer costs no memory.
    `received_state`: the state that came with the last message, the optimizer's or what a worker
    keeps: shape ``(bytes,)``, ``uint8``, fresh memory; None if none came.
    `frame_size, payload_size`: bytes of the last frame received, without its seals, and of the
    section in it, also if that lies in lent memory.
    `section_due`: bytes of the section in the frame that is being received, 0 until that is known.
    `file_is_due`: whether the next byte comes with a file.
    `ciphers`: what seals frames after the authentication; None where no other host reaches them.

    Examples
    --------
    >>> from distkeras_grid.parameter_server.messages import DriverHello, Poll
    >>> client = Connection(Endpoint.CLIENT, 10)
    >>> data = client.send(DriverHello(run="a", size=10, nonce="0" * 64))
    >>> client.send(Poll(offset=0))
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
        worker_state_limit: int = 0,
        allocate: Callable[[int], NDArray[np.uint8]] = lambda size: np.empty(size, np.uint8),
        compression: CompressionName | None = None,
    ) -> None:
        self.state = "hello"
        self.vector: Vector | None = None
        self.received_state: NDArray[np.uint8] | None = None
        self.frame_size = self.payload_size = self.section_due = 0
        self.file_is_due = self.passes_files = False
        self._side = side
        self._size = size
        self._state_size = state_size
        self._worker_state_limit = worker_state_limit
        self._allocate = allocate
        # What this end lends, and what the other one does.
        self._lent: tuple[Vector, Vector] | None = None
        # The form of compressed vectors, by the kind of their message.
        self._wires: Mapping[type[Message], Wire] = {}
        if compression:
            self._wires = dict.fromkeys(_COMPRESSED, build_wire(compression, size))
        self.ciphers: FrameCipher | None = None
        # Those of the frame that is being sent.
        self._sealing: FrameCipher | None = None

    def protect(self, keys: Mapping[Endpoint, bytes]) -> None:
        """Seal all that follows the authentication, and expect the same from the other end."""
        self.ciphers = FrameCipher(self._side, keys)

    def share_memory(self, own: Vector, theirs: Vector) -> None:
        """Let vectors lie in memory from now on, both ways; see `shared_memory`.

        `own`: where this end puts its vectors, shape ``(size,)``, ``float32``.
        """
        self._lent = own, theirs

    def close_shared_memory(self) -> None:
        """Let go of the memory in which vectors lie; none may come or go after that."""
        self._lent = None

    @property
    def uses_shared_memory(self) -> bool:
        """Whether vectors lie in memory."""
        return self._lent is not None

    def pack(self, kind: type[Message], vector: Vector) -> tuple[PayloadKind, int, memoryview]:
        """Return the section of a vector in a message of this kind: its size, and what is sent.

        Where memory is lent, the vector is put there (without a copy if it lies there already).
        Compressed ones are sent.
        """
        wire = self._wires.get(kind)
        if wire is not None:
            data = wire.pack(vector)
            return PayloadKind.VECTOR, len(data), data
        if self._lent is not None:
            np.copyto(self._lent[0], vector)
            return PayloadKind.LENT, vector.nbytes, memoryview(b"")
        return PayloadKind.VECTOR, vector.nbytes, vector.data.cast("B")

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
        self._sealing = None if self.state in _BEFORE_AUTHENTICATION else self.ciphers
        self.state = after
        if self._sealing is None:
            return data
        clear, fields = data[: frames.HEADER_SIZE], data[frames.HEADER_SIZE :]
        return b"".join([clear, *self._sealing.seal(fields, clear)])

    def sealed(self, section: memoryview) -> Iterator[memoryview]:
        """Return a section as it is sent after `send`, in pieces; see `FrameCipher.seal`."""
        if self._sealing is None or not section:
            return iter((section,))
        return self._sealing.seal(section)

    def forget_sections(self) -> None:
        """Let go of the memory of the sections; nothing may be received after that."""
        self.vector = self.received_state = self._lent = None

    def can_send(self, kind: type[Message]) -> bool:
        """Whether a message of this kind is legal now."""
        return kind.sender is self._side and kind in TRANSITIONS[self.state]

    def _fits(self, kind: type[Message], content: PayloadKind, payload: int) -> bool:
        if content is PayloadKind.LENT:
            lent = self._lent is not None and kind not in self._wires
            return lent and PayloadKind.VECTOR in kind.carries and payload == 4 * self._size
        if content not in kind.carries:
            return False
        if content is PayloadKind.FILE:
            return self.passes_files and payload == 1
        if content is PayloadKind.NOTHING:
            return payload == 0
        if content is PayloadKind.STATE:
            least, most = self._state_sizes(kind)
            return 0 < least <= payload <= most
        wire = self._wires.get(kind)
        return wire.fits(payload) if wire else payload == 4 * self._size

    def _state_sizes(self, kind: type[Message]) -> tuple[int, int]:
        """Return the fewest and the most bytes of a state that comes with such messages."""
        if kind is CheckpointPart:
            return 1, LARGEST_PART
        if kind is OptimizerState:
            return self._state_size, self._state_size
        if kind is PutOptimizerState:
            whole = 4 * self._size + self._state_size
            return whole, whole
        return 1, self._worker_state_limit

    def _what_fits(self, kind: type[Message]) -> str:
        wire = self._wires.get(kind)
        lengths = {
            PayloadKind.NOTHING: "0",
            PayloadKind.VECTOR: wire.lengths if wire else f"{4 * self._size}",
            PayloadKind.STATE: "{} to {}".format(*self._state_sizes(kind)),
            PayloadKind.FILE: "1 (by a Unix socket only)",
        }
        legal = (f"{_named(content)} of {lengths[content]} bytes" for content in kind.carries)
        return f"{kind.__name__} carries {', or '.join(legal)}"

    def receive_frame(self) -> Generator[memoryview, None, Message]:
        """Yield memory for the parts of the next frame, each to be filled; return its message."""
        self.section_due = 0
        fixed = bytearray(frames.HEADER_SIZE)
        yield memoryview(fixed)
        header = self._check(frames.decode_header(fixed))
        self.section_due = 0 if header.content is PayloadKind.LENT else header.payload
        seals = None if self.state in _BEFORE_AUTHENTICATION else self.ciphers
        seal = SEAL_BYTES if seals else 0
        # Memory grows with the bytes that come: what a peer announces costs nothing.
        length, filled = header.length + seal, 0
        fields = bytearray(min(length, HEADER_LIMIT))
        while filled < length:
            yield memoryview(fields)[filled:]
            filled = len(fields)
            if filled < length:
                fields = fields + bytes(min(filled, length - filled))
        body = memoryview(fields)[: header.length]
        if seals:
            seals.open(body, fields[header.length :], fixed)
        message = frames.decode_message(header, body)
        self.received_state = None
        section = self._place(header)
        if section is not None:
            self.file_is_due = header.content is PayloadKind.FILE
            yield section
            self.file_is_due = False
            if seals:
                proof = bytearray(SEAL_BYTES)
                yield memoryview(proof)
                seals.open(section, proof)
        self._take_section(header)
        self.state = TRANSITIONS[self.state][header.message]
        return message

    def _place(self, header: frames.FrameHeader) -> memoryview | None:
        """Return the memory for the section of a frame, None if it has none."""
        if header.content is PayloadKind.STATE:
            self.received_state = self._allocate(header.payload)
            return self.received_state.data
        if header.content is PayloadKind.VECTOR and self.vector is not None:
            wire = self._wires.get(header.message)
            return wire.place(header.payload, self.vector) if wire else self.vector.data.cast("B")
        if header.content is PayloadKind.FILE:
            return memoryview(bytearray(1))
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

    def _take_section(self, header: frames.FrameHeader) -> None:
        """Record the sizes of a frame, and decode a vector that came in another form."""
        self.payload_size = header.payload
        self.frame_size = frames.HEADER_SIZE + header.length + header.payload
        if self.vector is None:
            return
        if header.content is PayloadKind.VECTOR and (wire := self._wires.get(header.message)):
            wire.unpack(self.vector)
        elif header.content is PayloadKind.LENT and self._lent is not None:
            np.copyto(self.vector, self._lent[1])


def _named(content: PayloadKind) -> str:
    return content.name.lower()
