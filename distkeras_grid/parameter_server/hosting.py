"""A server on the host of a Spark task: what the driver and the task tell each other.

The task connects to the driver, which sends it the settings of a server with the run's key, the
center, and the parts of a checkpoint. The task starts the server's process, and tells where it
listens. From then on the connection stands for the server: when it breaks, or the driver asks for
it, the process ends; when the process ends, the driver is told what has become of it.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from distkeras_grid.bounds import Count
from distkeras_grid.errors import (
    ParameterServerError,
    RemoteProtocolError,
    ServerUnreachableError,
)
from distkeras_grid.parameter_server.byte_arrays import as_bytes, as_numbers
from distkeras_grid.parameter_server.child import START_SECONDS, STOP_SECONDS, Child
from distkeras_grid.parameter_server.liveness import STALL_SECONDS
from distkeras_grid.parameter_server.settings import ServerAddress
from distkeras_grid.parameter_server.transports import new_folder
from distkeras_grid.parameter_server.vocabulary import Envelope, Vocabulary
from distkeras_grid.parameter_server.wire import BROKEN, ArrayChannel


class Enter(Envelope, frozen=True):
    """The task may wait for a server's settings."""


class Serve(Envelope, frozen=True):
    """Start a server; its settings, of `size` bytes of JSON, and the center follow.

    Parameters
    ----------
    size : int
        Bytes of the settings.
    saved : tuple of int
        Bytes of each part of a checkpoint; each follows in a `SavedPart`.
    """

    size: Count
    saved: tuple[Count, ...]


class SavedPart(Envelope, frozen=True):
    """A part of the checkpoint from which the server goes on follows."""


class Serving(Envelope, frozen=True):
    """The server listens here; see `ServerAddress`."""

    host: str
    port: Count
    unix_path: str | None


class Stop(Envelope, frozen=True):
    """End the server.

    Parameters
    ----------
    at_once : bool
        Whether it is killed.
    """

    at_once: bool


class Ended(Envelope, frozen=True):
    """The server has not started, or has ended; `told` says how."""

    told: str


VOCABULARY = Vocabulary(b"DKGH", 1, (Enter, Serve, SavedPart, Serving, Stop, Ended))


class RemoteServer:
    """The driver's side of a server on the host of a task; see `child.Hosted`.

    Parameters
    ----------
    channel : ArrayChannel
        Leads to the task; closed by `stop`.
    """

    def __init__(self, channel: ArrayChannel) -> None:
        self._channel = channel
        self._fate = "its task does not answer."
        self._ended = threading.Event()
        self._listening: threading.Thread | None = None

    @property
    def pid(self) -> None:
        """None: the process runs on another host."""

    def launch(self, settings: Mapping[str, Any], parts: Sequence[memoryview]) -> ServerAddress:
        """Send settings and parts to the task; see `Hosted`."""
        body = np.frombuffer(json.dumps(settings).encode("ascii"), np.uint8)
        center, *saved = (np.frombuffer(part, np.uint8) for part in parts)
        try:
            head = Serve(size=body.size, saved=tuple(part.size for part in saved))
            self._channel.send(head, [as_numbers(body), center.view(np.float32)])
            for part in saved:
                self._channel.send(SavedPart(), [as_numbers(part)])
            # Sending has its own limits. The task gives the process as much, and then answers.
            found = self._channel.receive(START_SECONDS + STALL_SECONDS)
        except BROKEN as error:
            raise ServerUnreachableError(f"The server's task does not answer: {error}") from error
        match found:
            case Serving(host=host, port=port, unix_path=path), _:
                self._listening = threading.Thread(target=self._listen, daemon=True)
                self._listening.start()
                return ServerAddress(host, port, path)
            case Ended(told=told), _:
                raise ServerUnreachableError(told)
            case None:
                raise ServerUnreachableError("The server's task has ended before it listened.")
        raise RemoteProtocolError(f"The server's address is expected. Received: {found!r:.200}.")

    def lives(self) -> bool:
        """Return whether nothing is known of its end."""
        return not self._ended.is_set()

    def died(self, error: Exception) -> ServerUnreachableError:
        """Return the error of a server that does not answer, with what its task has told."""
        # A worker or the driver may notice it before the task does.
        ended = self._ended.wait(1.0)
        fate = self._fate if ended else "its task still runs."
        return ServerUnreachableError(f"The parameter server on an executor: {fate} {error}")

    def stop(self, *, at_once: bool) -> None:
        """Let the task end the server, and the task."""
        with contextlib.suppress(*BROKEN):
            self._channel.send(Stop(at_once=at_once))
        if self._listening is not None:
            # The task closes the connection when the process has ended.
            self._listening.join(2 * STOP_SECONDS)
            self._channel.interrupt()
            self._listening.join()
        self._channel.close()

    def _listen(self) -> None:
        told = "its task has ended, perhaps with its executor."
        with contextlib.suppress(*BROKEN):
            while (found := self._channel.receive(None)) is not None:
                if isinstance(found[0], Ended):
                    told = found[0].told
        self._fate = told
        self._ended.set()


def host_server(channel: ArrayChannel, address: str, seconds: float) -> None:
    """Run the server that the driver asks for, until the driver or the server ends.

    Parameters
    ----------
    channel : ArrayChannel
        Leads to the driver.
    address : str
        Address of this host, on which the server listens.
    seconds : float
        How long the driver may take to ask [s].

    Raises
    ------
    ParameterServerError
        If the driver breaks the protocol.
    OSError
        If it does not ask in time.
    """
    asked = _asked(channel, seconds)
    if asked is None:
        return
    settings, parts = asked
    folder = new_folder()
    # The driver knows no folder of this host, and not by which address others reach it.
    settings["turn"]["folder"] = folder
    settings["place"] |= {"bind_host": address, "advertised_host": address}
    at_once = False
    try:
        child = Child.spawn()
        try:
            at = child.launch(settings, parts)
            del asked, parts
            channel.send(Serving(host=at.host, port=at.port, unix_path=at.unix_path))
            at_once = _wait(child, channel)
        finally:
            child.stop(at_once=at_once)
    except ParameterServerError as error:
        with contextlib.suppress(*BROKEN):
            channel.send(Ended(told=str(error)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _asked(channel: ArrayChannel, seconds: float) -> tuple[dict[str, Any], list[memoryview]] | None:
    """Return settings and parts of the server; None if the driver needs none."""
    match channel.receive(seconds):
        case None | (Stop(), _):
            return None
        case Serve(size=size, saved=saved), [body, center]:
            parts: list[memoryview] = [center.data.cast("B")]
            for length in saved:
                match channel.receive(STALL_SECONDS):
                    case SavedPart(), [numbers]:
                        parts.append(as_bytes(numbers, length).data)
                    case found:
                        raise _unexpected(found)
            return json.loads(as_bytes(body, size).tobytes()), parts
        case found:
            raise _unexpected(found)


def _unexpected(found: object) -> RemoteProtocolError:
    return RemoteProtocolError(f"The settings of a server are due. Received: {found!r:.200}.")


def _wait(child: Child, channel: ArrayChannel) -> bool:
    """Wait until the driver lets the server go, or has gone; return whether to kill it.

    If the process ends by itself, the driver is told.
    """
    leaving = threading.Event()

    def watch() -> None:
        child.process.wait()
        if not leaving.is_set():
            with contextlib.suppress(*BROKEN):
                channel.send(Ended(told=child.fate("It was not asked to.")))
            channel.interrupt()

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    found = None
    with contextlib.suppress(*BROKEN):
        found = channel.receive(None)
    if child.lives():
        leaving.set()
    else:
        watching.join()
    return found is None or (isinstance(found[0], Stop) and found[0].at_once)
