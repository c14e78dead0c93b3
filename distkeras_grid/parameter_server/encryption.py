"""Seals of frames: no other program can read or change what is sent.

A sealed part is what AES-256-GCM (NIST SP 800-38D) makes of it: the encrypted bytes, and 16 bytes
that prove that they and the clear bytes before them come from the sender. Each direction of a
conversation has a key that nothing else uses, and the number of the part is the nonce. So a part
that is altered, repeated, left out, or taken from another conversation cannot be opened.

TLS would be a second proof of the same key: both ends have one already. Each run would need a
certificate, and an exchange of 20 MB over loopback took three to four times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import GCM

from distkeras_grid.errors import RemoteProtocolError
from distkeras_grid.parameter_server.messages import Endpoint

#: Bytes by which a sealed part is longer.
SEAL_BYTES = 16
#: Longest part, in bytes. One nonce is good for a little less than 64 GiB.
LONGEST_PART = 1 << 35
#: Bytes that are encrypted at once, into memory that stays in the core's cache.
PIECE = 1 << 18

Part: TypeAlias = bytes | bytearray | memoryview


class FrameCipher:
    """Seals what one end of a conversation sends, and opens what it receives.

    `keys`: keys of both directions by sender, 32 bytes each; see `auth.session_keys`.

    Examples
    --------
    >>> keys = {Endpoint.CLIENT: bytes(32), Endpoint.SERVER: bytes([1] * 32)}
    >>> client, server = FrameCipher(Endpoint.CLIENT, keys), FrameCipher(Endpoint.SERVER, keys)
    >>> sealed = bytearray(b"".join(client.seal(b"weights", clear=b"head")))
    >>> len(sealed)
    23
    >>> part, seal = memoryview(sealed)[:7], memoryview(sealed)[7:]
    >>> server.open(part, seal, clear=b"head")
    >>> bytes(part)
    b'weights'
    """

    def __init__(self, side: Endpoint, keys: Mapping[Endpoint, bytes]) -> None:
        (other,) = (each for each in Endpoint if each is not side)
        self._own, self._other = AES256(keys[side]), AES256(keys[other])
        self._sent = self._received = 0

    def seal(self, part: Part, clear: Part = b"") -> Iterator[memoryview]:
        """Yield the next part that this end sends, sealed, piece by piece.

        A piece lies where the one before it lay.

        `part`: what to encrypt, at most `LONGEST_PART` bytes.
        """
        part = memoryview(part)
        context = Cipher(self._own, GCM(self._sent.to_bytes(12, "big"))).encryptor()
        self._sent += 1
        context.authenticate_additional_data(clear)
        target = memoryview(bytearray(min(len(part), PIECE) + SEAL_BYTES))
        last = max(0, len(part) - 1) // PIECE * PIECE
        for start in range(0, last, PIECE):
            yield target[: context.update_into(part[start : start + PIECE], target)]
        count = context.update_into(part[last:], target) if part else 0
        context.finalize()
        target[count : count + SEAL_BYTES] = context.tag
        yield target[: count + SEAL_BYTES]

    def open(self, part: memoryview, seal: Part, clear: Part = b"") -> None:
        """Decrypt the next part that was received, where it lies.

        `part`: the encrypted bytes; afterwards what was sent. Must not be used if this raises.
        `seal`: the 16 bytes that follow it.
        """
        context = Cipher(self._other, GCM(self._received.to_bytes(12, "big"))).decryptor()
        self._received += 1
        context.authenticate_additional_data(clear)
        if part:
            context.update_into(part, part)
        try:
            context.finalize_with_tag(bytes(seal))
        except InvalidTag:
            raise RemoteProtocolError(
                "A frame was changed, repeated or left out on its way: its seal does not fit. If "
                "this happens again, look for what stands between the two hosts."
            ) from None
