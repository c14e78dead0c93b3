"""The driver's side of the server process: starts, watches and ends it.

Settings, key and center go through the child's standard input, never through its command line or
its environment, where other users could read them. The child ends when its input closes, so it
never outlives the driver.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from typing import Self

from distkeras_grid.array_tree import Packed
from distkeras_grid.errors import ConfigurationError, ParameterServerError, ServerUnreachableError
from distkeras_grid.parameter_server.auth import driver_key
from distkeras_grid.parameter_server.driver_client import DriverClient
from distkeras_grid.parameter_server.messages import CenterUpdate
from distkeras_grid.parameter_server.server_process import LocalServer
from distkeras_grid.parameter_server.settings import ServerAddress, ServerSettings
from distkeras_grid.parameter_server.timeouts import ANSWER_SECONDS, START_SECONDS
from distkeras_grid.parameter_server.transports import new_folder
from distkeras_grid.rules import rule_of
from distkeras_grid.weights import Vector


class ServerProcess:
    """A running parameter server, as a context manager.

    `center`: the initial weights, shape ``(settings.spec.size,)``, ``float32``.
    """

    address: ServerAddress  # Address to which workers connect, after the context has been entered

    def __init__(
        self,
        settings: ServerSettings,
        center: Vector,
        key: bytes,
        saved: Sequence[Packed] = (),
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
        self._folder: str | None = None
        self._child: LocalServer | None = None
        self._driver: DriverClient | None = None

    def __enter__(self) -> Self:
        self._folder = new_folder()
        try:
            self._child = LocalServer.spawn()
            self.address = self._launch(self._saved)
            self._driver = self._connect(START_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        self._saved = []
        return self

    def __exit__(self, *exception: object) -> None:
        if self._driver is not None:
            self._driver.close()
        if self._child is not None:
            self._child.stop()
        if self._folder is not None:
            # A server that was killed has not removed it.
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def pid(self) -> int:
        """Number of the process."""
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
    ) -> CenterUpdate:
        """Return the present state of the run, and the events since the last poll.

        `timeout`: seconds in which the server must answer, including reconnections.
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
        epochs: int | None = None,
    ) -> None:
        """Set what the workers receive with their next replies; see `DriverClient.command`."""
        try:
            self._connected().command(stop, learning_rate, begin=begin, epochs=epochs)
        except ServerUnreachableError as error:
            raise self._started.died(error) from error

    def begin_checkpoint(self, *, at_once: bool = False) -> None:
        """Ask for a checkpoint; see `DriverClient.begin_checkpoint`."""
        try:
            self._connected().begin_checkpoint(at_once=at_once)
        except ServerUnreachableError as error:
            raise self._started.died(error) from error

    def reconnect(self) -> None:
        """Open a new connection, after an interrupt that may have left a request unfinished."""
        try:
            self._connected().reconnect()
        except ServerUnreachableError as error:
            raise self._started.died(error) from error

    def parts(self, number: int) -> Iterator[Packed]:
        """Fetch the parts of a checkpoint, beside all other requests."""
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
    def _started(self) -> LocalServer:
        if self._child is None:
            raise ParameterServerError("The server was not started: use it in a with statement.")
        return self._child

    def _launch(self, saved: Sequence[Packed]) -> ServerAddress:
        settings = {
            **self._settings.to_json(),
            "key": self._key.hex(),
            "folder": self._folder,
            "saved": [part.size for part in saved],
        }
        center: memoryview = self._center.data
        parts = [center.cast("B"), *(each.data for each in saved)]
        return self._started.launch(settings, parts)
