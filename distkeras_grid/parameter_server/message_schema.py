"""The messages of one kind of conversation over an `ArrayChannel`."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from distkeras_grid.field_types import Count
from distkeras_grid.parameter_server.messages import Challenge, Close, Proof, WorkerHello

#: Shapes of the arrays that follow a message.
Shapes: TypeAlias = Annotated[
    tuple[Annotated[tuple[Count, ...], msgspec.Meta(max_length=8)], ...],
    msgspec.Meta(max_length=8),
]
#: Messages before both ends have proved that they have the key.
UNPROVEN: tuple[type[msgspec.Struct], ...] = (WorkerHello, Challenge, Proof, Close)


class ArrayMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of the messages after authentication."""

    shapes: Shapes = ()  # Shapes of the arrays that follow, ``float32``


class MessageSchema:
    """The messages that both ends of a conversation know.

    `magic`: four bytes at the start of each frame; no other vocabulary has the same.
    `version`: of the messages; both ends must have the same.
    """

    def __init__(
        self, magic: bytes, version: int, messages: tuple[type[ArrayMessage], ...]
    ) -> None:
        self.magic, self.version = magic, version
        self.messages: tuple[type[msgspec.Struct], ...] = (*UNPROVEN, *messages)
        self._numbers = {message: number for number, message in enumerate(self.messages)}
        self._decoders = {message: msgspec.msgpack.Decoder(message) for message in self.messages}

    def number_of(self, message: msgspec.Struct) -> int:
        """Return the type number of a message."""
        return self._numbers[type(message)]

    def decode(self, kind: type[msgspec.Struct], body: bytes | bytearray) -> msgspec.Struct:
        """Read the fields of a message from MessagePack."""
        return self._decoders[kind].decode(body)
