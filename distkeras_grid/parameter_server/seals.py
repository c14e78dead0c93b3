"""Seals of frames: 16 bytes after each part, so that no other program can change what is sent.

A seal is a GMAC: AES-256-GCM (NIST SP 800-38D) over the part as associated data, without anything
to encrypt. Each direction of a conversation has a key that nothing else uses, and the number of
the part is the nonce. So a part that is altered, repeated, left out, or taken from another
conversation does not fit its seal. Seals do not hide the content.

For 20 MB on one core with AES instructions, GMAC takes 3.6 ms, and HMAC-SHA256 63 ms. TLS, which
also encrypts, made an exchange of 20 MB over loopback three to four times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from distkeras_grid.errors import RemoteProtocolError
from distkeras_grid.parameter_server.messages import Side

#: Bytes of a seal.
SEAL_BYTES = 16
#: Longest piece, in bytes, that the cipher gets at once; its limit is just below 2 GiB.
PIECE = 1 << 30

Part: TypeAlias = bytes | bytearray | memoryview


class Seals:
    """Seals what one end of a conversation sends, and checks what it receives.

    Parameters
    ----------
    side : Side
        Which end this is.
    keys : mapping of Side to bytes
        Keys of both directions by sender, 32 bytes each; see `auth.session_keys`.

    Examples
    --------
    >>> keys = {Side.CLIENT: bytes(32), Side.SERVER: bytes([1] * 32)}
    >>> client, server = Seals(Side.CLIENT, keys), Seals(Side.SERVER, keys)
    >>> server.check(b"weights", client.seal(b"weights"))
    >>> server.check(b"Weights", client.seal(b"weights"))
    Traceback (most recent call last):
    ...
    distkeras_grid.errors.RemoteProtocolError: ...
    """

    def __init__(self, side: Side, keys: Mapping[Side, bytes]) -> None:
        (other,) = (each for each in Side if each is not side)
        self._own, self._other = AESGCM(keys[side]), AESGCM(keys[other])
        self._sent, self._received = _nonces(), _nonces()

    def seal(self, part: Part) -> bytes:
        """Return the seal of the next part that this end sends."""
        short = _shortened(self._own, self._sent, part)
        return self._own.encrypt(next(self._sent), b"", short)

    def check(self, part: Part, seal: Part) -> None:
        """Check the seal of the next part that was received.

        Raises
        ------
        RemoteProtocolError
            If the other end did not seal this part with this number.
        """
        short = _shortened(self._other, self._received, part)
        try:
            self._other.decrypt(next(self._received), bytes(seal), short)
        except InvalidTag:
            raise RemoteProtocolError(
                "A frame was changed, repeated or left out on its way: its seal does not fit. If "
                "this happens again, look for what stands between the two hosts."
            ) from None


def _nonces() -> Iterator[bytes]:
    number = 0
    while True:
        yield number.to_bytes(12, "big")
        number += 1


def _shortened(cipher: AESGCM, nonces: Iterator[bytes], part: Part) -> Part:
    """Return a part; if it is too long for the cipher, return the seals of its pieces instead."""
    while len(part) > PIECE:
        view = memoryview(part)
        pieces = (view[start : start + PIECE] for start in range(0, len(view), PIECE))
        part = b"".join(cipher.encrypt(next(nonces), b"", piece) for piece in pieces)
    return part
