"""The limits of a frame, at the last value that fits and the first that does not."""

import pytest

from distkeras_grid.errors import LocalProtocolError, RemoteProtocolError
from distkeras_grid.parameter_server import frames
from distkeras_grid.parameter_server.messages import MESSAGES, Message, PayloadKind, WorkerEnd

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


@pytest.mark.parametrize("number", [len(MESSAGES), len(MESSAGES) + 1, 255])
def test_a_message_that_does_not_exist_is_an_error_of_the_other_side(number):
    frame = bytearray(frames.encode(WorkerEnd())[: frames.HEADER_SIZE])
    frame[NUMBER] = number
    with pytest.raises(RemoteProtocolError):
        frames.decode_header(frame)


@pytest.mark.parametrize("payload", [0, 1000])
def test_the_size_of_a_frame_includes_its_section(payload):
    content = PayloadKind.VECTOR if payload else PayloadKind.NOTHING
    frame = frames.encode(WorkerEnd(), payload, content)
    assert frames.encoded_size(WorkerEnd(), payload) == len(frame) + payload


def test_a_frame_has_no_section_unless_one_is_named():
    header = frames.decode_header(frames.encode(WorkerEnd())[: frames.HEADER_SIZE])
    assert header.payload == 0
    assert frames.encoded_size(WorkerEnd()) == len(frames.encode(WorkerEnd()))
