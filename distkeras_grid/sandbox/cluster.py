"""The sandbox: start, query and stop HDFS and YARN on this machine."""

from __future__ import annotations

import fcntl
import getpass
import itertools
import json
import os
import random
import shlex
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Self

import msgspec
import psutil
import requests

from distkeras_grid import fsync
from distkeras_grid.errors import UNREADABLE, BusyError, ConfigurationError, SandboxError
from distkeras_grid.sandbox import configuration, daemons, readiness
from distkeras_grid.sandbox.class_path import daemon_class_path, pyspark_folder
from distkeras_grid.sandbox.configuration import HOST, Ports, SandboxLayout
from distkeras_grid.sandbox.readiness import WebUI

# Some 20 s; on a machine with ten times as much to do as it has cores, two minutes.
START_SECONDS = 300.0
LOOPBACK = "127.0.0.1"
FORMAT = ("-format", "-nonInteractive", "-force")


@dataclass(frozen=True)
class SandboxState:
    """The content of ``sandbox.json``, from which a sandbox is found and started again."""

    ports: Ports  # They stay the same as long as the data do: paths name them
    # datanodes and memory_mb: As for `Sandbox`
    datanodes: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    memory_mb: int

    @property
    def names(self) -> list[str]:
        """The names of the daemons, in the order in which they start."""
        datanodes = [f"datanode-{number}" for number in range(self.datanodes)]
        return ["namenode", *datanodes, "resourcemanager", "nodemanager"]

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> SandboxState:
        """Read what `to_json` wrote; refuse what no sandbox can have written."""
        try:
            return msgspec.json.decode(text, type=cls)
        except UNREADABLE as error:
            raise SandboxError(
                "The sandbox was started by another version of distkeras_grid, or sandbox.json is "
                f"damaged ({error!r}). Stop it with that version, or end its processes and delete "
                "sandbox.json."
            ) from error


class Sandbox:
    """A NameNode, DataNodes, a ResourceManager and a NodeManager, each a process of its own.

    Parameters
    ----------
    folder : path, optional
        Keeps data, configuration and logs, also after a stop. By default a new one, which goes
        when the sandbox stops.
    datanodes : int, optional
        DataNodes; a block has as many copies, up to three. By default as many as the folder had at
        its last start, or 1.
    memory_mb : int, optional
        What YARN may hand out, in megabytes; by default what it was at the last start, or half of
        this machine's memory.
    say : callable, optional
        Is told what goes on.

    Raises
    ------
    ConfigurationError
        If there is no DataNode, or too little memory for a container.

    Examples
    --------
    >>> with Sandbox() as grid:                                          # doctest: +SKIP
    ...     print(grid.hdfs)
    hdfs://localhost:40713
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        datanodes: int | None = None,
        memory_mb: int | None = None,
        say: Callable[[str], object] | None = None,
    ) -> None:
        if datanodes is not None and datanodes < 1:
            raise ConfigurationError(f"datanodes must be at least 1. Received: {datanodes}.")
        if memory_mb is not None and memory_mb < 1024:
            raise ConfigurationError(
                f"memory_mb must be at least 1024, or Spark does not run. Received: {memory_mb}."
            )
        self._temporary = folder is None
        root = tempfile.mkdtemp(prefix="sandbox-") if folder is None else folder
        self.layout = SandboxLayout(Path(root).resolve())
        self._datanodes = datanodes
        self._memory_mb = memory_mb
        self._say = say or (lambda _: None)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def state(self) -> SandboxState:
        """The state that the folder records.

        Raises
        ------
        SandboxError
            If there is no sandbox in the folder.
        """
        try:
            return SandboxState.from_json(self.layout.state.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise self._none() from error

    def _none(self) -> SandboxError:
        return SandboxError(
            f"There is no sandbox in {self.layout.root}. Start one: {self.command('start')}."
        )

    @property
    def hdfs(self) -> str:
        """Address of HDFS, such as ``hdfs://localhost:40713``."""
        return f"hdfs://{HOST}:{self.state.ports.namenode}"

    @property
    def webhdfs(self) -> str:
        """Address of WebHDFS and of the NameNode's page."""
        return f"http://{HOST}:{self.state.ports.namenode_http}"

    @property
    def yarn(self) -> str:
        """Address of YARN's page and REST interface."""
        return f"http://{HOST}:{self.state.ports.resourcemanager_http}"

    def environment(self) -> dict[str, str]:
        """Return the environment variables with which Spark and Hadoop's clients find it."""
        return configuration.environment(self.layout)

    def start(self) -> None:
        """Start all daemons, or those that have ended, and wait until they work.

        A folder that has been a sandbox before keeps its data and its ports.

        Raises
        ------
        BusyError
            If another command starts or stops it now.
        SandboxError
            If all daemons run already, something is missing, or a daemon does not come up; with the
            end of its log. If no daemon ran before, none is left running then.
        """
        with self._alone(new=True):
            running = daemons.running(self.layout.scratch)
            if running and running.keys() >= set(self.state.names):
                raise SandboxError(
                    f"The sandbox in {self.layout.root} runs already. Use it, or stop it first: "
                    f"{self.command('stop')}."
                )
            if running:
                self._check_numbers()
            with ExitStack() as undo:
                self._say("looking for Hadoop's jars (64 MB are fetched the first time)")
                path = daemon_class_path()
                if not running:
                    undo.callback(self._discard)
                    self._configure()
                    undo.callback(self._end)
                self._start_all(path, time.monotonic() + START_SECONDS)
                undo.pop_all()

    def stop(self) -> None:
        """End all daemons and containers; the data stay, unless the folder was made here.

        Raises
        ------
        BusyError
            If another command starts or stops it now.
        SandboxError
            If a process outlives being killed.
        """
        if self.layout.state.exists():
            with self._alone():
                self._end()
        self._discard()

    def status(self) -> dict[str, bool]:
        """Return the name of each daemon, and whether it runs."""
        running = daemons.running(self.layout.scratch)
        return {name: name in running for name in self.state.names}

    def running(self) -> bool:
        """Tell whether any daemon runs."""
        return bool(daemons.running(self.layout.scratch))

    def daemon(self, name: str) -> psutil.Process:
        """Return the process of a daemon, such as ``datanode-1``.

        Raises
        ------
        SandboxError
            If no daemon of that name runs.
        """
        self._check([name])
        return daemons.running(self.layout.scratch)[name]

    @contextmanager
    def _alone(self, *, new: bool = False) -> Iterator[None]:
        """Hold the lock of the folder; the kernel frees it when this process ends.

        `new`: make the folder where it is missing. Otherwise there must be a sandbox in it.
        """
        if new:
            self.layout.root.mkdir(parents=True, exist_ok=True)
        elif not self.layout.state.exists():
            raise self._none()
        owner = self.layout.state.stat().st_uid if self.layout.state.exists() else os.getuid()
        if owner != os.getuid():
            raise SandboxError(
                f"The sandbox in {self.layout.root} is that of the user with the number {owner}, "
                "and only this user finds its daemons. Run the command as this user."
            )
        with self.layout.lock.open("a", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BusyError(
                    f"Another command starts or stops the sandbox in {self.layout.root}. Wait "
                    f"until it has ended, and look: {self.command('status')}."
                ) from error
            except OSError as error:
                # Some network file systems have no locks.
                raise SandboxError(
                    f"{self.layout.lock} cannot be locked: {error.strerror}. Choose a --folder on "
                    "a local disk."
                ) from error
            yield

    def command(self, verb: str) -> str:
        """Return the command line of a verb for this sandbox."""
        root = self.layout.root
        folder = "" if root == default_folder().resolve() else f" --folder {shlex.quote(str(root))}"
        return f"distkeras-grid sandbox {verb}{folder}"

    def _check_numbers(self) -> None:
        """Refuse other numbers than those with which its daemons run."""
        state = self.state
        for flag, wanted, has in (
            ("datanodes", self._datanodes, state.datanodes),
            ("memory", self._memory_mb, state.memory_mb),
        ):
            if wanted not in (None, has):
                raise SandboxError(
                    f"The sandbox in {self.layout.root} runs with --{flag} {has}. Received: "
                    f"{wanted}. Stop it first: {self.command('stop')}."
                )

    def _discard(self) -> None:
        """Delete the folder if it was made here."""
        if self._temporary:
            shutil.rmtree(self.layout.root, ignore_errors=True)

    def _end(self) -> None:
        """End all daemons and containers, and delete what only they need."""
        layout = self.layout
        running, names = daemons.running(layout.scratch), self.state.names
        first = running.keys() - set(names)  # A NameNode that formats
        order = [*first, *(name for name in names if name in running)]
        daemons.stop([running[name] for name in order], layout.containers)
        # Archives of applications, which a NodeManager deletes when it starts: gigabytes.
        for folder in (layout.containers, layout.scratch):
            shutil.rmtree(folder, ignore_errors=True)

    def _configure(self) -> None:
        """Write the files."""
        layout = self.layout
        former = self.state if layout.state.exists() else None
        state = SandboxState(
            former.ports if former else free_ports(),
            self._datanodes or (former.datanodes if former else 1),
            self._memory_mb or (former.memory_mb if former else configuration.default_memory_mb()),
        )
        with fsync.atomic_file(layout.state) as written:
            written.write_text(state.to_json(), encoding="utf-8")
        files = configuration.files(
            state.ports,
            layout,
            datanodes=state.datanodes,
            memory_mb=state.memory_mb,
            pyspark=pyspark_folder().parent,
        )
        for file, content in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")

    def _start_all(self, path: list[str], deadline: float) -> None:
        """Start the daemons that do not run."""
        names, running = self.state.names, daemons.running(self.layout.scratch)
        hdfs, yarn = names[:-2], names[-2:]
        pages = self._pages()
        # A DataNode that was killed is counted for some seconds more, by another address.
        before = set[str]()
        if "namenode" in running:
            with suppress(requests.RequestException):
                before = pages.live_datanodes()
        if not self.layout.namenode().exists():
            line = self._command("format", path, daemons.MAIN_CLASSES["namenode"], *FORMAT)
            daemons.run("Formatting the NameNode", line, self.layout.logs / "format.log")
        self._launch([name for name in hdfs if name not in running], path)
        new = sum(name not in running for name in hdfs[1:])
        readiness.wait_for(
            f"HDFS with {len(hdfs) - 1} DataNodes",
            lambda: (
                len(live := pages.live_datanodes()) >= len(hdfs) - 1
                and len(live - before) >= new
                and not pages.in_safe_mode()
            ),
            lambda: self._check(hdfs),
            deadline,
        )
        pages.make_homes(getpass.getuser())
        self._launch([name for name in yarn if name not in running], path)
        readiness.wait_for(
            "YARN with a NodeManager",
            lambda: pages.active_nodemanagers() >= 1,
            lambda: self._check(yarn),
            deadline,
        )

    def _pages(self) -> WebUI:
        ports = self.state.ports
        return WebUI(f"{HOST}:{ports.namenode_http}", f"{HOST}:{ports.resourcemanager_http}")

    def _check(self, names: Iterable[str]) -> None:
        """Raise an error with the end of its log if a daemon does not run."""
        running = daemons.running(self.layout.scratch)
        for name in names:
            if name not in running:
                raise SandboxError(f"The {name} has ended. {daemons.tail(self._log(name))}")

    def _log(self, name: str) -> Path:
        return self.layout.logs / f"{name}.log"

    def _launch(self, names: list[str], path: list[str]) -> None:
        """Start daemons of Hadoop."""
        if names:
            self._say(f"starting {', '.join(names)}")
        for name in names:
            kind, _, number = name.partition("-")
            arguments: tuple[str, ...] = ()
            if kind == "datanode":
                blocks = self.layout.datanode(int(number)).as_uri()
                arguments = ("-D", f"dfs.datanode.data.dir={blocks}")
            line = self._command(name, path, daemons.MAIN_CLASSES[kind], *arguments)
            daemons.start(line, self._log(name))

    def _command(self, name: str, path: list[str], main: str, *arguments: str) -> list[str]:
        self.layout.scratch.mkdir(exist_ok=True)
        path = [str(self.layout.daemons), str(self.layout.client), *path]
        return daemons.command(name, path, main, *arguments, scratch=self.layout.scratch)


def free_ports() -> Ports:
    """Return free ports outside the range of outgoing connections.

    A port that the system hands out itself (from 32768 on Linux, 49152 on macOS) may belong to
    somebody else by the time its daemon comes to it: each connection takes one, and so does each
    listener on port 0, of which a DataNode has three.
    """
    ports, wanted = configuration.PORTS, len(fields(Ports))
    free = list(itertools.islice(filter(can_bind, random.sample(ports, len(ports))), wanted))
    if len(free) < wanted:
        raise SandboxError(
            f"Only {len(free)} ports from {ports.start} to {ports.stop} are free on {HOST}, and a "
            f"sandbox needs {wanted}. Stop what uses them."
        )
    return Ports(*free)


def can_bind(port: int) -> bool:
    """Tell whether a daemon could listen on a port now."""
    with socket.socket() as trial:
        # As Hadoop's servers bind: what waits for the last packets of the past does not count.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def default_folder() -> Path:
    """Return where the command line keeps its sandbox."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "distkeras_grid" / "sandbox"
