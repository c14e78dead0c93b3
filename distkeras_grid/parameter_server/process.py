"""The driver's side of the server process: starts, watches and ends it.

Settings, key and center go through the child's standard input, never through its command line or
its environment, where other users could read them. The child ends when its input closes, so it
never outlives the driver.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from distkeras_grid.array_tree import Packed
from distkeras_grid.errors import ConfigurationError, ParameterServerError, ServerUnreachableError
from distkeras_grid.parameter_server.auth import driver_key
from distkeras_grid.parameter_server.driver_client import DriverClient
from distkeras_grid.parameter_server.settings import LENGTH, ServerAddress, ServerSettings
from distkeras_grid.parameter_server.timeouts import ANSWER_SECONDS, START_SECONDS, STOP_SECONDS
from distkeras_grid.rules import rule_of
from distkeras_grid.weights import Vector

# Of the environment: where programs, libraries, modules and temporary files are, and the locale.
# Our own variables have no secrets.
_NEEDED = re.compile(
    r"PATH|HOME|TMPDIR|TEMP|TMP|TZ|LANG|LANGUAGE|SYSTEMROOT|VIRTUAL_ENV"
    r"|(LC|LD|DYLD|MALLOC|DISTKERAS_GRID)_[A-Z_]+|PYTHON[A-Z_]+"
)
_TAIL_BYTES = 4000


@dataclass(frozen=True)
class LocalServer:
    """The process of a server, and what it writes."""

    process: subprocess.Popen[bytes]  # Ends when its standard input does
    log: IO[bytes]  # Its output of errors

    @classmethod
    def spawn(cls) -> Self:
        """Start a process."""
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        try:
            return cls(_spawn(log), log)
        except OSError as error:
            log.close()
            raise ParameterServerError(
                f"The parameter server process does not start. Received: {error}. Give its host "
                "more memory, or end other processes there."
            ) from error

    def launch(self, settings: Mapping[str, Any], parts: Sequence[memoryview]) -> ServerAddress:
        """Send the settings of a server and what belongs to them; return where it listens.

        `parts`: bytes of the center, and of each part of a checkpoint.
        """
        deadline = time.monotonic() + START_SECONDS
        body = json.dumps(settings).encode("ascii")
        if self.process.stdin is None or self.process.stdout is None:
            raise ParameterServerError("The parameter server process has no pipes.")
        try:
            for part in (memoryview(LENGTH.pack(len(body)) + body), *parts):
                _write(self.process.stdin, part, deadline)
            length = LENGTH.unpack(_read(self.process.stdout, LENGTH.size, deadline))[0]
            return ServerAddress.from_json(json.loads(_read(self.process.stdout, length, deadline)))
        except (OSError, struct.error, ValueError) as error:
            raise self.died(error) from error

    def lives(self) -> bool:
        """Return whether the process runs."""
        return self.process.poll() is None

    def died(self, error: Exception) -> ServerUnreachableError:
        """Return the error of a server that does not answer, with the end of its output."""
        try:
            # A connection breaks shortly before the process ends.
            ended = f"ended with exit code {self.process.wait(1.0)}"
        except subprocess.TimeoutExpired:
            ended = "still runs"
        return ServerUnreachableError(
            f"The parameter server process {ended}: {error} It wrote: {self._tail() or 'nothing'}"
        )

    def _tail(self) -> str:
        """Return the end of the output of the process."""
        size = self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, size - _TAIL_BYTES))
        return self.log.read().decode("utf-8", "replace").strip()

    def stop(self) -> None:
        """Close the input of the process, which ends it; kill it after a while."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_SECONDS)
        self.log.close()


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
            lengths = [part.size for part in self._saved]
            launch = {**self._settings.to_json(), "key": self._key.hex(), "saved": lengths}
            center: memoryview = self._center.data
            parts = [center.cast("B"), *(each.data for each in self._saved)]
            self.address = self._child.launch(launch, parts)
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
        return self._started.process.pid

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


def _spawn(log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the process with this interpreter and this package, wherever they are."""
    home = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    environment = {
        **needed(os.environ),
        "PYTHONPATH": path,
        # The server multiplies no matrices; BLAS threads would take most of its start-up time.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "distkeras_grid.parameter_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=environment,
        bufsize=0,
        # The driver handles Ctrl-C in a terminal or a notebook.
        start_new_session=True,
    )


def needed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what Python and its libraries need of an environment, which may have secrets.

    Examples
    --------
    >>> needed({"PYSPARK_GATEWAY_SECRET": "...", "PATH": "/bin", "LC_ALL": "C"})
    {'PATH': '/bin', 'LC_ALL': 'C'}
    """
    return {name: value for name, value in environment.items() if _NEEDED.fullmatch(name)}


def _wait(pipe: IO[bytes], event: int, deadline: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, event)
        if not selector.select(max(0.0, deadline - time.monotonic())):
            raise TimeoutError(f"it did not start within {START_SECONDS:g} s.")


def _write(pipe: IO[bytes], data: memoryview, deadline: float) -> None:
    os.set_blocking(pipe.fileno(), False)
    while data:
        _wait(pipe, selectors.EVENT_WRITE, deadline)
        data = data[os.write(pipe.fileno(), data[: 1 << 20]) :]


def _read(pipe: IO[bytes], count: int, deadline: float) -> bytes:
    data = b""
    while len(data) < count:
        _wait(pipe, selectors.EVENT_READ, deadline)
        part = os.read(pipe.fileno(), count - len(data))
        if not part:
            raise ConnectionResetError("it ended before it listened.")
        data += part
    return data
