"""Streams in memory: the same bytes and the same protocol as by sockets, without the kernel."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence

from distkeras_grid.parameter_server.streams import TransportName, seconds_left

#: Bytes in one direction of a pair that wait for their reader.
_PIPE_BUFFER = 1 << 16


class MemoryStream:
    """One end of a pair in memory; `memory_pair` makes both."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    @property
    def private(self) -> bool:
        """True; see `SocketStream`."""
        return True

    @property
    def transport(self) -> TransportName:
        """What carries the bytes."""
        return ""

    def send_file(self, file: int, seconds: float) -> None:  # noqa: ARG002 - it never can
        """Raise: this stream passes no files."""
        raise OSError(errno.ENOTSUP, "a stream in memory passes no files")

    def receive_file(self, seconds: float | None) -> tuple[int, int | None]:  # noqa: ARG002
        """Raise: this stream passes no files."""
        raise OSError(errno.ENOTSUP, "a stream in memory passes no files")

    def send(self, parts: Sequence[memoryview], deadline: float) -> None:
        """Send all bytes of the parts; see `SocketStream`."""
        for part in parts:
            left = part
            while left:
                left = left[self._outgoing.put(left, seconds_left(deadline)) :]

    def receive_into(self, target: memoryview, seconds: float | None) -> int:
        """Receive at least a byte; see `SocketStream`."""
        return self._incoming.take(target, seconds)

    def ended(self) -> bool:
        """Whether the peer has closed; see `SocketStream`."""
        return self._incoming.finished

    def finish_sending(self) -> None:
        """Tell the peer that nothing more comes."""
        self._outgoing.finish()

    def interrupt(self) -> None:
        """Let other threads that wait here go on; see `SocketStream`."""
        self.close()

    def close(self) -> None:
        """Close the connection; what the peer has sent is dropped."""
        self._outgoing.finish()
        self._incoming.abandon()


def memory_pair() -> tuple[MemoryStream, MemoryStream]:
    """Return the two ends of a connection in memory.

    Examples
    --------
    >>> import time
    >>> ours, theirs = memory_pair()
    >>> ours.send([memoryview(b"abc")], time.monotonic() + 1.0)
    >>> target = bytearray(3)
    >>> theirs.receive_into(memoryview(target), 1.0), bytes(target)
    (3, b'abc')
    """
    there, back = _Pipe(), _Pipe()
    return MemoryStream(back, there), MemoryStream(there, back)


class _Pipe:
    """Bytes in one direction, a bounded number at a time."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._finished = self._abandoned = False
        self._changed = threading.Condition()

    @property
    def finished(self) -> bool:
        with self._changed:
            return self._finished and not self._data

    def put(self, part: memoryview, seconds: float) -> int:
        with self._changed:
            self._wait(lambda: self._abandoned or len(self._data) < _PIPE_BUFFER, seconds)
            if self._abandoned or self._finished:
                raise BrokenPipeError("the other side closed it")
            taken = part[: _PIPE_BUFFER - len(self._data)]
            self._data += taken
            self._changed.notify_all()
            return len(taken)

    def take(self, target: memoryview, seconds: float | None) -> int:
        with self._changed:
            self._wait(lambda: bool(self._data) or self._finished or self._abandoned, seconds)
            if self._abandoned:
                raise ConnectionResetError("this side closed it")
            count = min(len(target), len(self._data))
            target[:count] = self._data[:count]
            del self._data[:count]
            self._changed.notify_all()
            return count

    def finish(self) -> None:
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def abandon(self) -> None:
        with self._changed:
            self._abandoned = True
            self._data.clear()
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool], seconds: float | None) -> None:
        if not self._changed.wait_for(condition, seconds):
            raise TimeoutError("timed out")
