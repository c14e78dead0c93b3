"""Keys of a run, and mutual proof that both ends of a conversation have the same key.

The driver and the server have the run's key, from which the driver's key and the key of each seat
are derived. The key of a seat is valid only for that seat, and not for the driver's requests.

A worker receives the key of its seat in the closure of its own task, so it cannot make the key of
another seat.

Each end sends a fresh 32-byte nonce and proves that it has the key by an HMAC-SHA256 over both
nonces, its own role and all claims of the hello. So neither a proof nor a claim can be used in
another conversation. The key itself is never sent.

Where others can reach the bytes between the two ends, all that follows is sealed (`encryption`)
with keys of this conversation alone: encrypted, and protected from changes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from distkeras_grid.errors import AuthenticationError
from distkeras_grid.parameter_server.frames import fields_of
from distkeras_grid.parameter_server.messages import (
    Challenge,
    DriverHello,
    Endpoint,
    Proof,
    WorkerHello,
)
from distkeras_grid.parameter_server.timeouts import HANDSHAKE_SECONDS

if TYPE_CHECKING:
    from distkeras_grid.parameter_server.channel import Channel

KEY_BYTES = 32
_CONTEXT = "distkeras_grid parameter server 4"


def new_key() -> bytes:
    """Return a fresh key for one run."""
    return secrets.token_bytes(KEY_BYTES)


def driver_key(run_key: bytes) -> bytes:
    """Return the key with which the driver authenticates."""
    return _derive(run_key, "driver")


def seat_key(run_key: bytes, seat: int) -> bytes:
    """Return the key with which the worker of one seat authenticates."""
    return _derive(run_key, f"seat {seat}")


def key_of(run_key: bytes, hello: WorkerHello | DriverHello) -> bytes:
    """Return the key with which the sender of a hello must authenticate."""
    if isinstance(hello, WorkerHello):
        return seat_key(run_key, hello.seat)
    return driver_key(run_key)


def _derive(key: bytes, purpose: str) -> bytes:
    return hmac.digest(key, f"{_CONTEXT}: {purpose}".encode(), "sha256")


def new_nonce() -> str:
    """Return 32 fresh random bytes in hexadecimal."""
    return secrets.token_hex(32)


def prove(key: bytes, side: Endpoint, hello: WorkerHello | DriverHello, server_nonce: str) -> str:
    """Return one side's proof for one conversation."""
    claims = [_CONTEXT, side.value, type(hello).__name__, fields_of(hello).hex(), server_nonce]
    return hmac.new(key, json.dumps(claims).encode("ascii"), hashlib.sha256).hexdigest()


def verify(
    key: bytes,
    side: Endpoint,
    hello: WorkerHello | DriverHello,
    server_nonce: str,
    proof: str,
) -> None:
    """Check the other side's proof in constant time."""
    expected = prove(key, side, hello, server_nonce)
    if not hmac.compare_digest(expected.encode(), proof.encode("utf-8", "surrogatepass")):
        other = "parameter server" if side is Endpoint.SERVER else "client"
        raise AuthenticationError(
            f"The {other} does not hold the key of run {hello.run!r}:"
            " address and key must come from the same run."
        )


def authenticate(
    channel: Channel, key_of: Callable[[WorkerHello | DriverHello], bytes], run: str
) -> WorkerHello | DriverHello | None:
    """Return the hello of a client that has the key, None if it has left; seal what follows.

    `key_of`: returns the key that the sender of a hello must have.
    """
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    hello = channel.receive(HANDSHAKE_SECONDS)
    if not isinstance(hello, WorkerHello | DriverHello):
        return None
    key, nonce = key_of(hello), new_nonce()
    channel.send(Challenge(nonce, prove(key, Endpoint.SERVER, hello, nonce)))
    proof = channel.receive(max(0.001, deadline - time.monotonic()))
    if not isinstance(proof, Proof):
        return None
    verify(key, Endpoint.CLIENT, hello, nonce, proof.proof)
    if not channel.stream.private:
        channel.connection.protect(session_keys(key, hello, nonce))
    if hello.run != run:
        raise AuthenticationError(
            f"This server belongs to run {run!r}. Received: a client of run "
            f"{hello.run!r}. Give it the address of its own run's server."
        )
    return hello


def session_keys(
    key: bytes, hello: WorkerHello | DriverHello, server_nonce: str
) -> dict[Endpoint, bytes]:
    """Return the keys that seal the frames of one conversation, by their sender."""
    session = f"{type(hello).__name__} {fields_of(hello).hex()} {server_nonce}"
    return {side: _derive(key, f"frames of the {side.value}: {session}") for side in Endpoint}
