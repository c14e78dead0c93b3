"""The devices that are connected to a master."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar

from distkeras_grid.errors import FencedError, RefusedError
from distkeras_grid.model_parallel.device_connection import DeviceConnection
from distkeras_grid.parameter_server.array_channel import ArrayChannel


class DeviceGroup:
    """Devices by their numbers, as they connect and disconnect.

    Each device holds a part of the model. Once all are there, one that is lost stays lost: when it
    connects again, its part is as it was before the training.
    """

    #: Whether devices keep nothing between two requests, so that a lost one may come back.
    stateless: ClassVar[bool] = False

    def __init__(self, expected: int, tell: Callable[[str], None] = lambda _: None) -> None:
        self._expected = expected
        self._tell = tell
        self._changed = threading.Condition(threading.RLock())
        self._lines: dict[int, DeviceConnection] = {}
        self._moved = 0
        self._attempts: dict[int, int] = {}
        self._complete = False
        self._gone = False

    def authorize(self, number: int, attempt: int) -> None:
        """Refuse a device that may not join."""
        with self._changed:
            newest = self._attempts.get(number, attempt)
            if attempt < newest:
                raise FencedError(
                    f"Attempt {newest} of device {number} has taken its place. Received: attempt "
                    f"{attempt}. Nothing needs to be done; this one ends."
                )
            self._attempts[number] = attempt
            late = self._complete and not self.stateless
        if late:
            # Its older connection may look alive for a while.
            self.drop(number, "it has begun anew, without the weights that it had")
            raise RefusedError(
                f"Device {number} held a part of the model, and has begun anew. Received: attempt "
                f"{attempt}. The master gives up its own attempt; wait for the next one."
            )

    def join(self, number: int, channel: ArrayChannel, attempt: int = 0) -> None:
        """Take a device in."""
        self.authorize(number, attempt)
        self.drop(number, "the device has connected again")
        line = DeviceConnection(number, channel, self._lost)
        with self._changed:
            self._lines[number] = line
            self._changed.notify_all()
            text = f"Device {number} is there again." if self._complete else ""
        self._say(text)

    def line(self, number: int) -> DeviceConnection:
        """Return the connection to a device."""
        with self._changed:
            connection = self._lines.get(number)
        if connection is None:
            raise ConnectionResetError(f"device {number} is lost")
        return connection

    def drop(self, number: int, why: str) -> None:
        """End the connection to a device, if there is one, and report `why`."""
        with self._changed:
            line = self._lines.get(number)
        if line is not None:
            line.drop(why)

    def disconnect_late(self, why: str) -> list[int]:
        """End the connections to the devices that owe an answer; return their numbers."""
        with self._changed:
            late = sorted(number for number, line in self._lines.items() if line.waits)
        for number in late:
            self.drop(number, why)
        return late

    def wait_for_all(self, seconds: float) -> int:
        """Wait until all devices are connected; return how many are, the master included."""
        with self._changed:
            self._changed.wait_for(lambda: self.count == self._expected, seconds)
            self._complete = self.count == self._expected
            return self.count

    @property
    def count(self) -> int:
        """Number of connected devices, the master included."""
        with self._changed:
            return 1 + len(self._lines)

    @property
    def missing(self) -> list[int]:
        """Numbers of the devices that are not connected."""
        with self._changed:
            return [number for number in range(1, self._expected) if number not in self._lines]

    @property
    def lost(self) -> bool:
        """Whether a device was lost since all were there."""
        with self._changed:
            return self._gone

    @property
    def moved(self) -> int:
        """Bytes to and from all devices so far."""
        with self._changed:
            return self._moved + sum(line.moved for line in self._lines.values())

    def close(self, *, released: bool = True) -> None:
        """Leave all devices."""
        with self._changed:
            lines, self._lines = list(self._lines.values()), {}
            self._moved += sum(line.moved for line in lines)
        for line in lines:
            if released:
                line.finish()
            else:
                line.drop("the master's attempt has failed")

    def _lost(self, line: DeviceConnection, why: str) -> None:
        with self._changed:
            if self._lines.get(line.number) is not line:
                return
            self._moved += line.moved
            del self._lines[line.number]
            self._gone = self._gone or self._complete
            text = f"Device {line.number} is lost: {why}." if self._complete else ""
        self._say(text)

    def _say(self, text: str) -> None:
        """Report a line, outside the lock: the report needs a connection."""
        if text:
            self._tell(text)
