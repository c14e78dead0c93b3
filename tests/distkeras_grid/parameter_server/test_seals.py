"""A part fits its seal once, in its place, from its sender, and only as it was."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distkeras_grid.errors import RemoteProtocolError
from distkeras_grid.parameter_server import seals
from distkeras_grid.parameter_server.messages import Side
from distkeras_grid.parameter_server.seals import SEAL_BYTES, Seals

KEYS = {side: os.urandom(32) for side in Side}


def ends(keys=KEYS):
    return Seals(Side.CLIENT, keys), Seals(Side.SERVER, keys)


@pytest.fixture(params=[seals.PIECE, 5 * SEAL_BYTES], ids=["whole", "in pieces"])
def piece(request, monkeypatch):
    """As with parts of more than a gigabyte."""
    monkeypatch.setattr(seals, "PIECE", request.param)


@pytest.mark.parametrize("length", [0, 1, 80, 81, 1000])
def test_parts_fit_in_order_in_both_directions(piece, length):
    client, server = ends()
    for sender, receiver in ((client, server), (server, client)) * 3:
        part = os.urandom(length)
        seal = sender.seal(part)
        assert len(seal) == SEAL_BYTES
        receiver.check(memoryview(part), memoryview(seal))


@pytest.mark.parametrize("place", [0, 79, 80, 999])
def test_an_altered_part_does_not_fit(piece, place):
    client, server = ends()
    part = bytearray(1000)
    seal = client.seal(part)
    part[place] ^= 1
    with pytest.raises(RemoteProtocolError):
        server.check(part, seal)


@given(st.integers(0, SEAL_BYTES * 8 - 1))
def test_an_altered_seal_does_not_fit(bit):
    client, server = ends()
    seal = bytearray(client.seal(b"part"))
    seal[bit // 8] ^= 1 << bit % 8
    with pytest.raises(RemoteProtocolError):
        server.check(b"part", seal)


def test_a_part_that_comes_again_or_too_early_does_not_fit():
    client, server = ends()
    first, second = client.seal(b"same"), client.seal(b"same")
    assert first != second
    server.check(b"same", first)
    with pytest.raises(RemoteProtocolError):
        server.check(b"same", first)
    _, other = ends()
    with pytest.raises(RemoteProtocolError):
        other.check(b"same", second)


def test_a_part_that_is_sent_back_does_not_fit():
    client, _ = ends()
    with pytest.raises(RemoteProtocolError):
        client.check(b"part", client.seal(b"part"))


def test_a_part_of_another_conversation_does_not_fit():
    client, _ = ends()
    _, server = ends({side: os.urandom(32) for side in Side})
    with pytest.raises(RemoteProtocolError):
        server.check(b"part", client.seal(b"part"))
