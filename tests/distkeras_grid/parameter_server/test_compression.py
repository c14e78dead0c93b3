"""Exchanges as fewer bytes, without a socket."""

import numpy as np
import pytest

from distkeras_grid.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from distkeras_grid.parameter_server.compression import (
    Bfloat16,
    DeltaDecoder,
    DeltaEncoder,
    check_compression,
    from_changes,
    sparse_bytes,
    to_changes,
)
from distkeras_grid.parameter_server.messages import (
    CommitReply,
    Endpoint,
    PayloadKind,
    Start,
    Step,
    WindowCommit,
)
from distkeras_grid.rules import DeepGradientCompression
from tests.byte_connection import ByteConnection

SIZE = 1000
COMMIT = WindowCommit(0, 0, 1, 0, 1, 1, 0.5, {}, 0.0, 0.0)
VECTOR = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)


def pair(state, client=True, server=True):
    ends = [ByteConnection(Endpoint.CLIENT, SIZE, compression="bfloat16" if client else None)]
    ends.append(ByteConnection(Endpoint.SERVER, SIZE, compression="bfloat16" if server else None))
    for end in ends:
        end.state, end.vector = state, np.zeros(SIZE, np.float32)
    return ends


def sent(sender, message):
    payload = sender.pack(type(message), VECTOR)[-1]
    return sender.send(message, len(payload), PayloadKind.VECTOR) + bytes(payload)


@pytest.mark.parametrize("message", [COMMIT, CommitReply(1, False, None)])
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
    data = sent(server, Start(0, 0, 0, False, None, False))
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
    with pytest.raises(RemoteProtocolError, match=r"Announced: vector of "):
        server.receive(sent(client, COMMIT))


def test_a_vector_of_the_other_form_is_not_sent():
    client, _ = pair("running")
    with pytest.raises(LocalProtocolError, match=f"vector of {2 * SIZE} bytes"):
        client.send(COMMIT, VECTOR.nbytes, PayloadKind.VECTOR)


def sparse_ends(state):
    ends = [
        ByteConnection(side, SIZE, compression="dgc") for side in (Endpoint.CLIENT, Endpoint.SERVER)
    ]
    for end in ends:
        end.state, end.vector = state, np.full(SIZE, 7, np.float32)
    return ends


@pytest.mark.parametrize("message", [COMMIT, CommitReply(1, False, None), Step(None)])
@pytest.mark.parametrize("numbers", [0, 1, 499])
def test_few_numbers_travel_as_pairs(message, numbers):
    states = {WindowCommit: "running", CommitReply: "exchanging", Step: "stepping"}
    client, server = sparse_ends(states[type(message)])
    sender, receiver = (client, server) if message is COMMIT else (server, client)
    vector = np.zeros(SIZE, np.float32)
    vector[SIZE - numbers :] = VECTOR[SIZE - numbers :]
    payload = sender.pack(type(message), vector)[-1]
    assert len(payload) == sparse_bytes(vector) == 8 * max(1, numbers)
    data = sender.send(message, len(payload), PayloadKind.VECTOR) + bytes(payload)
    assert receiver.receive(data) == [message]
    assert (receiver.payload_size, receiver.frame_size) == (len(payload), len(data))
    np.testing.assert_array_equal(receiver.vector, vector)


def test_a_vector_that_would_not_be_shorter_travels_as_it_is():
    client, server = sparse_ends("running")
    payload = client.pack(WindowCommit, VECTOR)[-1]
    assert len(payload) == sparse_bytes(VECTOR) == VECTOR.nbytes
    server.receive(client.send(COMMIT, len(payload), PayloadKind.VECTOR) + bytes(payload))
    np.testing.assert_array_equal(server.vector, VECTOR)


@pytest.mark.parametrize("places", [[SIZE], [5, 5], [6, 5], [0, 2**32 - 1]])
def test_places_that_no_vector_has_are_refused(places):
    client, server = sparse_ends("running")
    payload = np.array([*places, *places], np.uint32).tobytes()
    with pytest.raises(RemoteProtocolError, match="names places in order, below 1000"):
        server.receive(client.send(COMMIT, len(payload), PayloadKind.VECTOR) + payload)


@pytest.mark.parametrize("length", [0, 4, 12, 4 * SIZE - 4, 4 * SIZE + 8])
def test_lengths_that_no_vector_has_are_not_sent(length):
    client, _ = sparse_ends("running")
    with pytest.raises(LocalProtocolError, match=f"4000, or pairs of 8.*: vector of {length} "):
        client.send(COMMIT, length, PayloadKind.VECTOR)


def test_changes_lead_from_what_is_known_to_what_is_so_bit_for_bit():
    told, heard = VECTOR.copy(), VECTOR.copy()
    for number in range(3):
        now = told.copy()
        now[number::7] += np.float32(1e-7)
        expected = now.copy()
        to_changes(now, told)
        assert np.count_nonzero(now.view(np.uint32)) <= SIZE // 7 + 1
        from_changes(now, heard)
        for found in (now, told, heard):
            np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_unknown_names_are_refused():
    assert check_compression(None) is None
    assert check_compression("dgc") == DeepGradientCompression()
    own = DeepGradientCompression(0.5)
    assert check_compression(own) is own
    assert check_compression("bfloat16") == "bfloat16"
    with pytest.raises(
        ConfigurationError, match=r"one of 'bfloat16', 'dgc', or None\. Received: 'gzip'"
    ):
        check_compression("gzip")


@pytest.mark.parametrize("compression", [None, "bfloat16", "dgc"])
def test_what_is_told_is_heard_and_a_lost_reply_is_told_again(compression):
    """Both ends forget after a broken connection, and the next reply is whole, bit for bit."""
    start, rng = np.float32([1, 2, 3, 4, 5, 6]), np.random.default_rng(0)
    encoder, decoder = DeltaEncoder(compression, 6), DeltaDecoder(compression, start.copy())
    encoder.start(1, start)
    sizes, center = [], start.copy()
    for number in range(4):
        center[number] += rng.normal()
        told = center.copy()
        sizes.append(encoder.encode(1, told))
        if number == 2:
            # Lost on its way.
            encoder.reset(1)
            decoder.reset()
            continue
        decoder.decode(told)
        assert told.tobytes() == center.tobytes()
    expected = {None: [24] * 4, "bfloat16": [12] * 4, "dgc": [8, 8, 8, 24]}
    assert sizes == expected[compression]


def test_rules_without_replies_tell_nothing():
    encoder = DeltaEncoder("dgc", 6, replies=False)
    encoder.start(0, np.ones(6, np.float32))
    assert encoder.encode(0, np.ones(6, np.float32)) == 0
    assert encoder._known == {}
    assert encoder.bytes_of(np.zeros(6, np.float32)) == 8
