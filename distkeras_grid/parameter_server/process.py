"""The driver's side of the server process: starts, watches and ends it.

Settings, key and center go through the child's standard input, never through its command line or
its environment, where other users could read them. The child ends when its input closes, so it
never outlives the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

from distkeras_grid.array_tree import Packed
from distkeras_grid.errors import ConfigurationError, ParameterServerError, ServerUnreachableError
from distkeras_grid.parameter_server.auth import driver_key
from distkeras_grid.parameter_server.driver_client import DriverClient
from distkeras_grid.parameter_server.server_process import LocalServer
from distkeras_grid.parameter_server.settings import ServerAddress, ServerSettings
from distkeras_grid.parameter_server.timeouts import ANSWER_SECONDS, START_SECONDS
from distkeras_grid.rules import rule_of
from distkeras_grid.weights import Vector


class ServerProcess(DriverClient):
    """A running parameter server, and the driver's client of it; a context manager.

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
        self._child: LocalServer | None = None

    def __enter__(self) -> Self:
        try:
            self._child = LocalServer.spawn()
            self.address = self._launch(self._saved)
            super().__init__(*self._claim, self._child.lives)
            self._open(START_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        self._saved = []
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
        if self._child is not None:
            self._child.stop()

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

    def parts(self, number: int) -> Iterator[Packed]:
        """Fetch the parts of a checkpoint, beside all other requests."""
        client = DriverClient.connect(*self._claim, ANSWER_SECONDS, self._started.lives)
        try:
            part, parts = 0, 1
            while part < parts:
                parts, content = client.part(number, part)
                part += 1
                yield content
        finally:
            client.close()

    @property
    def _claim(self) -> tuple[ServerAddress, bytes, str, int]:
        """What a client of the driver needs."""
        size = self._settings.spec.size
        return self.address, driver_key(self._key), self._settings.run, size

    def _ask(self, *request: Any, **options: Any) -> Any:
        try:
            return super()._ask(*request, **options)
        except ServerUnreachableError as error:
            raise self._started.died(error) from error

    def reconnect(self) -> None:
        """Open a new connection, after an interrupt that may have left a request unfinished."""
        try:
            super().reconnect()
        except ServerUnreachableError as error:
            raise self._started.died(error) from error

    @property
    def _started(self) -> LocalServer:
        if self._child is None:
            raise ParameterServerError("The server was not started: use it in a with statement.")
        return self._child

    def _launch(self, saved: Sequence[Packed]) -> ServerAddress:
        settings = {
            **self._settings.to_json(),
            "key": self._key.hex(),
            "saved": [part.size for part in saved],
        }
        center: memoryview = self._center.data
        parts = [center.cast("B"), *(each.data for each in saved)]
        return self._started.launch(settings, parts)
