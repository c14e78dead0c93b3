"""Frames that no honest peer sends: against a real service, over real sockets."""

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
    PayloadKind,
)
from tests.fuzzing import Target, inputs

SIZE = 8


def weights(value):
    return np.full(SIZE, value, np.float32)


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
