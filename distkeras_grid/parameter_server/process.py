"""The driver's side of the server process: starts, watches and ends it.

Settings, key and center go through the child's standard input, never through its command line or
its environment, where other users could read them. The child ends when its input closes, so it
never outlives the driver.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from msgspec.structs import replace

from distkeras_grid.errors import ConfigurationError, ParameterServerError, ServerUnreachableError
from distkeras_grid.parameter_server.auth import driver_key
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

START_SECONDS = 60.0
STOP_SECONDS = 5.0
#: How long a new server tries to listen on the dead one's address, and its pauses [s].
REPLACE_SECONDS, REPLACE_PAUSE = 10.0, 0.2
#: Format of the length before each part sent to the process, and before the address it returns.
LENGTH = struct.Struct("<Q")
_TAIL_BYTES = 4000


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
        self._child: _Child | None = None
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
        deadline = time.monotonic() + START_SECONDS
        self._driver = None
        self._child = _Child.spawn()
        self.address = self._launch(saved, deadline)
        self._driver = self._connect(deadline - time.monotonic())

    def _end(self, *, at_once: bool = False) -> None:
        if self._driver is not None:
            self._driver.close()
        if self._child is not None:
            # A stopped or hanging process must not go on beside its successor.
            self._child.stop(at_once=at_once)

    @property
    def pid(self) -> int:
        """Number of the process, which is another one after `replace`."""
        return self._started.process.pid

    @property
    def addresses(self) -> tuple[ServerAddress, ...]:
        """The addresses of all servers of the run: this one's."""
        return (self.address,)

    @property
    def pids(self) -> tuple[int, ...]:
        """Numbers of the processes of all servers: this one's."""
        return (self.pid,)

    def poll(self, timeout: float = ANSWER_SECONDS, captured: int = 0) -> Update:
        """Return the present state of the run, and the events since the last poll.

        Parameters
        ----------
        timeout : float, default `ANSWER_SECONDS`
            Seconds in which the server must answer, including reconnections.
        captured : int, default 0
            As in `DriverClient.poll`.

        Raises
        ------
        ServerUnreachableError
            If the server has died or does not answer. The message has the end of its output.
        """
        try:
            return self._connected().poll(timeout, captured)
        except ServerUnreachableError as error:
            raise self._died(error) from error

    def command(
        self,
        stop: bool | None = None,
        learning_rate: float | None = None,
        *,
        begin: bool = False,
        release: bool = False,
    ) -> None:
        """Set what the workers receive with their next replies; see `DriverClient.command`."""
        try:
            self._connected().command(stop, learning_rate, begin=begin, release=release)
        except ServerUnreachableError as error:
            raise self._died(error) from error

    def gather(self, *, at_once: bool = False) -> None:
        """Ask for a checkpoint; see `DriverClient.gather`."""
        try:
            self._connected().gather(at_once=at_once)
        except ServerUnreachableError as error:
            raise self._died(error) from error

    def reconnect(self) -> None:
        """Open a new connection, after an interrupt that may have left a request unfinished."""
        try:
            self._connected().reconnect()
        except ServerUnreachableError as error:
            raise self._died(error) from error

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
            raise self._died(error) from error

    def _connect(self, seconds: float) -> DriverClient:
        # The client must not refer to this object: the center would be kept until Python's next
        # collection of garbage.
        process = self._started.process
        return DriverClient.connect(
            self.address,
            driver_key(self._key),
            self._settings.run,
            self._settings.spec.size,
            seconds,
            lives=lambda: process.poll() is None,
        )

    def _connected(self) -> DriverClient:
        if self._driver is None:
            raise ParameterServerError("The server was not started: use it in a with statement.")
        return self._driver

    @property
    def _started(self) -> _Child:
        if self._child is None:
            raise ParameterServerError("The server was not started: use it in a with statement.")
        return self._child

    def _died(self, error: Exception) -> ServerUnreachableError:
        child = self._started
        try:
            # A connection breaks shortly before the process ends.
            fate = f"ended with exit code {child.process.wait(1.0)}"
        except subprocess.TimeoutExpired:
            fate = "still runs"
        tail = _tail(child.log)
        return ServerUnreachableError(
            f"The parameter server process {fate}: {error} It wrote: {tail or 'nothing'}"
        )

    def _launch(self, saved: Sequence[Packed], deadline: float) -> ServerAddress:
        settings = {
            **self._settings.to_json(),
            "key": self._key.hex(),
            "turn": self._turn.to_json(),
            "saved": [part.size for part in saved],
        }
        body = json.dumps(settings).encode("ascii")
        center: memoryview = self._center.data
        process = self._started.process
        if process.stdin is None or process.stdout is None:
            raise ParameterServerError("The parameter server process has no pipes.")
        try:
            head = memoryview(LENGTH.pack(len(body)) + body)
            for part in (head, center.cast("B"), *(each.data for each in saved)):
                _write(process.stdin, part, deadline)
            length = LENGTH.unpack(_read(process.stdout, LENGTH.size, deadline))[0]
            data = json.loads(_read(process.stdout, length, deadline))
            return ServerAddress.from_json(data)
        except (OSError, struct.error, ValueError) as error:
            raise self._died(error) from error


@dataclass(frozen=True)
class _Child:
    """The process of a server, and what it writes.

    Parameters
    ----------
    process : subprocess.Popen
        Ends when its standard input does.
    log : file
        Its output of errors.
    """

    process: subprocess.Popen[bytes]
    log: IO[bytes]

    @classmethod
    def spawn(cls) -> Self:
        """Start a process.

        Raises
        ------
        ParameterServerError
            If the system has no memory or no process left for it.
        """
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        try:
            return cls(_spawn(log), log)
        except OSError as error:
            log.close()
            raise ParameterServerError(
                f"The parameter server process does not start. Received: {error}. Give the "
                "driver's host more memory, or end other processes there."
            ) from error

    def stop(self, *, at_once: bool) -> None:
        """Close the input of the process, which ends it; kill it `at_once` or after a while."""
        if at_once:
            self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_SECONDS)
        self.log.close()


def _spawn(log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the process with this interpreter and this package, wherever they are."""
    home = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    environment = {
        **os.environ,
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


def _tail(log: IO[bytes]) -> str:
    """Return the end of the output of the process."""
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _TAIL_BYTES))
    return log.read().decode("utf-8", "replace").strip()
