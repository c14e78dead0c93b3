"""Messages as bytes.

A frame is a fixed binary header, the message's fields as JSON, and the raw vector::

    magic    4 bytes   b"DKGP"
    version  uint8     1
    type     uint8     position in messages.MESSAGES
    zero     uint16
    length   uint32    bytes of JSON
    payload  uint64    bytes of the vector: float32, little-endian, C order

All integers are little-endian. Nothing here is pickled, and a length is compared with its limit
before anything of that length is allocated.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass

from distkeras_grid.errors import LocalProtocolError, RemoteProtocolError
from distkeras_grid.parameter_server.messages import MESSAGES, Message

MAGIC = b"DKGP"
VERSION = 1
_HEADER = struct.Struct("<4sBBHIQ")
HEADER_SIZE = _HEADER.size
_NUMBERS = {message: number for number, message in enumerate(MESSAGES)}


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The fixed part of a frame.

    Parameters
    ----------
    message : type
        Class of the message.
    length, payload : int
        Bytes of JSON and of the vector.
    """

    message: type[Message]
    length: int
    payload: int


def encode(message: Message, payload: int = 0) -> bytes:
    """Return all of a frame but its vector.

    Parameters
    ----------
    message : Message
        What to send.
    payload : int, default 0
        Bytes of the vector that follows.

    Raises
    ------
    LocalProtocolError
        If the message is too long.

    Examples
    --------
    >>> from distkeras_grid.parameter_server.messages import Finish
    >>> encode(Finish()).hex()
    '444b4750010b00000200000000000000000000007b7d'
    """
    body = json.dumps(message.to_json(), separators=(",", ":")).encode("ascii")
    if len(body) > message.limit:
        raise LocalProtocolError(
            f"{type(message).__name__} may have {message.limit} bytes, it has {len(body)}:"
            " shorten its texts or report fewer metrics."
        )
    header = _HEADER.pack(MAGIC, VERSION, _NUMBERS[type(message)], 0, len(body), payload)
    return header + body


def encoded_size(message: Message, payload: int = 0) -> int:
    """Return the bytes of a whole frame, its vector included."""
    return len(encode(message, payload)) + payload


def decode_header(data: bytes | bytearray | memoryview) -> FrameHeader:
    """Read the fixed part of a frame and compare its JSON length with the limit.

    Parameters
    ----------
    data : bytes-like
        `HEADER_SIZE` bytes.

    Raises
    ------
    RemoteProtocolError
        If this is no frame of ours.
    """
    magic, version, number, zero, length, payload = _HEADER.unpack(data)
    if magic != MAGIC or zero != 0:
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
    return FrameHeader(message, length, payload)


def decode_message(header: FrameHeader, body: bytes | bytearray | memoryview) -> Message:
    """Read the JSON part of a frame.

    Parameters
    ----------
    header : FrameHeader
        The frame's header.
    body : bytes-like
        ``header.length`` bytes.

    Raises
    ------
    RemoteProtocolError
        If it is not the JSON of such a message.
    """
    try:
        data = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(
            f"The JSON of a {header.message.__name__} cannot be read: {error}."
        ) from error
    return header.message.from_json(data)
