"""Frames that no honest peer sends, or sends once: against a real service, over real sockets."""

from __future__ import annotations

import contextlib
import struct
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
import pytest

from distkeras_grid.errors import ParameterServerError
from distkeras_grid.parameter_server import frames, messages
from distkeras_grid.parameter_server.messages import (
    CenterUpdate,
    CommitReply,
    Done,
    FetchStep,
    PayloadKind,
    Poll,
    PutOptimizerState,
    Ready,
    Start,
    Step,
    WindowCommit,
)
from distkeras_grid.records import WindowRecord
from distkeras_grid.weights import StateSection, Variable
from tests.distkeras_grid.parameter_server.relay import DRIVER, Fault, Relay
from tests.fuzzing import Target, inputs

SIZE = 8
STATE = StateSection((Variable("iteration", (), "int64"), Variable("velocity", (SIZE,))))
#: A run whose workers make the steps.
STEPPING = {"rule": "mean_gradient", "trainable_size": SIZE, "state": STATE.variables}


def state(velocity=0.0):
    return STATE.pack([np.int64(7), np.full(SIZE, velocity, np.float32)])


def weights(value):
    return np.full(SIZE, value, np.float32)


def folded(bench):
    return [e.version for e in bench.driver().poll(5).events if isinstance(e, WindowRecord)]


# -- duplicated ---------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "dgc"])
@pytest.mark.parametrize(
    ("kind", "nth"),
    [
        (Ready, 1),
        (Start, 1),
        *((kind, nth) for kind in (WindowCommit, CommitReply) for nth in (1, 3)),
    ],
)
def test_a_frame_that_comes_twice_counts_once(serve, tools, kind, nth, compression):
    """Each reply is that of its own commit, and the worker ends as if nothing had happened."""
    bench = serve(compression=compression)
    with Relay(bench.address, Fault(kind, "duplicate", nth)) as relay:
        client = bench.started(address=relay.address, compression=compression)
        for sequence in range(4):
            answer, value = tools.exchange(client, tools.commit(sequence))
            assert (answer.version, answer.sequence, value) == (
                sequence + 1,
                sequence,
                sequence + 1,
            )
        client.finish()
        assert len(relay.struck) == (1 if nth == 1 or kind in (WindowCommit, CommitReply) else 0)
    assert folded(bench) == [1, 2, 3, 4]
    np.testing.assert_array_equal(bench.driver().center(), 4)
    assert bench.driver().poll(5).seats[0].status == "finished"


@pytest.mark.parametrize("kind", [FetchStep, Step, PutOptimizerState, Done])
def test_a_step_or_a_hand_over_that_comes_twice_is_made_once(serve, tools, kind):
    bench = serve(**STEPPING)
    # The first `Done` lets the worker in.
    with Relay(bench.address, Fault(kind, "duplicate", 1 + (kind is Done))) as relay:
        client = bench.started(address=relay.address, state_size=STATE.nbytes)
        own = np.zeros(SIZE, np.float32)
        for sequence in range(3):
            tools.exchange(client, tools.commit(sequence), value=sequence + 1)
            gradient = np.empty(SIZE, np.float32)
            client.fetch_step(sequence, gradient)
            own -= gradient
            np.testing.assert_array_equal(own, -sum(range(1, sequence + 2)))
        bench.driver().command(stop=True)
        client.put_optimizer_state(3, own, state(2.0))
        client.finish()
        assert relay.struck
    np.testing.assert_array_equal(bench.driver().center(), -6)
    late = bench.worker(attempt=1, state_size=STATE.nbytes)
    assert late.ready(100).has_state
    np.testing.assert_array_equal(late.fetch_state(), state(2.0))


@pytest.mark.parametrize("kind", [Poll, CenterUpdate])
@pytest.mark.parametrize("nth", [1, 2])
def test_news_that_come_twice_are_told_once(serve, tools, kind, nth):
    bench = serve()
    client = bench.started()
    with Relay(bench.address, Fault(kind, "duplicate", nth, DRIVER)) as relay:
        driver = bench.driver(relay.address)
        events = []
        for sequence in range(4):
            tools.exchange(client, tools.commit(sequence))
            events += driver.poll(5).events
        assert len(relay.struck) == 1
    assert [e.version for e in events if isinstance(e, WindowRecord)] == [1, 2, 3, 4]


# -- a state that cannot be ---------------------------------------------------------------------


#: What a worker may send while it trains, and the sections that come with it.
WHILE_TRAINING = (
    (messages.WindowCommit(0, 0, 1, 0, 2, 64, 0.5, {"accuracy": 0.5}, 1.0, 0.25), weights(1)),
    (messages.PutOptimizerState(0), weights(1)),
    (messages.FetchStep(0), None),
    (messages.FetchState(), None),
    (messages.Heartbeat("training", 9, "node-1", "/logs/stderr"), None),
    (messages.PutWorkerState(0, 0), None),
    (messages.WorkerError("ValueError", "no"), None),
)


@pytest.mark.parametrize(
    ("message", "section"), WHILE_TRAINING, ids=lambda value: type(value).__name__
)
def test_whatever_a_worker_with_a_key_sends_the_others_go_on(serve, tools, message, section):
    """Its messages have other values, and other bytes, than any worker of ours would send."""
    bench = serve(seats=2, rule="downpour", trainable_size=SIZE)
    with ThreadPoolExecutor() as pool:
        honest, _ = pool.map(lambda seat: bench.started(50, seat=seat), range(2))
    content = PayloadKind.NOTHING if section is None else message.carries[0]
    data = b"" if section is None else section.tobytes()
    target = Target("", [frames.fields_of(message)], lambda _: None, (), "msgpack")
    for attempt, fields in enumerate(islice(inputs(target), 60), 1):
        hostile = bench.worker(seat=1, attempt=attempt)
        hostile.ready(50)
        header = bytearray(frames.encode(message, len(data), content)[: frames.HEADER_SIZE])
        header[8:12] = struct.pack("<I", len(fields))
        channel = hostile._session.channel
        with contextlib.suppress(OSError):
            channel.stream._socket.sendall(bytes(header) + fields + data)
            channel.connection.state = "exchanging"
            with contextlib.suppress(ParameterServerError):
                channel.receive(5.0)
        hostile.close()
    version = bench.driver().poll(5).version
    answer, value = tools.exchange(honest, tools.commit(0, version=version))
    assert answer.version == version + 1
    assert np.isfinite(value)
