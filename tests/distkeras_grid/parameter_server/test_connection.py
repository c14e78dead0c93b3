"""The protocol as h11 tests its own: whole, byte by byte, with trailing bytes, cut short."""

import contextlib
import math
import struct
import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from distkeras_grid.errors import LocalProtocolError, RemoteProtocolError
from distkeras_grid.parameter_server import frames, messages
from distkeras_grid.parameter_server.encryption import SEAL_BYTES
from distkeras_grid.parameter_server.messages import MESSAGES, TRANSITIONS, Endpoint, PayloadKind
from distkeras_grid.records import EpochEnded
from tests.byte_connection import ByteConnection

SIZE = 3
VECTOR = np.array([1.5, -2.0, 3.25], np.float32)
#: An optimizer's state: a count of 64 bits, and a velocity.
STATE = np.frombuffer(np.int64(7).tobytes() + VECTOR.tobytes(), np.uint8)
#: What a worker keeps, of which only its largest size is known.
KEPT, KEPT_LIMIT = np.arange(11, dtype=np.uint8), 16
#: Weights with the optimizer's state behind them.
BOTH = VECTOR.tobytes() + STATE.tobytes()


def section_of(message, content=None):
    """Return the first, or the given, of the sections that a message may carry."""
    states = {messages.PutOptimizerState: BOTH, messages.OptimizerState: STATE.tobytes()}
    return {
        PayloadKind.NOTHING: b"",
        PayloadKind.VECTOR: VECTOR.tobytes(),
        PayloadKind.STATE: states.get(type(message), KEPT.tobytes()),
        # The byte with which a file comes.
        PayloadKind.FILE: bytes(1),
    }[content or message.carries[0]]


COMMITTED = {
    "sequence": 0,
    "version": 0,
    "epoch": 1,
    "window": 0,
    "steps": 2,
    "samples": 64,
    "loss": 0.5,
    "metrics": {"accuracy": 0.5},
    "started": 1.0,
    "seconds": 0.25,
}


def examples():
    found = [
        messages.WorkerHello("run", 1, 2, SIZE, "0" * 64),
        messages.DriverHello("run", SIZE, "0" * 64),
        messages.Challenge("1" * 64, "2" * 64),
        messages.Proof("3" * 64),
        messages.Ready(10, 0.25),
        messages.Keepalive(),
        messages.Start(0, 0, 0, False, None, False),
        messages.WindowCommit(**COMMITTED),
        messages.CommitReply(1, False, 0.01),
        messages.WorkerEnd(),
        messages.WorkerError("ValueError", "zwölf"),
        messages.Poll(3),
        messages.CenterUpdate(
            4, 5, (messages.SeatStatus(0, -1, "absent", None, 0),), (EpochEnded(1, 5, 64, 2.5),)
        ),
        messages.Command(True, None),
        messages.Done(),
        messages.FetchCenter(None, 0),
        messages.CenterReply(9),
        messages.Rejection("no"),
        messages.Close("FencedError", "no"),
        messages.FetchStep(3),
        messages.Step(0.01),
        messages.PutOptimizerState(4),
        messages.FetchState(),
        messages.OptimizerState(),
        messages.Resume(),
        messages.PutWorkerState(3, 7),
        messages.GetWorkerState(),
        messages.WorkerStateReply(3, 7),
        messages.BeginCheckpoint(True),
        messages.FetchPart(3, 1),
        messages.CheckpointPart(2),
        messages.Heartbeat("reading", 9, "node-1", "/logs/stderr"),
        messages.ShareMemory(),
        messages.ShareMemoryReply(),
        messages.GoOn(stop=False, learning_rate=0.5),
    ]
    assert {type(message) for message in found} == set(MESSAGES)
    return [pytest.param(message, id=type(message).__name__) for message in found]


def ends(kind):
    """A sender and a receiver in a state in which a message is legal."""
    state = next(state for state, legal in TRANSITIONS.items() if kind in legal)
    sizes = {"state_size": STATE.nbytes, "worker_state_limit": KEPT_LIMIT}
    pair = [ByteConnection(side, SIZE, **sizes) for side in (Endpoint.CLIENT, Endpoint.SERVER)]
    for end in pair:
        end.state = state
        end.vector = np.zeros(SIZE, np.float32)
        end.passes_files = True
    return pair if kind.sender is Endpoint.CLIENT else pair[::-1]


def encoded(sender, message, content=None):
    """Return a frame with the first, or the given, of the sections that its message may carry."""
    section = section_of(message, content)
    return sender.send(message, len(section), content or message.carries[0]) + section


@pytest.mark.parametrize("size", [0, KEPT_LIMIT + 1, 2**60])
def test_what_is_kept_has_a_limit_before_memory_is_taken(size):
    sender, receiver = ends(messages.PutWorkerState)
    data = header(
        number=MESSAGES.index(messages.PutWorkerState),
        content=PayloadKind.STATE,
        payload=size,
    )
    with pytest.raises(RemoteProtocolError):
        receiver.receive(data)
    with pytest.raises(LocalProtocolError):
        sender.send(messages.PutWorkerState(0, 0), size, PayloadKind.STATE)


#: What `ends` sends before the other end has proved that it has the key.
AUTHENTICATION = (
    messages.Close,
    messages.WorkerHello,
    messages.DriverHello,
    messages.Challenge,
    messages.Proof,
)
KEYS = {side: side.value.encode().ljust(32) for side in Endpoint}


def protected(kind):
    pair = ends(kind)
    for end in pair:
        end.protect(KEYS)
    return pair


def sealed(sender, message):
    """Return the head of a frame and its section, both sealed."""
    section = section_of(message)
    head = sender.send(message, len(section), message.carries[0])
    return head, b"".join(map(bytes, sender.sealed(memoryview(section))))


def received(receiver, data, pieces=()):
    """Let a receiver have its bytes in pieces, one by one at the end; return its messages.

    It is within a frame until the last one.
    """
    got, pieces = [], [*pieces]
    while data:
        count = pieces.pop(0) if pieces else 1
        got += receiver.receive(data[:count])
        data = data[count:]
        assert receiver.mid_frame == bool(data)
        assert not (got and data)
    return got


@pytest.mark.parametrize("sealed_frames", [False, True])
@pytest.mark.parametrize("message", examples())
def test_a_message_is_complete_with_its_last_byte(message, sealed_frames):
    """After the authentication its fields and its section are sealed."""
    sender, receiver = (protected if sealed_frames else ends)(type(message))
    head, section = sealed(sender, message)
    content, size = message.carries[0], len(section_of(message))
    plain = frames.encode(message, size, content)
    seals = sealed_frames * (size > 0) + (sealed_frames and not isinstance(message, AUTHENTICATION))
    assert len(head) + len(section) == len(plain) + size + seals * SEAL_BYTES
    assert received(receiver, head + section) == [message]
    assert receiver.state == sender.state
    assert receiver.frame_size == len(plain) + size
    if content is PayloadKind.VECTOR:
        np.testing.assert_array_equal(receiver.vector, VECTOR)
    if content is PayloadKind.STATE:
        assert receiver.received_state.tobytes() == section_of(message)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1), st.booleans())
def test_any_pieces_give_the_same_message(pieces, sealed_frames):
    commit = messages.WindowCommit(**COMMITTED)
    sender, receiver = (protected if sealed_frames else ends)(type(commit))
    assert received(receiver, b"".join(sealed(sender, commit)), pieces) == [commit]
    np.testing.assert_array_equal(receiver.vector, VECTOR)


@pytest.mark.parametrize(
    "message",
    [messages.WindowCommit(**COMMITTED), messages.WorkerEnd(), messages.OptimizerState()],
    ids=lambda message: type(message).__name__,
)
def test_no_byte_of_a_sealed_frame_may_be_another(message):
    _, receiver = protected(type(message))
    sender, _ = protected(type(message))
    data = b"".join(sealed(sender, message))
    for place in range(len(data)):
        _, receiver = protected(type(message))
        altered = bytearray(data)
        altered[place] ^= 1
        received = []
        # A longer frame may be announced: then nothing is passed on, either.
        with contextlib.suppress(RemoteProtocolError):
            received = receiver.receive(bytes(altered))
        assert received == []


def test_a_frame_without_a_seal_is_not_taken_for_one_with_it():
    sender, _ = ends(messages.WorkerEnd)
    _, receiver = protected(messages.WorkerEnd)
    data = sender.send(messages.WorkerEnd())
    with pytest.raises(RemoteProtocolError):
        receiver.receive(data + bytes(SEAL_BYTES))


@pytest.mark.parametrize("message", examples())
def test_trailing_bytes_are_no_message(message):
    sender, receiver = ends(type(message))
    with pytest.raises(RemoteProtocolError):
        receiver.receive(encoded(sender, message) + b"x" * frames.HEADER_SIZE)


@pytest.mark.parametrize("message", examples())
def test_only_legal_in_its_states(message):
    kind = type(message)
    for state, legal in TRANSITIONS.items():
        sender, receiver = ends(kind)
        data = encoded(sender, message)
        receiver.state = state
        if kind not in legal:
            with pytest.raises(RemoteProtocolError):
                receiver.receive(data)
            sender.state = state
            if kind is not messages.Close:  # which a server may send at any moment
                with pytest.raises(LocalProtocolError):
                    encoded(sender, message)


@pytest.mark.parametrize("message", examples())
def test_nobody_speaks_for_the_other_side(message):
    sender, impostor = ends(type(message))
    data = encoded(sender, message)
    with pytest.raises(LocalProtocolError):
        encoded(impostor, message)
    victim, _ = ends(type(message))
    with pytest.raises(RemoteProtocolError):
        victim.receive(data)


def test_the_messages_of_a_state_have_one_sender():
    for legal in TRANSITIONS.values():
        assert len({message.sender for message in legal}) <= 1


def header(
    magic=b"DKGP",
    version=frames.VERSION,
    number=0,
    content=PayloadKind.NOTHING,
    length=2,
    payload=0,
):
    content = getattr(content, "value", content)
    return struct.pack("<4sBBHIQ", magic, version, number, content, length, payload)


COMMIT, HAND_OVER, LEND = map(
    MESSAGES.index, (messages.WindowCommit, messages.PutOptimizerState, messages.ShareMemory)
)


def told(number, content, payload, **changes):
    return header(number=number, content=content, payload=payload, **changes)


@pytest.mark.parametrize(
    ("state", "data", "match"),
    [
        ("hello", header(magic=b"GET "), "does not speak"),
        ("hello", header(version=1), f"version 1, this side {frames.VERSION}"),
        ("hello", header(number=200), "no message of type 200"),
        ("hello", header(length=2**32 - 1), "4294967295 are announced"),
        ("hello", header(length=1005), "1005 are announced"),
        ("hello", header(payload=2**64 - 1), "nothing of 18446744073709551615 bytes"),
        ("hello", header(content=6), "no section of number 6"),
        ("hello", told(COMMIT, PayloadKind.VECTOR, 4 * SIZE), "may not come now"),
        ("running", told(COMMIT, PayloadKind.VECTOR, 0), "vector of 0 bytes"),
        ("running", told(COMMIT, PayloadKind.LENT, 4 * SIZE), "lent of 12 bytes"),
        ("running", told(COMMIT, PayloadKind.FILE, 1), "file of 1 bytes"),
        ("joined", told(LEND, PayloadKind.FILE, 1), "file of 1 bytes"),
        ("running", told(COMMIT, PayloadKind.NOTHING, 4 * SIZE), "nothing of 12 bytes"),
        ("running", told(COMMIT, PayloadKind.STATE, 4 * SIZE), "state of 12 bytes"),
        ("running", told(COMMIT, PayloadKind.VECTOR, 4 * SIZE + 4), "vector of 16 bytes"),
        ("running", told(COMMIT, PayloadKind.VECTOR, 8 * SIZE), "vector of 24 bytes"),
        ("running", told(COMMIT, PayloadKind.VECTOR, 4 * SIZE, length=2**20), "1048576 are"),
        ("running", told(HAND_OVER, PayloadKind.NOTHING, 0), "nothing of 0 bytes"),
        ("running", told(HAND_OVER, PayloadKind.STATE, 4 * SIZE), "state of 12 bytes"),
        ("running", told(HAND_OVER, PayloadKind.STATE, 2**62), "state of 4611686018427387904"),
        ("running", told(HAND_OVER, PayloadKind.STATE, STATE.nbytes), "state of 20 bytes"),
        ("running", told(HAND_OVER, PayloadKind.VECTOR, 4 * SIZE), "vector of 12 bytes"),
    ],
)
def test_bad_headers_are_refused_before_anything_is_allocated(state, data, match):
    connection = ByteConnection(Endpoint.SERVER, SIZE, state_size=STATE.nbytes)
    connection.state = state
    connection.vector = np.zeros(SIZE, np.float32)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match=match):
            connection.receive(data)
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


def test_a_stranger_that_answers_gets_no_more_memory_than_one_that_asks():
    client = ByteConnection(Endpoint.CLIENT, SIZE)
    client.send(messages.DriverHello("run", SIZE, "0" * 64))
    goodbye = MESSAGES.index(messages.Close)
    with pytest.raises(RemoteProtocolError, match="1005 are announced"):
        client.receive(header(number=goodbye, length=1005))


def test_memory_for_a_long_message_comes_with_its_bytes():
    sender, receiver = ends(messages.CenterUpdate)
    seats = tuple(
        messages.SeatStatus(seat, -1, "absent", None, 0, log="/logs/" + 200 * "x")
        for seat in range(2000)
    )
    update = messages.CenterUpdate(4, 5, seats, ())
    data = sender.send(update)
    assert len(data) > 6 * messages.HEADER_LIMIT
    announcing = header(number=MESSAGES.index(messages.CenterUpdate), length=2**28)
    tracemalloc.start()
    assert ends(messages.CenterUpdate)[1].receive(announcing + bytes(9)) == []
    assert tracemalloc.get_traced_memory()[1] < 4 * messages.HEADER_LIMIT
    tracemalloc.stop()
    assert receiver.receive(data) == [update]


@pytest.mark.parametrize("length", [0, 4 * SIZE - 4, 4 * SIZE + 4, 2**60])
def test_a_vector_in_lent_memory_has_the_length_of_the_others(length):
    connection = ByteConnection(Endpoint.SERVER, SIZE)
    connection.state, connection.vector = "running", np.zeros(SIZE, np.float32)
    connection.share_memory(np.zeros(SIZE, np.float32), np.ones(SIZE, np.float32))
    with pytest.raises(RemoteProtocolError):
        connection.receive(told(COMMIT, PayloadKind.LENT, length))


def test_a_vector_that_nobody_waits_for_is_refused():
    connection = ByteConnection(Endpoint.SERVER, SIZE)
    connection.state = "running"
    with pytest.raises(RemoteProtocolError, match="nobody waits for"):
        connection.receive(told(COMMIT, PayloadKind.VECTOR, 4 * SIZE))


def read(kind, fields):
    """What a receiver of such fields does."""
    body = fields if isinstance(fields, bytes) else msgspec.msgpack.encode(fields)
    return frames.decode_message(frames.FrameHeader(kind, len(body), 0, PayloadKind.NOTHING), body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x81",
        b"{}",
        b"\x91" * 900,
        b"\x81\xa3run\xa2\xff\xfe",
        [],
        {},
        {"run": 1, "size": 3, "nonce": "0" * 64},
        {"run": "", "size": -1, "nonce": "0" * 64},
        {"run": "", "size": True, "nonce": "0" * 64},
        {"run": "", "size": 3.0, "nonce": "0" * 64},
        {"run": "", "size": 3, "nonce": "0" * 64, "more": 1},
        {"run": "", "size": 2**53, "nonce": "0" * 64},
        {"run": "", "size": 3, "nonce": "G" * 64},
    ],
)
def test_bad_fields_are_refused(body):
    assert read(messages.DriverHello, {"run": "", "size": 3, "nonce": "0" * 64}).size == 3
    with pytest.raises(RemoteProtocolError):
        read(messages.DriverHello, body)


HANDED_OVER = {"version": 1}
HELLO = {"run": "a", "seat": 0, "attempt": 3, "size": 8, "nonce": "0" * 64}


@pytest.mark.parametrize(
    ("kind", "fields", "wrong"),
    [
        *(
            (messages.WindowCommit, COMMITTED, wrong)
            for wrong in (
                {"samples": 2**62},
                {"samples": -1},
                {"steps": 2**62},
                {"sequence": 2**62},
                {"version": None},
                {"metrics": {"accuracy": "0.5"}},
                {"metrics": {"accuracy": None}},
                {"metrics": {"accuracy": {}}},
                {"metrics": {1: 0.5}},
                {"metrics": {"a" * 201: 0.5}},
                {"metrics": [0.5]},
                {"loss": "nan"},
                {"state": bytes(2**19 + 1)},
                {"state": [1.0]},
                {"sources": {"loss": 1}},
                {"started": -1.0},
                {"seconds": float("nan")},
                {"seconds": float("inf")},
            )
        ),
        *(
            (messages.PutOptimizerState, HANDED_OVER, wrong)
            for wrong in ({"version": 2**60}, {"version": -1}, {"parts": 2**40})
        ),
        *(
            (messages.WorkerHello, HELLO, wrong)
            for wrong in ({"attempt": 2**62}, {"seat": -1}, {"run": None})
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_fields_out_of_range_are_refused(kind, fields, wrong):
    read(kind, fields)
    with pytest.raises(RemoteProtocolError):
        read(kind, fields | wrong)


def test_a_loss_or_metric_that_is_not_finite_arrives_as_it_is():
    """The server refuses such a loss by name, and a metric may have no value."""
    told = read(messages.WindowCommit, COMMITTED | {"loss": np.nan, "metrics": {"auc": np.inf}})
    assert math.isnan(told.loss)
    assert told.metrics == {"auc": math.inf}


@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_numbers_without_end_do_not_travel(number):
    commit = messages.WindowCommit(**COMMITTED | {"loss": number})
    with pytest.raises(LocalProtocolError):
        frames.encode(commit)


def test_numpys_numbers_travel():
    commit = messages.WindowCommit(**COMMITTED | {"loss": np.float32(0.5), "steps": np.int64(2)})
    data = frames.encode(commit)
    assert read(messages.WindowCommit, data[frames.HEADER_SIZE :]) == commit


def test_too_long_a_message_is_not_sent_and_one_up_to_the_limit_is_received():
    client, server = ends(messages.DriverHello)
    room = 1004 - len(frames.fields_of(messages.DriverHello("r" * 500, SIZE, "0" * 64)))
    longest = messages.DriverHello("r" * (500 + room), SIZE, "0" * 64)
    with pytest.raises(LocalProtocolError, match="may have 1004 bytes"):
        client.send(structs.replace(longest, run=longest.run + "r"))
    assert client.state == "hello"
    assert server.receive(client.send(longest)) == [longest]


def test_a_vector_of_another_size_is_not_sent():
    connection = ByteConnection(Endpoint.CLIENT, SIZE)
    connection.state = "running"
    commit = messages.WindowCommit(**COMMITTED)
    with pytest.raises(LocalProtocolError, match="To be sent: vector of 8 bytes"):
        connection.send(commit, 8, PayloadKind.VECTOR)


@pytest.mark.parametrize("state", ["worker challenge", "driver challenge"])
def test_a_server_that_has_not_proven_that_it_has_the_key_is_heard_in_short(state):
    sender, receiver = ends(messages.Close)
    receiver.state = state
    with pytest.raises(RemoteProtocolError):
        receiver.receive(sender.send(messages.Close("RefusedError", "x" * 3000)))


@pytest.mark.parametrize("state", ["worker welcome", "driver welcome", "exchanging", "polling"])
def test_one_that_has_may_say_more(state):
    sender, receiver = ends(messages.Close)
    receiver.state = state
    (goodbye,) = receiver.receive(sender.send(messages.Close("RefusedError", "x" * 3000)))
    assert len(goodbye.message) == 3000
