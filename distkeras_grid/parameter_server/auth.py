"""Mutual proof that both ends hold the run's key.

Each end sends a fresh 32-byte nonce and proves the key by an HMAC-SHA256 over both nonces, its own
role and all that the hello claims, so neither a proof nor a claim can be moved to another
conversation. The key itself never travels. This protects the conversation's start; it does not
encrypt what follows.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets

from distkeras_grid.errors import AuthenticationError
from distkeras_grid.parameter_server.frames import fields_of
from distkeras_grid.parameter_server.messages import DriverHello, Side, WorkerHello

KEY_BYTES = 32
_NONCE_DIGITS = 64
_CONTEXT = "distkeras_grid parameter server 2"


def new_key() -> bytes:
    """Return a fresh key for one run."""
    return secrets.token_bytes(KEY_BYTES)


def new_nonce() -> str:
    """Return 32 fresh random bytes in hexadecimal."""
    return secrets.token_hex(_NONCE_DIGITS // 2)


def prove(key: bytes, side: Side, hello: WorkerHello | DriverHello, server_nonce: str) -> str:
    """Return one side's proof for one conversation.

    Parameters
    ----------
    key : bytes
        The run's key.
    side : Side
        Whose proof it is; the same nonces give each side another one.
    hello : WorkerHello or DriverHello
        What the client claims, its nonce included.
    server_nonce : str
        The server's nonce.

    Returns
    -------
    str
        HMAC-SHA256 in hexadecimal.
    """
    claims = [_CONTEXT, side.value, type(hello).__name__, fields_of(hello).hex(), server_nonce]
    return hmac.new(key, json.dumps(claims).encode("ascii"), hashlib.sha256).hexdigest()


def verify(
    key: bytes, side: Side, hello: WorkerHello | DriverHello, server_nonce: str, proof: str
) -> None:
    """Check the other side's proof in constant time.

    Raises
    ------
    AuthenticationError
        If it was not made with this key for this conversation.
    """
    expected = prove(key, side, hello, server_nonce)
    if not hmac.compare_digest(expected.encode(), proof.encode("utf-8", "surrogatepass")):
        other = "parameter server" if side is Side.SERVER else "client"
        raise AuthenticationError(
            f"The {other} does not hold the key of run {hello.run!r}:"
            " address and key must come from the same run."
        )


class NonceMemory:
    """The nonces of clients that have proven the key; each is good for one conversation.

    Only they are remembered, so a stranger cannot fill the memory.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def check(self, nonce: str) -> None:
        """Refuse a nonce that is malformed or was used.

        Raises
        ------
        AuthenticationError
            If it is.
        """
        if len(nonce) != _NONCE_DIGITS or not set(nonce) <= set("0123456789abcdef"):
            raise AuthenticationError("A nonce is 32 bytes in hexadecimal; another came in.")
        if nonce in self._seen:
            raise AuthenticationError(
                "This nonce was used before: the hello is a replay. Connect afresh."
            )

    def remember(self, nonce: str) -> None:
        """Note that a conversation with this nonce has been authenticated.

        Raises
        ------
        AuthenticationError
            If another conversation with the same nonce was quicker.
        """
        self.check(nonce)
        self._seen.add(nonce)
