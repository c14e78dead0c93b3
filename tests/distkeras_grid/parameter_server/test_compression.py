"""Exchanges as bfloat16, without a socket."""

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from distkeras_grid.parameter_server.compression import Bfloat16, check_compression
from distkeras_grid.parameter_server.connection import Connection
from distkeras_grid.parameter_server.messages import Exchanged, Side, Start, WindowCommit

SIZE = 1000
COMMIT = WindowCommit(0, 0, 1, 0, 1, 1, 0.5, {}, 0.0, 0.0)
VECTOR = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)


def pair(state, client=True, server=True):
    ends = [Connection(Side.CLIENT, SIZE, compression="bfloat16" if client else None)]
    ends.append(Connection(Side.SERVER, SIZE, compression="bfloat16" if server else None))
    for end in ends:
        end.state, end.vector = state, np.zeros(SIZE, np.float32)
    return ends


def sent(sender, message):
    payload = sender.packed(type(message), VECTOR)
    return sender.send(message, len(payload)) + bytes(payload)


@pytest.mark.parametrize("message", [COMMIT, Exchanged(1, 0, False, None)])
def test_exchanges_take_half_the_bytes_and_lose_at_most_2_to_the_minus_8(message):
    client, server = pair("running" if message is COMMIT else "exchanging")
    sender, receiver = (client, server) if message is COMMIT else (server, client)
    data = sent(sender, message)
    assert receiver.receive(data) == [message]
    assert receiver.frame_size == len(data) < 2 * SIZE + 300
    np.testing.assert_allclose(receiver.vector, VECTOR, rtol=2**-8)
    assert not np.array_equal(receiver.vector, VECTOR)


def test_what_a_worker_starts_from_keeps_its_digits():
    client, server = pair("starting")
    data = sent(server, Start(0, 0, 0, 0, 0, None, False))
    client.receive(data)
    np.testing.assert_array_equal(client.vector, VECTOR)


def test_numbers_that_fit_come_through_exactly_and_others_to_the_nearest():
    exact = np.array([0, 1, -2.5, 2**-126, 3e38, np.inf, -np.inf], np.float32)
    wire, out = Bfloat16(len(exact)), np.empty_like(exact)
    wire.pack(exact)
    wire.unpack(out)
    exact[4] = out[4]
    np.testing.assert_array_equal(out, exact)
    assert abs(out[4] - 3e38) <= 3e38 * 2**-8
    wire.pack(np.full(len(exact), np.nan, np.float32))
    wire.unpack(out)
    assert np.isnan(out).all()


@pytest.mark.parametrize(("client", "server"), [(True, False), (False, True)])
def test_ends_that_disagree_find_out_before_any_number_is_read(client, server):
    client, server = pair("running", client, server)
    with pytest.raises(RemoteProtocolError, match=r"bytes, .* are announced"):
        server.receive(sent(client, COMMIT))


def test_a_vector_of_the_other_form_is_not_sent():
    client, _ = pair("running")
    with pytest.raises(LocalProtocolError, match=f"vector of {2 * SIZE} bytes"):
        client.send(COMMIT, VECTOR.nbytes)


def test_unknown_names_are_refused():
    assert check_compression(None) is None
    assert check_compression("bfloat16") == "bfloat16"
    with pytest.raises(ConfigurationError, match="one of 'bfloat16', or None, 'gzip' came in"):
        check_compression("gzip")
