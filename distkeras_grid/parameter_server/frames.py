"""Messages as bytes.

A frame is a fixed binary header, the message's fields as MessagePack, and the raw payload::

    magic    4 bytes   b"DKGP"
    version  uint8     VERSION
    type     uint8     position in messages.MESSAGES
    content  uint16    which section the payload is: messages.PayloadKind
    length   uint32    bytes of MessagePack
    payload  uint64    bytes of the section: little-endian, C order; of a vector that lies in
                       lent memory, its bytes there

All integers are little-endian. MessagePack and not JSON, because a metric may be NaN. Nothing here
is pickled, and a length is compared with its limit before anything of that length is allocated.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from distkeras_grid.errors import UNREADABLE, LocalProtocolError, RemoteProtocolError
from distkeras_grid.parameter_server.messages import MESSAGES, Message, PayloadKind

MAGIC = b"DKGP"
VERSION = 13
_HEADER = struct.Struct("<4sBBHIQ")
HEADER_SIZE = _HEADER.size
_CONTENTS = {content.value for content in PayloadKind}
_NUMBERS = {message: number for number, message in enumerate(MESSAGES)}


def _plain(value: Any) -> Any:
    """Return a NumPy number as Python's, which msgspec cannot do."""
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} is not a type of message.")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
_DECODERS = {message: msgspec.msgpack.Decoder(message) for message in MESSAGES}


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The fixed part of a frame."""

    message: type[Message]  # Class of the message
    length: int  # length and payload: Bytes of MessagePack and of the section
    payload: int
    content: PayloadKind  # Which section it is


def encode(message: Message, payload: int = 0, content: PayloadKind = PayloadKind.NOTHING) -> bytes:
    """Return all of a frame but its section.

    `payload`: bytes of the section that follows.

    Examples
    --------
    >>> from distkeras_grid.parameter_server.messages import WorkerEnd
    >>> encode(WorkerEnd()).hex()
    '444b47500d15000001000000000000000000000080'
    """
    body = fields_of(message)
    if len(body) > message.limit:
        raise LocalProtocolError(
            f"{type(message).__name__} may have {message.limit} bytes, it has {len(body)}:"
            " shorten its texts or report fewer metrics."
        )
    number = _NUMBERS[type(message)]
    header = _HEADER.pack(MAGIC, VERSION, number, content.value, len(body), payload)
    return header + body


def fields_of(message: Message) -> bytes:
    """Return the fields of a message as MessagePack."""
    try:
        return _ENCODER.encode(message)
    except (NotImplementedError, TypeError, ValueError, OverflowError) as error:
        raise LocalProtocolError(f"{type(message).__name__} cannot travel: {error}") from error


def encoded_size(message: Message, payload: int = 0) -> int:
    """Return the bytes of a whole frame, its section included."""
    return HEADER_SIZE + len(fields_of(message)) + payload


def decode_header(data: bytes | bytearray | memoryview) -> FrameHeader:
    """Read the fixed part of a frame and compare its length with the limit.

    `data`: `HEADER_SIZE` bytes.
    """
    magic, version, number, content, length, payload = _HEADER.unpack(data)
    if magic != MAGIC:
        raise RemoteProtocolError(
            f"The other side does not speak this protocol: its first bytes are {magic!r}."
        )
    if version != VERSION:
        raise RemoteProtocolError(
            f"The other side speaks version {version}, this side {VERSION}:"
            " install the same distkeras_grid on driver and executors."
        )
    if number >= len(MESSAGES):
        raise RemoteProtocolError(f"There is no message of type {number}.")
    message = MESSAGES[number]
    if length > message.limit:
        raise RemoteProtocolError(
            f"{message.__name__} may have {message.limit} bytes, {length} are announced."
        )
    if content not in _CONTENTS:
        raise RemoteProtocolError(f"There is no section of number {content}.")
    return FrameHeader(message, length, payload, PayloadKind(content))


def decode_message(header: FrameHeader, body: bytes | bytearray | memoryview) -> Message:
    """Read the fields of a frame's message.

    `body`: ``header.length`` bytes.
    """
    try:
        return _DECODERS[header.message].decode(body)
    except UNREADABLE as error:
        raise RemoteProtocolError(
            f"The fields of a {header.message.__name__} cannot be read: {error}."
        ) from error
