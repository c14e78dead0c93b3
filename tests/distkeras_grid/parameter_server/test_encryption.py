"""A sealed part can be opened once, in its place, by its receiver, and only as it was sent."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.errors import RemoteProtocolError
from distkeras_grid.parameter_server.encryption import PIECE, SEAL_BYTES, FrameCipher
from distkeras_grid.parameter_server.messages import Endpoint

KEYS = {side: os.urandom(32) for side in Endpoint}


def ends(keys=KEYS):
    return FrameCipher(Endpoint.CLIENT, keys), FrameCipher(Endpoint.SERVER, keys)


def sealed_by(sender, *parts):
    """Return a sealed part in one piece."""
    return b"".join(map(bytes, sender.seal(*parts)))


def opened(receiver, sealed, clear=b""):
    """Return what the receiver finds in a sealed part."""
    content = memoryview(bytearray(sealed))
    part = content[:-SEAL_BYTES]
    receiver.open(part, content[-SEAL_BYTES:], clear)
    return bytes(part)


@pytest.mark.parametrize(
    "length", [0, 1, 1000, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 5]
)
def test_parts_are_opened_in_order_in_both_directions(length):
    client, server = ends()
    for sender, receiver in ((client, server), (server, client)) * 3:
        part = os.urandom(length)
        sealed = sealed_by(sender, part, b"clear")
        assert len(sealed) == length + SEAL_BYTES
        assert opened(receiver, sealed, b"clear") == part


def test_what_is_sent_cannot_be_read():
    """No 8 bytes of a part, nor the same bytes twice, are in what is sent for it."""
    client, _ = ends()
    part = bytes(range(256)) * (PIECE // 128)
    first, second = sealed_by(client, part), sealed_by(client, part)
    assert not any(part[start : start + 8] in first for start in range(256))
    assert first[:8] not in second
    assert first[:256] != first[256:512]


@pytest.mark.parametrize("place", [0, 500, PIECE, PIECE + 999])
def test_an_altered_part_cannot_be_opened(place):
    client, server = ends()
    sealed = bytearray(sealed_by(client, bytes(PIECE + 1000)))
    sealed[place] ^= 1
    with pytest.raises(RemoteProtocolError):
        opened(server, sealed)


def test_other_clear_bytes_do_not_fit():
    client, server = ends()
    with pytest.raises(RemoteProtocolError):
        opened(server, sealed_by(client, b"part", b"clear"), b"Clear")


@given(st.integers(0, SEAL_BYTES * 8 - 1))
def test_an_altered_seal_does_not_fit(bit):
    client, server = ends()
    sealed = bytearray(sealed_by(client, b"part"))
    sealed[len(b"part") + bit // 8] ^= 1 << bit % 8
    with pytest.raises(RemoteProtocolError):
        opened(server, sealed)


def test_a_part_that_comes_again_or_too_early_cannot_be_opened():
    client, server = ends()
    first, second = sealed_by(client, b"same"), sealed_by(client, b"same")
    assert first != second
    assert opened(server, first) == b"same"
    with pytest.raises(RemoteProtocolError):
        opened(server, first)
    _, other = ends()
    with pytest.raises(RemoteProtocolError):
        opened(other, second)


def test_a_part_that_is_sent_back_cannot_be_opened():
    client, _ = ends()
    with pytest.raises(RemoteProtocolError):
        opened(client, sealed_by(client, b"part"))


def test_a_part_of_another_conversation_cannot_be_opened():
    client, _ = ends()
    _, server = ends({side: os.urandom(32) for side in Endpoint})
    with pytest.raises(RemoteProtocolError):
        opened(server, sealed_by(client, b"part"))
