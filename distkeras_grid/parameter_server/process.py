"""The driver's side of the server process: starts, watches and ends it.

Settings, key and center go through the child's standard input, never through its command line or
its environment, where other users could read them. The child ends when its input closes, so it
never outlives the driver.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from typing import Self

from msgspec.structs import replace

from distkeras_grid.errors import ConfigurationError, ParameterServerError, ServerUnreachableError
from distkeras_grid.parameter_server.auth import driver_key
from distkeras_grid.parameter_server.child import START_SECONDS, Child
from distkeras_grid.parameter_server.client import ANSWER_SECONDS, DriverClient
from distkeras_grid.parameter_server.messages import Update
from distkeras_grid.parameter_server.settings import (
    ServerAddress,
    ServerSettings,
    ServerTurn,
)
from distkeras_grid.parameter_server.transports import new_folder
from distkeras_grid.rules import rule_of
from distkeras_grid.trees import Packed
from distkeras_grid.weights import Vector

#: How long a new server tries to listen on the dead one's address, and its pauses [s].
REPLACE_SECONDS, REPLACE_PAUSE = 10.0, 0.2


class ServerProcess:
    """A running parameter server, as a context manager.

    Parameters
    ----------
    settings : ServerSettings
        The run.
    center : ndarray
        The initial weights, shape ``(settings.spec.size,)``, ``float32``.
    key : bytes
        The run's key, `distkeras_grid.parameter_server.auth.new_key`.
    saved : sequence of ndarray, default ()
        The parts of the checkpoint from which the run goes on, in place of the center.
    replaceable : bool, default False
        Whether another process may take the place of one that has died, see `replace`.

    Attributes
    ----------
    address : ServerAddress
        Address to which workers connect, after the context has been entered.

    Raises
    ------
    ConfigurationError
        If the center does not have the run's size, or the rule is unknown.
    ParameterServerError
        If the process does not start. The message has the end of its output.
    """

    address: ServerAddress

    def __init__(
        self,
        settings: ServerSettings,
        center: Vector,
        key: bytes,
        saved: Sequence[Packed] = (),
        *,
        replaceable: bool = False,
    ) -> None:
        if center.shape != (settings.spec.size,) or center.dtype != "float32":
            raise ConfigurationError(
                f"The center must be float32 of shape ({settings.spec.size},). "
                f"Received: {center.dtype} of shape {center.shape}."
            )
        # An unknown rule is refused here, before a process is started.
        rule_of(settings.spec.rule)
        self._settings = settings
        self._center = center
        self._key = key
        self._saved = list(saved)
        self._turn = ServerTurn(replaceable=replaceable)
        self._child: Child | None = None
        self._driver: DriverClient | None = None

    def __enter__(self) -> Self:
        self._turn = replace(self._turn, folder=new_folder())
        try:
            self._start(self._saved)
        except BaseException:
            self.__exit__()
            raise
        self._saved = []
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()
        if self._turn.folder is not None:
            # A server that was killed has not removed it.
            shutil.rmtree(self._turn.folder, ignore_errors=True)

    def replace(self, saved: Sequence[Packed] = ()) -> None:
        """Start another process in place of one that has died or does not answer.

        It has the same address and keys as the former one, so that workers find it. They notice
        that the server is new, and go on from its state.

        Parameters
        ----------
        saved : sequence of ndarray, default ()
            The parts of the checkpoint from which the run goes on; by default it begins again.

        Raises
        ------
        ServerUnreachableError
            If the process does not start.
        """
        self._end(at_once=True)
        place = replace(self._settings.place, port=self.address.port, port_retries=0)
        self._settings = replace(self._settings, place=place)
        folder = self._turn.folder
        if folder is None or not os.path.isdir(folder):
            folder = new_folder()
        generation = self._turn.generation + 1
        self._turn = replace(self._turn, generation=generation, folder=folder)
        until = time.monotonic() + REPLACE_SECONDS
        while True:
            try:
                self._start(saved)
                return
            except ServerUnreachableError:
                # Another program may use the port for a moment, as the local port of a connection.
                if time.monotonic() > until:
                    raise
            self._end(at_once=True)
            time.sleep(REPLACE_PAUSE)

    def _start(self, saved: Sequence[Packed]) -> None:
        self._driver = None
        self._child = Child.spawn()
        self.address = self._launch(saved)
        self._driver = self._connect(START_SECONDS)

    def _end(self, *, at_once: bool = False) -> None:
        if self._driver is not None:
            self._driver.close()
        if self._child is not None:
            # A stopped or hanging process must not go on beside its successor.
            self._child.stop(at_once=at_once)

    @property
    def pid(self) -> int:
        """Number of the process, which is another one after `replace`."""
        return self._started.pid

    @property
    def addresses(self) -> tuple[ServerAddress, ...]:
        """The addresses of all servers of the run: this one's."""
        return (self.address,)

    @property
    def pids(self) -> tuple[int, ...]:
        """Numbers of the processes of all servers of the run: this one's."""
        return (self.pid,)

    def poll(
        self, timeout: float = ANSWER_SECONDS, captured: int = 0, patience: float = 0.0
    ) -> Update:
        """Return the present state of the run, and the events since the last poll.

        Parameters
        ----------
        timeout : float, default `ANSWER_SECONDS`
            Seconds in which the server must answer, including reconnections.
        captured, patience
            As in `DriverClient.poll`.

        Raises
        ------
        ServerUnreachableError
            If the server has died or does not answer. The message has the end of its output.
        """
        try:
            return self._connected().poll(timeout, captured, patience)
        except ServerUnreachableError as error:
            raise self._started.died(error) from error

    def command(
        self,
        stop: bool | None = None,
        learning_rate: float | None = None,
        *,
        begin: bool = False,
        release: bool = False,
        epochs: int | None = None,
    ) -> None:
        """Set what the workers receive with their next replies; see `DriverClient.command`."""
        try:
            self._connected().command(
                stop, learning_rate, begin=begin, release=release, epochs=epochs
            )
        except ServerUnreachableError as error:
            raise self._started.died(error) from error

    def gather(self, *, at_once: bool = False) -> None:
        """Ask for a checkpoint; see `DriverClient.gather`."""
        try:
            self._connected().gather(at_once=at_once)
        except ServerUnreachableError as error:
            raise self._started.died(error) from error

    def reconnect(self) -> None:
        """Open a new connection, after an interrupt that may have left a request unfinished."""
        try:
            self._connected().reconnect()
        except ServerUnreachableError as error:
            raise self._started.died(error) from error

    def parts(self, number: int) -> Iterator[Packed]:
        """Fetch the parts of a checkpoint, beside all other requests.

        Parameters
        ----------
        number : int
            Number of the checkpoint.

        Raises
        ------
        RefusedError
            If it is not the last checkpoint.
        ServerUnreachableError
            If the server has died or does not answer.
        """
        client = self._connect(ANSWER_SECONDS)
        try:
            part, parts = 0, 1
            while part < parts:
                parts, content = client.part(number, part)
                part += 1
                yield content
        finally:
            client.close()

    def center(
        self, snapshot: int | None = None, seat: int = 0, out: Vector | None = None
    ) -> Vector:
        """Fetch the current center or a snapshot of it; see `DriverClient.center`."""
        try:
            return self._connected().center(snapshot, seat, out)
        except ServerUnreachableError as error:
            raise self._started.died(error) from error

    def _connect(self, seconds: float) -> DriverClient:
        # The client must not refer to this object: the center would be kept until Python's next
        # collection of garbage.
        lives = self._started.lives
        return DriverClient.connect(
            self.address,
            driver_key(self._key),
            self._settings.run,
            self._settings.spec.size,
            seconds,
            lives=lives,
        )

    def _connected(self) -> DriverClient:
        if self._driver is None:
            raise ParameterServerError("The server was not started: use it in a with statement.")
        return self._driver

    @property
    def _started(self) -> Child:
        if self._child is None:
            raise ParameterServerError("The server was not started: use it in a with statement.")
        return self._child

    def _launch(self, saved: Sequence[Packed]) -> ServerAddress:
        settings = {
            **self._settings.to_json(),
            "key": self._key.hex(),
            "turn": self._turn.to_json(),
            "saved": [part.size for part in saved],
        }
        center: memoryview = self._center.data
        parts = [center.cast("B"), *(each.data for each in saved)]
        return self._started.launch(settings, parts)
