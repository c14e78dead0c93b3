"""The limits of a frame, at the last value that fits and the first that does not."""

import pytest

from distkeras_grid.errors import LocalProtocolError, RemoteProtocolError
from distkeras_grid.parameter_server import frames
from distkeras_grid.parameter_server.messages import Message, PayloadKind, WorkerEnd

NUMBER = len(frames.MAGIC) + 1


@pytest.fixture
def limit(monkeypatch):
    """Set the limit of a message type to the length of its fields, and some bytes more."""

    def set_to(message: Message, more: int) -> int:
        size = len(frames.fields_of(message)) + more
        monkeypatch.setattr(type(message), "limit", size)
        return size

    return set_to


@pytest.mark.parametrize("more", [0, 1])
def test_fields_up_to_the_limit_are_sent_and_received(limit, more):
    limit(WorkerEnd(), more)
    header = frames.decode_header(frames.encode(WorkerEnd())[: frames.HEADER_SIZE])
    assert (header.message, header.content) == (WorkerEnd, PayloadKind.NOTHING)


def test_fields_beyond_the_limit_are_neither_sent_nor_received(limit):
    frame = frames.encode(WorkerEnd())
    limit(WorkerEnd(), -1)
    with pytest.raises(LocalProtocolError):
        frames.encode(WorkerEnd())
    with pytest.raises(RemoteProtocolError):
        frames.decode_header(frame[: frames.HEADER_SIZE])
